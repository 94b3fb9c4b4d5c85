// blocking(fn): work that would stop the hub, run on a thread of the core's pool.
#pragma once

#include <Python.h>

namespace runloom::python {

bool add_blocking(PyObject* module);

// The interpreter ends: waits, within bounds and without the GIL, for the pool's threads to leave.
void retire_blocking();

}  // namespace runloom::python
