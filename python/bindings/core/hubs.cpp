#include "core/hubs.hpp"

#include "core/home.hpp"
#include "support/args.hpp"
#include "support/types.hpp"

namespace runloom::python {
namespace {

PyObject* raise_not_running() {
  PyErr_SetString(PyExc_RuntimeError, "the M:N scheduler is not running");
  return nullptr;
}

PyObject* raise_missing(const char* what) {
  PyErr_Format(PyExc_RuntimeError,
               "%s needs free-threaded CPython (3.13t), which this build is not for", what);
  return nullptr;
}

PyObject* mn_init(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const parameters[] = {"n"};
  static const Signature signature{"mn_init", parameters, 1, 0, 1};
  PyObject* value[1];
  int hubs = 0;
  if (!parse(signature, args, count, names, value) || (value[0] && !to_int(value[0], "n", hubs)))
    return nullptr;
  if (hubs < 0) {
    PyErr_SetString(PyExc_ValueError, "n must not be negative");
    return nullptr;
  }
  return raise_missing("the M:N scheduler");
}

PyObject* mn_fiber(PyObject*, PyObject*) {
  return raise_not_running();
}

PyObject* mn_run(PyObject*, PyObject*) {
  return raise_not_running();
}

PyObject* nothing_to_end(PyObject*, PyObject*) {
  Py_RETURN_NONE;
}

PyObject* mn_hub_states(PyObject*, PyObject*) {
  return PyList_New(0);
}

PyObject* preempt_init(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const parameters[] = {"quantum_us"};
  static const Signature signature{"preempt_init", parameters, 1, 0, 1};
  PyObject* value[1];
  int quantum = 10000;
  if (!parse(signature, args, count, names, value) ||
      (value[0] && !to_int(value[0], "quantum_us", quantum)))
    return nullptr;
  if (quantum <= 0) {
    PyErr_SetString(PyExc_ValueError, "quantum_us must be positive");
    return nullptr;
  }
  return raise_missing("preemption");
}

PyObject* thread_init(PyObject*, PyObject*) {
  if (!home()) return nullptr;
  Py_RETURN_NONE;
}

// The scheduler goes with its thread, when what is left in it has been given its chance.
PyObject* thread_fini(PyObject*, PyObject*) {
  if (tl_home && tl_home->running) {
    PyErr_SetString(PyExc_RuntimeError, "thread_fini() inside of run()");
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    fast_method("mn_init", &mn_init,
                "mn_init($module, /, n=0)\n--\n\n"
                "Start n hubs on threads of their own (0: as many as processors)."),
    method("mn_fiber", &mn_fiber, METH_O,
           "mn_fiber($module, fn, /)\n--\n\nStart a fiber on one of the hubs."),
    method("mn_run", &mn_run, METH_NOARGS,
           "mn_run($module, /)\n--\n\nWait until all hubs have nothing left to do."),
    method("mn_fini", &nothing_to_end, METH_NOARGS, "mn_fini($module, /)\n--\n\nEnd the hubs."),
    method("mn_hub_states", &mn_hub_states, METH_NOARGS,
           "mn_hub_states($module, /)\n--\n\nOne dict for each hub of the M:N scheduler."),
    fast_method("preempt_init", &preempt_init,
                "preempt_init($module, /, quantum_us=10000)\n--\n\n"
                "Let fibers that compute for longer be interrupted."),
    method("preempt_fini", &nothing_to_end, METH_NOARGS,
           "preempt_fini($module, /)\n--\n\nEnd that."),
    method("thread_init", &thread_init, METH_NOARGS,
           "thread_init($module, /)\n--\n\n"
           "Make the calling thread's scheduler now; else its first use does."),
    method("thread_fini", &thread_fini, METH_NOARGS,
           "thread_fini($module, /)\n--\n\n"
           "The calling thread needs its scheduler no more, which ends with the thread."),
    {},
};

}  // namespace

bool add_hub_functions(PyObject* module) {
  return PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace runloom::python
