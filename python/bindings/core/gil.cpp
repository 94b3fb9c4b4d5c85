#include "core/gil.hpp"

#include <unistd.h>

#include <utility>

#include "runloom/sched/park.hpp"
#include "support/errors.hpp"

namespace runloom::python {
namespace {

// Only the main thread runs handlers, so there is one.
PyObject* interrupt = nullptr;

void* before_wait() {
  return holds_gil() ? PyEval_SaveThread() : nullptr;
}

// For a wait that ended in success at the very moment at which the handler raised.
int raise_late(void*) {
  PyObject* late = take_thread_interrupt();
  if (!late) return 0;
  raise_again(late);
  return -1;
}

void after_wait(void* state) {
  if (!state) return;
  take_gil(static_cast<PyThreadState*>(state));
  if (interrupt) Py_AddPendingCall(&raise_late, nullptr);
}

bool interrupted(void* state) {
  if (!state) return false;
  take_gil(static_cast<PyThreadState*>(state));
  const bool raised = PyErr_CheckSignals() < 0;
  if (raised) Py_XSETREF(interrupt, take_raised());
  PyEval_SaveThread();
  return raised;
}

}  // namespace

PyObject* take_thread_interrupt() noexcept {
  return std::exchange(interrupt, nullptr);
}

void stop_thread() noexcept {
  for (;;)
    ::pause();
}

void take_gil(PyThreadState* state) {
  keep_stack([state] { PyEval_RestoreThread(state); });
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
  runloom::detail::set_thread_wait_hooks(
      {.before = &before_wait, .after = &after_wait, .interrupted = &interrupted});
}

}  // namespace runloom::python
