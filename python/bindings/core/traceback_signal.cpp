#include "core/traceback_signal.hpp"

#include <signal.h>

#include <cerrno>

#include "core/config.hpp"
#include "runloom/sched/error.hpp"
#include "runloom/sched/fault.hpp"
#include "support/args.hpp"
#include "support/errors.hpp"
#include "support/types.hpp"

namespace runloom::python {
namespace {

bool timestamps = false;

void on_signal(int) noexcept {
  const int err = errno;
  dump_all_fibers(2);
  errno = err;
}

bool install(int number) noexcept {
  struct sigaction action {};
  action.sa_handler = &on_signal;
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  ::sigemptyset(&action.sa_mask);
  return ::sigaction(number, &action, nullptr) == 0;
}

PyObject* install_traceback_signal(PyObject*, PyObject* const* args, Py_ssize_t count,
                                   PyObject* names) {
  static const char* const parameters[] = {"signum"};
  static const Signature signature{"install_traceback_signal", parameters, 1, 0, 1};
  PyObject* value[1];
  int number = SIGQUIT;
  if (!parse(signature, args, count, names, value) ||
      (value[0] && !to_int(value[0], "signum", number)))
    return nullptr;
  if (!install(number)) return raise(last_errno());
  return PyLong_FromLong(number);
}

PyObject* set_introspect_timestamps(PyObject*, PyObject* value) {
  const int on = PyObject_IsTrue(value);
  if (on < 0) return nullptr;
  timestamps = on != 0;
  Py_RETURN_NONE;
}

PyObject* get_introspect_timestamps(PyObject*, PyObject*) {
  return PyBool_FromLong(timestamps);
}

PyMethodDef functions[] = {
    fast_method("install_traceback_signal", &install_traceback_signal,
                "install_traceback_signal($module, /, signum=3)\n--\n\n"
                "Let a signal (SIGQUIT) write a line for each fiber to stderr; return its number."
                "\n\nRUNLOOM_TRACEBACK=1 does it at the start."),
    method(
        "set_introspect_timestamps", &set_introspect_timestamps, METH_O,
        "set_introspect_timestamps($module, on, /)\n--\n\n"
        "Ask for the time since which a fiber waits. It costs nothing here and is always there."),
    method("get_introspect_timestamps", &get_introspect_timestamps, METH_NOARGS,
           "get_introspect_timestamps($module, /)\n--\n\nWhether it was asked for."),
    {},
};

}  // namespace

bool add_traceback_signal(PyObject* module) {
  timestamps = environment_switch("RUNLOOM_INTROSPECT_TIME", false);
  if (environment_switch("RUNLOOM_TRACEBACK", false)) install(SIGQUIT);
  return PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace runloom::python
