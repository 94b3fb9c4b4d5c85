#include "sync/wait.hpp"

#include "support/args.hpp"

namespace runloom::python {

bool to_acquire_deadline(PyObject* blocking, PyObject* timeout, Deadline& deadline) {
  double seconds = -1;
  const int waits = blocking ? PyObject_IsTrue(blocking) : 1;
  if (waits < 0 || (is_given(timeout) && !to_seconds(timeout, "timeout", seconds))) return false;
  if (!waits && seconds != -1) {
    PyErr_SetString(PyExc_ValueError, "can't specify a timeout for a non-blocking call");
    return false;
  }
  if (seconds < 0 && seconds != -1) {
    PyErr_SetString(PyExc_ValueError, "timeout value must be a non-negative number");
    return false;
  }
  deadline = !waits ? Deadline::now() : seconds == -1 ? Deadline::never() : after_seconds(seconds);
  return true;
}

}  // namespace runloom::python
