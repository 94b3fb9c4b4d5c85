// fork() in a program that uses fibers.
//
// The core drops every fiber but the one that forks, without running it, in the child (fork.cpp of
// the scheduler). What is left for the bindings is to let go of the handles and of the dropped
// fibers' parts of the thread state.
#pragma once

#include <Python.h>

namespace runloom::python {

// reset_after_fork, and its registration with os.register_at_fork.
bool add_fork_functions(PyObject* module);

}  // namespace runloom::python
