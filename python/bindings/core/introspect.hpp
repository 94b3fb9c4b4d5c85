// What can be asked about fibers: stats, fibers, fiber_stack, dump_fibers and the like. All may be
// called from any thread.
#pragma once

#include <Python.h>

namespace runloom::python {

bool add_introspect_functions(PyObject* module);

}  // namespace runloom::python
