// What the bindings of the synchronisation primitives have in common.
#pragma once

#include <Python.h>

#include "core/park.hpp"
#include "core/scope.hpp"
#include "runloom/sched/error.hpp"
#include "support/errors.hpp"

namespace runloom::python {

// The answer of a wait with a timeout: True, False when the time was up, else the exception.
inline PyObject* true_or_timed_out(const Result<void>& waited, Deadline deadline) {
  if (waited) [[likely]]
    Py_RETURN_TRUE;
  if (own_time_is_up(waited.error(), deadline)) Py_RETURN_FALSE;
  return raise(waited.error());
}

// threading's acquire(blocking=True, timeout=-1) with None for no limit, as a deadline. False with
// an exception set.
bool to_acquire_deadline(PyObject* blocking, PyObject* timeout, Deadline& deadline);

}  // namespace runloom::python
