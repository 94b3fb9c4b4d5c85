// Driving the calling thread's home: run(), run(main), stop and reset.
#pragma once

#include <Python.h>

#include "core/g.hpp"

namespace runloom::python {

// The running fiber ends with `error` (borrowed) and is the one that run(main) waits for, or the
// error is a KeyboardInterrupt.
void fiber_raised(Home& home, G& g, PyObject* error);

// run, _run_main, sched_stop, sched_reset, count_deadlocked.
bool add_run_functions(PyObject* module);

}  // namespace runloom::python
