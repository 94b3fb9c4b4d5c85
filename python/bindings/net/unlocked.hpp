// Calls that may block for long, with the GIL released and other fibers running meanwhile.
#pragma once

#include <Python.h>

#include "core/gil.hpp"
#include "core/park.hpp"
#include "runloom/sched/blocking.hpp"

namespace runloom::python {

// Runs `fn`, which must not use Python: for a fiber on a thread of the pool, else right here.
// Fails when it was not called: the fiber was cancelled, or may not park.
template <class Fn>
Result<void> unlocked(Fn&& fn) {
  if (this_fiber::exists()) {
    ParkGuard guard;
    return blocking([&]() -> Result<void> {
      fn();
      return {};
    });
  }
  PyThreadState* state = PyEval_SaveThread();
  fn();
  take_gil(state);
  return {};
}

}  // namespace runloom::python
