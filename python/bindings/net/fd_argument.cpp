#include "net/fd_argument.hpp"

#include <cerrno>

#include "runloom/sched/error.hpp"
#include "support/args.hpp"
#include "support/errors.hpp"

namespace runloom::python {

bool to_fd(PyObject* value, int& fd) {
  fd = PyObject_AsFileDescriptor(value);
  if (fd >= 0 || !PyErr_ExceptionMatches(PyExc_ValueError)) return fd >= 0;
  // A negative number: closed, or nonsense; to the system both are bad descriptors.
  PyErr_Clear();
  raise(errno_code(EBADF));
  return false;
}

bool to_count(PyObject* value, const char* what, Py_ssize_t& size) {
  if (!to_size(value, what, size)) return false;
  if (size >= 0) return true;
  PyErr_Format(PyExc_ValueError, "%s must not be negative", what);
  return false;
}

}  // namespace runloom::python
