// Several hubs and preemption, for which there is no scheduler yet: the functions say so.
#pragma once

#include <Python.h>

namespace runloom::python {

bool add_hub_functions(PyObject* module);

}  // namespace runloom::python
