#include "core/shutdown.hpp"

#include "core/blocking.hpp"
#include "core/home.hpp"
#include "support/ref.hpp"

namespace runloom::python {
namespace {

// Called on the main thread before other threads are joined and before atexit's functions.
PyObject* interpreter_ends(PyObject*, PyObject*) {
  refuse_homes();
  if (tl_home) close_home(*tl_home);
  retire_blocking();
  Py_RETURN_NONE;
}

PyMethodDef hook = {"runloom_end", &interpreter_ends, METH_NOARGS, nullptr};

}  // namespace

bool watch_interpreter_end() {
  const Ref threading = Ref::steal(PyImport_ImportModule("threading"));
  const Ref function = Ref::steal(PyCFunction_New(&hook, nullptr));
  if (!threading || !function) return false;
  return static_cast<bool>(
      Ref::steal(PyObject_CallMethod(threading.get(), "_register_atexit", "O", function.get())));
}

}  // namespace runloom::python
