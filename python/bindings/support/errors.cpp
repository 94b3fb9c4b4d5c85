#include "support/errors.hpp"

#include <cerrno>

#include "core/config.hpp"
#include "core/park.hpp"
#include "core/scope.hpp"
#include "runloom/sched/error.hpp"
#include "support/ref.hpp"

namespace runloom::python {

PyObject* cancelled_error = nullptr;

namespace {

PyObject* raise_errno(int err) {
  errno = err;
  return PyErr_SetFromErrno(PyExc_OSError);
}

PyObject* raise_text(PyObject* type, const char* text) {
  PyErr_SetString(type, text);
  return nullptr;
}

PyObject* raise_own(Errc error, const std::error_code& code) {
  switch (error) {
    case Errc::cancelled:
      return raise_cancelled();
    case Errc::timed_out:
      // By a scope around the call, and not by a time of its own.
      if (scope_has_ended()) return raise_cancelled();
      return raise_text(PyExc_TimeoutError, "timed out");
    case Errc::closed:
      return raise_errno(EBADF);
    case Errc::park_forbidden:
      return raise_text(PyExc_RuntimeError, forbidden_place());
    case Errc::fiber_limit:
      return PyErr_Format(PyExc_RuntimeError, "fiber limit (%llu) exceeded",
                          static_cast<unsigned long long>(config().max_fibers));
    case Errc::map_limit:
      return raise_text(PyExc_MemoryError,
                        "no stack for a fiber: the process has as many memory maps as "
                        "vm.max_map_count allows (raise it with sysctl)");
    case Errc::stack_size:
      return raise_text(PyExc_ValueError, "stack size out of range");
    case Errc::thread_limit:
      return raise_text(PyExc_RuntimeError, "can't start new thread");
    case Errc::self_connect:
      return raise_errno(ECONNREFUSED);
    case Errc::unread_data:
      return raise_errno(EBUSY);
    default:
      return raise_text(PyExc_RuntimeError, code.message().c_str());
  }
}

}  // namespace

PyObject* raise(std::error_code error) {
  if (error.category() == std::system_category() || error.category() == std::generic_category())
    return raise_errno(error.value());
  if (error.category() == error_category())
    return raise_own(static_cast<Errc>(error.value()), error);
  return raise_text(PyExc_RuntimeError, error.message().c_str());
}

#if PY_VERSION_HEX >= 0x030C0000
PyObject* take_raised() noexcept {
  return PyErr_GetRaisedException();
}
void raise_again(PyObject* exception) noexcept {
  PyErr_SetRaisedException(exception);
}
#else
PyObject* take_raised() noexcept {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  if (!type) return nullptr;
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback) PyException_SetTraceback(value, traceback);
  Py_XDECREF(traceback);
  Py_DECREF(type);
  return value;
}
void raise_again(PyObject* exception) noexcept {
  PyErr_Restore(Py_NewRef(Py_TYPE(exception)), exception, PyException_GetTraceback(exception));
}
#endif

bool init_errors(PyObject* module) {
  cancelled_error = PyErr_NewExceptionWithDoc(
      "runloom.Cancelled",
      "Raised by a call that would park, or is parked, in a fiber that was cancelled.\n\n"
      "Every further parking call of the fiber raises it too.",
      PyExc_BaseException, nullptr);
  return cancelled_error && PyModule_AddObjectRef(module, "Cancelled", cancelled_error) == 0;
}

}  // namespace runloom::python
