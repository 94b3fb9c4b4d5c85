// wait_fd, fd_read, fd_write, tcp_recv, tcp_send and the like: operations on any descriptor.
#pragma once

#include <Python.h>

namespace runloom::python {

bool add_fd_functions(PyObject* module);

}  // namespace runloom::python
