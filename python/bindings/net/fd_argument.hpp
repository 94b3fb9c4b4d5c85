// Arguments of functions on descriptors.
#pragma once

#include <Python.h>

namespace runloom::python {

// A number, or an object with a fileno(). False with an exception set; OSError(EBADF) for a
// negative number.
bool to_fd(PyObject* value, int& fd);
// A number of bytes.
bool to_count(PyObject* value, const char* what, Py_ssize_t& size);

}  // namespace runloom::python
