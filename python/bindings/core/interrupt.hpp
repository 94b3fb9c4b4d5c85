// Ends waits from outside with an OSError: netpoll_cancel_fd, netpoll_unregister,
// cancel_all_parked.
#pragma once

#include <Python.h>

namespace runloom::python {

bool add_interrupt_functions(PyObject* module);

}  // namespace runloom::python
