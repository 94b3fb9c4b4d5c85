#include "core/gil.hpp"

#include <cxxabi.h>
#include <unistd.h>

#include "runloom/sched/park.hpp"

namespace runloom::python {
namespace {

void* before_wait() {
  return holds_gil() ? PyEval_SaveThread() : nullptr;
}

void after_wait(void* state) {
  if (state) take_gil(static_cast<PyThreadState*>(state));
}

}  // namespace

void take_gil(PyThreadState* state) {
  try {
    PyEval_RestoreThread(state);
  } catch (const abi::__forced_unwind&) {
    for (;;)
      ::pause();
  }
}

bool holds_gil() noexcept {
  // Not PyGILState_Check(), which is always true once a sub-interpreter has been made.
  PyThreadState* own = PyGILState_GetThisThreadState();
#if PY_VERSION_HEX >= 0x030D0000
  return own && own == PyThreadState_GetUnchecked();
#else
  return own && own == _PyThreadState_UncheckedGet();
#endif
}

void init_thread_waits() noexcept {
  runloom::detail::set_thread_wait_hooks({.before = &before_wait, .after = &after_wait});
}

}  // namespace runloom::python
