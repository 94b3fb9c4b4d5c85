// Taking the GIL back, in a way that survives the end of the interpreter.
#pragma once

#include <Python.h>
#include <cxxabi.h>

namespace runloom::python {

// PyEval_RestoreThread. Once the interpreter finalises, CPython up to 3.13 ends the threads that
// ask for the GIL by pthread_exit(), which would unwind through C++ frames that can't be left that
// way; such a thread stops here for ever instead, as it does in CPython 3.14.
void take_gil(PyThreadState* state);
// What such a thread does.
[[noreturn]] void stop_thread() noexcept;

// Calls fn, which may take the GIL or run Python code, on a stack that pthread_exit() can't unwind.
template <class Fn>
auto keep_stack(Fn&& fn) {
  try {
    return fn();
  } catch (const abi::__forced_unwind&) {
    stop_thread();
  }
}

// True when the calling thread holds the GIL.
bool holds_gil() noexcept;

// True once the interpreter takes itself apart.
inline bool interpreter_finalizes() noexcept {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

// Lets OS threads that wait in a primitive of the core release the GIL, and the main thread run
// signal handlers meanwhile.
void init_thread_waits() noexcept;

// The exception of a signal handler that ended the calling thread's wait (the caller's from now
// on); null: none.
PyObject* take_thread_interrupt() noexcept;

}  // namespace runloom::python
