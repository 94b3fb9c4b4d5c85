// The extension module runloom_c.
#include <pybind11/pybind11.h>

#include "core/blocking.hpp"
#include "core/config.hpp"
#include "core/crash_handler.hpp"
#include "core/fork.hpp"
#include "core/gil.hpp"
#include "core/home.hpp"
#include "core/hubs.hpp"
#include "core/imports.hpp"
#include "core/interrupt.hpp"
#include "core/introspect.hpp"
#include "core/park.hpp"
#include "core/run.hpp"
#include "core/scope.hpp"
#include "core/shutdown.hpp"
#include "core/signals.hpp"
#include "core/spawn.hpp"
#include "core/stack_advice.hpp"
#include "core/traceback_signal.hpp"
#include "dns/resolve.hpp"
#include "net/net.hpp"
#include "pystate.h"
#include "server/server.hpp"
#include "support/errors.hpp"
#include "support/ref.hpp"
#include "support/types.hpp"
#include "sync/sync.hpp"
#include "tls/tls.hpp"

namespace runloom::python {
namespace {

// What runloom can't work in is refused here, with one sentence.
bool check_interpreter() {
#ifdef Py_GIL_DISABLED
  PyErr_SetString(PyExc_ImportError, "runloom does not support free-threaded Python yet");
  return false;
#endif
  if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
    PyErr_SetString(PyExc_ImportError, "runloom does not support sub-interpreters");
    return false;
  }
  return rl_pystate_check_layout() == 0;
}

// Names of runloom 0.2 that are Python.
PyObject* find_name(PyObject*, PyObject* name) {
  static const char* const kNames[] = {"TCPConn", "serve", "Coro"};
  for (const char* each : kNames) {
    if (!PyUnicode_Check(name) || PyUnicode_CompareWithASCIIString(name, each) != 0) continue;
    const Ref home = Ref::steal(PyImport_ImportModule("runloom.compat"));
    return home ? PyObject_GetAttr(home.get(), name) : nullptr;
  }
  return PyErr_Format(PyExc_AttributeError, "module 'runloom_c' has no attribute %R", name);
}

PyMethodDef functions[] = {
    method("__getattr__", &find_name, METH_O, nullptr),
    {},
};

bool init_module(PyObject* module) {
  init_thread_waits();
  return PyModule_AddFunctions(module, functions) == 0 && init_homes() && init_signals() &&
         init_errors(module) &&
         PyModule_AddStringConstant(module, "__version__", RUNLOOM_VERSION) == 0 &&
         // what there is
         init_g(module) && add_cancel_scope(module) && add_spawn_functions(module) &&
         add_park_functions(module) && add_run_functions(module) && add_blocking(module) &&
         add_config_functions(module) && add_introspect_functions(module) &&
         add_traceback_signal(module) && add_interrupt_functions(module) &&
         add_hub_functions(module) && add_crash_handler(module) && add_stack_advice(module) &&
         add_sync(module) && add_net(module) && add_tls(module) && add_dns_functions(module) &&
         add_server(module) &&
         // what the interpreter has to know
         add_fork_functions(module) && rl_pystate_watch_gc() == 0 && guard_imports() &&
         watch_interpreter_end();
}

}  // namespace
}  // namespace runloom::python

PYBIND11_MODULE(runloom_c_checked, module) {
  module.doc() = "Fibers, channels and sockets: the native part of runloom.";
  if (!runloom::python::init_module(module.ptr())) throw pybind11::error_already_set();
}

// Ahead of pybind11's own set-up, which on 3.11 waits for ever in a sub-interpreter.
PyMODINIT_FUNC PyInit_runloom_c() {
  return runloom::python::check_interpreter() ? PyInit_runloom_c_checked() : nullptr;
}
