// Home: the scheduler of one hub that every OS thread has which uses the API. It is made at the
// first use, driven on that very thread by run(), and ended with the thread, or early in the
// interpreter's exit.
//
// All fibers of a home share the thread's PyThreadState; the hooks exchange what belongs to each
// fiber (pystate.h). The GIL is held while fibers run and while they switch. It is released only
// around a poll that may block, in the hub's own context.
#pragma once

#include <Python.h>

#include <cstdint>

#include "pystate.h"
#include "runloom/sched/fiber.hpp"
#include "runloom/sched/scheduler.hpp"

namespace runloom::net {
class Netpoll;
}

namespace runloom::python {

struct G;

struct Home {
  Home(std::uint64_t base, bool is_main_thread);

  const std::uint64_t id_base;  // ids of its fibers begin here: unique in the process
  const unsigned long thread;   // its ident
  PyThreadState* const thread_state;
  bool on_main_thread;  // after a fork the thread that forked is the main one
  Scheduler scheduler;
  RlPyHub* pyhub = nullptr;
  RlPyState* main_state = nullptr;    // of the hub's own context, and of C++ fibers
  net::Netpoll* netpoll = nullptr;    // the hub's first driver; on the main thread only
  PyThreadState* released = nullptr;  // while the GIL is released around a poll
  int shared_waits = 0;               // fibers in waits that OS threads may end, see SharedWait
  bool running = false;               // inside run(), on the hub's own context
  bool unwinding = false;      // fibers are being cancelled: what has not started does not start
  bool closed = false;         // its thread or the interpreter ends: nothing starts here any more
  G* main = nullptr;           // the fiber that run(main) waits for; borrowed
  PyObject* raised = nullptr;  // what run() has to raise, because no fiber could take it
  Home* next = nullptr;        // all homes; guarded by the GIL
};

extern constinit thread_local Home* tl_home __attribute__((tls_model("initial-exec")));

// The calling thread's home, made if there is none. Null with an exception set when there can't
// be one any more.
Home* make_home();
inline Home* home() {
  return tl_home ? tl_home : make_home();
}

// The first of all homes, closed ones included.
Home* first_home() noexcept;

// Ends what is left of the calling thread's home: cancels its fibers and runs them until they have
// ended, within bounds. Those that did not end are leaked.
void close_home(Home& home);
// In a forked child: the homes of threads that are no more.
void forget_other_homes() noexcept;
// The interpreter begins to exit: makes no new homes.
void refuse_homes() noexcept;

// What a Python fiber keeps in its local memory: the data stack of its Python frames follows.
struct FiberLocal {
  G* g;                     // the scheduler's reference
  const char* stack_begin;  // of its C stack: the highest address
  bool inherits;            // it starts with contextvars of its spawner's
  bool finished;            // its thread state part has been taken apart
};

// Where in a fiber's local memory things are. Set at import: only pystate.c knows the sizes.
struct LocalLayout {
  std::size_t state = 0;      // RlPyState
  std::size_t datastack = 0;  // up to the end
};
extern LocalLayout local_layout;
inline RlPyState* state_of(FiberLocal* local) noexcept {
  return reinterpret_cast<RlPyState*>(reinterpret_cast<char*>(local) + local_layout.state);
}

inline FiberLocal* current_local() noexcept {
  return static_cast<FiberLocal*>(this_fiber::local());
}
// The running fiber; borrowed. Null outside of Python fibers.
inline G* current_g() noexcept {
  FiberLocal* local = current_local();
  return local ? local->g : nullptr;
}

// At import. False with an exception set on failure.
bool init_homes();

}  // namespace runloom::python
