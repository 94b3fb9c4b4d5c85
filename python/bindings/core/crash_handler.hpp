// A handler of fatal signals for Python programs: says what a fault has to do with fibers, writes
// all fibers, then lets the signal take its course.
#pragma once

#include <Python.h>

namespace runloom::python {

// install_crash_handler(level, file), uninstall_crash_handler(), crash_handler_installed().
bool add_crash_handler(PyObject* module);

}  // namespace runloom::python
