// The network in runloom_c: the type Socket, and functions on descriptors of any origin.
#pragma once

#include <Python.h>

namespace runloom::python {

// Adds all of it to the module. False with an exception set on failure.
bool add_net(PyObject* module);

}  // namespace runloom::python
