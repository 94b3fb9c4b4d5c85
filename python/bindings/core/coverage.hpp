// coverage.py's tracer keeps a stack of the files that the thread's frames are in: a call pushes, a
// return pops, and a line is counted for the file on top. A switch of fibers changes the frames
// without either, and lines would be counted for files of other fibers.
//
// So, when that tracer is the thread's, it is told that the frames of the fiber that parks return,
// and that those of the one that goes on are called again. Its core for sys.monitoring keeps no
// such stack and needs none of this. See docs/decisions/080-coverage-is-told-of-switches.md.
#pragma once

#include <Python.h>

namespace runloom::python {

// Whether the calling thread has a trace function: so cheap that each switch asks.
inline bool is_traced(const PyThreadState* state) noexcept {
  return state->c_tracefunc != nullptr;
}

// The running fiber is about to park.
void coverage_leaves() noexcept;
// A fiber has been loaded and goes on. Neither runs Python code.
void coverage_enters() noexcept;

}  // namespace runloom::python
