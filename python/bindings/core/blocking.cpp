#include "runloom/sched/blocking.hpp"

#include <chrono>

#include "core/blocking.hpp"
#include "core/gil.hpp"
#include "core/park.hpp"
#include "support/errors.hpp"
#include "support/ref.hpp"
#include "support/types.hpp"

namespace runloom::python {
namespace {

struct Outcome {
  PyObject* result = nullptr;
  PyObject* error = nullptr;
};

// On a thread of the pool.
Outcome call_there(PyObject* fn, PyObject* const* args, Py_ssize_t count, PyObject* names,
                   PyObject* context) {
  const PyGILState_STATE gil = keep_stack(&PyGILState_Ensure);
  Outcome outcome;
  if (PyContext_Enter(context) == 0) {
    outcome.result = keep_stack(
        [&] { return PyObject_Vectorcall(fn, args, static_cast<size_t>(count), names); });
    if (!outcome.result) outcome.error = take_raised();
    if (PyContext_Exit(context) < 0) PyErr_Clear();
  } else {
    outcome.error = take_raised();
  }
  PyGILState_Release(gil);
  return outcome;
}

// The caller's arguments stay alive: they are referred to from its frame, or from a tuple that is.
PyObject* blocking_call(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  if (count < 1 || !PyCallable_Check(args[0])) {
    PyErr_SetString(PyExc_TypeError, "blocking() needs a callable");
    return nullptr;
  }
  if (!this_fiber::exists())
    return PyObject_Vectorcall(args[0], args + 1, static_cast<size_t>(count - 1), names);
  const Ref context = Ref::steal(PyContext_CopyCurrent());
  if (!context) return nullptr;
  ParkGuard guard;
  Result<Outcome> done =
      blocking([&] { return call_there(args[0], args + 1, count - 1, names, context.get()); });
  if (!done) return raise(done.error());
  if (done->error) raise_again(done->error);
  return done->result;
}

PyMethodDef functions[] = {
    fast_method("blocking", &blocking_call,
                "blocking($module, fn, /, *args, **kwargs)\n--\n\n"
                "Call fn(*args, **kwargs) on another thread while this fiber waits.\n\n"
                "A cancel takes back a call that has not begun, and waits for one that has.\n"
                "Outside of fibers it is called right here."),
    {},
};

}  // namespace

bool add_blocking(PyObject* module) {
  return PyModule_AddFunctions(module, functions) == 0;
}

void retire_blocking() {
  PyThreadState* state = PyEval_SaveThread();
  runloom::detail::retire_blocking_threads(Deadline::after(std::chrono::seconds(1)));
  take_gil(state);
}

}  // namespace runloom::python
