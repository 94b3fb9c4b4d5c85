// What can be asked about fibers: stats, fibers, fiber_stack, dump_fibers and the like. All may be
// called from any thread.
#pragma once

#include <Python.h>

#include "runloom/sched/park.hpp"

namespace runloom::python {

inline bool waits_on_descriptor(WaitReason reason) noexcept {
  return reason >= WaitReason::io_read && reason <= WaitReason::io_poll;
}

bool add_introspect_functions(PyObject* module);

}  // namespace runloom::python
