// The end of the interpreter.
#pragma once

#include <Python.h>

namespace runloom::python {

// Lets the main thread's fibers end before the interpreter takes itself apart: each is cancelled,
// its `finally` blocks run. False with an exception set on failure.
bool watch_interpreter_end();

}  // namespace runloom::python
