// What every binding of an operation that may park needs.
//
//     ParkGuard guard;
//     const Result<void> slept = this_fiber::sleep_until(deadline);
//     if (!slept) return raise(slept.error());
//
// The GIL stays held across the call: another fiber of the same thread runs with it, and a hub
// with nothing to run releases it. Buffers and objects that the operation uses must be owned by
// the caller's C stack meanwhile.
#pragma once

#include <Python.h>

#include <optional>

#include "core/home.hpp"

namespace runloom::python {

// False inside trace functions and in what the collector calls. There a switch would leave state
// of the whole thread half-done, so a call that would have to park fails with park_forbidden.
inline bool may_park(const Home& home) noexcept {
  return rl_pystate_may_switch(home.pyhub) && !rl_pystate_in_gc(home.pyhub);
}

class ParkGuard {
 public:
  ParkGuard() noexcept {
    if (tl_home && !may_park(*tl_home)) [[unlikely]]
      forbid_.emplace();
  }

 private:
  std::optional<this_fiber::ForbidPark> forbid_;
};

// A wait in something that OS threads use as well as fibers (locks, events, ...). Where the program
// has other threads one of them may end it, so that run() goes on waiting instead of calling it a
// deadlock.
class SharedWait {
 public:
  SharedWait() noexcept : home_(this_fiber::exists() ? tl_home : nullptr) {
    if (home_) ++home_->shared_waits;
  }
  ~SharedWait() {
    if (home_) --home_->shared_waits;
  }
  SharedWait(const SharedWait&) = delete;
  SharedWait& operator=(const SharedWait&) = delete;

 private:
  ParkGuard guard_;
  Home* const home_;
};

// The message for Errc::park_forbidden, which names the place.
const char* forbidden_place() noexcept;

// Raises what ended a wait with Errc::cancelled. Returns null.
PyObject* raise_cancelled();

// sched_yield, sched_sleep, park_self, park, current_g and the like.
bool add_park_functions(PyObject* module);

}  // namespace runloom::python
