// Signals while the main thread is inside run().
//
// CPython runs Python signal handlers on the main thread, between byte codes. A fiber that executes
// there runs them, and what they raise (KeyboardInterrupt) is raised in it. When all fibers wait,
// the hub runs them between two polls; what they raise goes to the fiber that run(main) waits for,
// out of whatever it waits for, else out of run().
//
// A poll must end when a signal arrives, also when it arrives on another thread, or just before
// the poll begins, which EINTR does not give. So during run() CPython's wakeup descriptor is a
// pipe of ours that the poll watches. Whoever had set one before gets the bytes passed on.
#pragma once

#include <Python.h>

#include "core/home.hpp"

namespace runloom::python {

// Runs the handlers of signals that have arrived. On the main thread, in the hub's own context.
void run_signal_handlers(Home& home);

// An exception that belongs to no fiber in particular (stolen): to the fiber that run(main) waits
// for, else out of run().
void deliver_interrupt(Home& home, PyObject* exception) noexcept;

// A fiber other than the main one ended with KeyboardInterrupt (borrowed). When a signal has come
// that no handler's exception has left run() for, it is passed on as what the hub's handlers raise,
// so that Ctrl-C ends a program whichever fiber runs.
bool pass_on_interrupt(Home& home, PyObject* exception) noexcept;

// While one lives, signals end the polls of the home's hub. On the main thread; elsewhere it does
// nothing.
class SignalWatch {
 public:
  explicit SignalWatch(Home& home);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

 private:
  Home* home_ = nullptr;  // null: not watching
};

// At import. False with an exception set on failure.
bool init_signals();

// In a forked child: the pipe is the parent's.
void forget_signal_pipe() noexcept;

}  // namespace runloom::python
