// The part of the module that knows TLS.
#pragma once

#include <Python.h>

namespace runloom::python {

bool add_tls(PyObject* module);

}  // namespace runloom::python
