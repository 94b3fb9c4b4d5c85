// file_read, file_write, iouring_available: files by number.
#pragma once

#include <Python.h>

namespace runloom::python {

bool add_file_functions(PyObject* module);

}  // namespace runloom::python
