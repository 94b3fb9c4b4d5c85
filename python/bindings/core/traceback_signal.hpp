// A signal that writes a line for each fiber to stderr, as SIGQUIT does for a Go program; and
// whether park times are asked for.
#pragma once

#include <Python.h>

namespace runloom::python {

// install_traceback_signal, set_introspect_timestamps, get_introspect_timestamps; and what
// RUNLOOM_TRACEBACK and RUNLOOM_INTROSPECT_TIME ask for.
bool add_traceback_signal(PyObject* module);

}  // namespace runloom::python
