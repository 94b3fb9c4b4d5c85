// What the bindings of the synchronisation primitives have in common.
#pragma once

#include <Python.h>

#include "core/park.hpp"
#include "runloom/sched/error.hpp"
#include "support/errors.hpp"

namespace runloom::python {

// The answer of a wait with a timeout: True, False when the time was up, else the exception.
inline PyObject* true_or_timed_out(const Result<void>& waited) {
  if (waited) [[likely]]
    Py_RETURN_TRUE;
  if (waited.error() == make_error_code(Errc::timed_out)) Py_RETURN_FALSE;
  return raise(waited.error());
}

// threading's acquire(blocking=True, timeout=-1) with None for no limit, as a deadline. False with
// an exception set.
bool to_acquire_deadline(PyObject* blocking, PyObject* timeout, Deadline& deadline);

}  // namespace runloom::python
