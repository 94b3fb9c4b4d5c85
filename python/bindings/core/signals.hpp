// Signals while the main thread is inside run().
//
// CPython runs Python signal handlers on the main thread, between byte codes. A fiber that executes
// there runs them, and what they raise (KeyboardInterrupt) is raised in it. When all fibers wait,
// the hub runs them between two polls; what they raise goes to the fiber that run(main) waits for,
// out of whatever it waits for, else out of run().
#pragma once

#include <Python.h>

#include "core/home.hpp"

namespace runloom::python {

// Runs the handlers of signals that have arrived. On the main thread, in the hub's own context.
void run_signal_handlers(Home& home);

// An exception that belongs to no fiber in particular (stolen): to the main fiber, else out of
// run().
void deliver_interrupt(Home& home, PyObject* exception) noexcept;

// A fiber other than the main one ended with KeyboardInterrupt. When that came from a signal that
// nobody else has taken, it is passed on, so that Ctrl-C ends a program whichever fiber runs.
void pass_on_interrupt(Home& home, PyObject* exception) noexcept;

// While one lives, signals end the polls of the home's hub.
class SignalWatch {
 public:
  explicit SignalWatch(Home& home);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

 private:
  Home& home_;
};

}  // namespace runloom::python
