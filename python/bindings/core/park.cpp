#include "core/park.hpp"

#include <cstddef>

#include "core/g.hpp"
#include "core/gil.hpp"
#include "core/scope.hpp"
#include "runloom/sched/error.hpp"
#include "structmember.h"
#include "support/args.hpp"
#include "support/errors.hpp"
#include "support/ref.hpp"
#include "support/types.hpp"

namespace runloom::python {

const char* forbidden_place() noexcept {
  const G* g = current_g();
  if (g && g->noyield) return "a fiber_noyield() fiber can't wait";
  if (tl_home && rl_pystate_in_gc(tl_home->pyhub))
    return "a fiber can't wait inside a finaliser or callback that the garbage collector runs";
  return "a fiber can't wait inside a trace or profile function";
}

PyObject* raise_cancelled() {
  G* g = current_g();
  PyObject* thread_interrupt = g ? nullptr : take_thread_interrupt();
  if (thread_interrupt) {
    raise_again(thread_interrupt);
    return nullptr;
  }
  if (!g || !g->interrupt) {
    PyErr_SetString(cancelled_error, g && g->scopes && !g->cancelled ? "the scope was cancelled"
                                                                     : "the fiber was cancelled");
    return nullptr;
  }
  if (!g->cancelled) g->fiber.uncancel();
  raise_again(std::exchange(g->interrupt, nullptr));
  return nullptr;
}

namespace {

PyObject* none_or_raise(const Result<void>& result) {
  if (result) [[likely]]
    Py_RETURN_NONE;
  return raise(result.error());
}

// ---------------------------------------------------------------- sched_yield

PyObject* yield_now() {
  const G* g = current_g();
  if (!g) Py_RETURN_NONE;
  if (g->noyield || !may_park(*tl_home)) [[unlikely]]
    return raise(make_error_code(Errc::park_forbidden));
  this_fiber::yield();
  return none_or_raise(this_fiber::check_cancelled());
}

PyObject* sched_yield_classic(PyObject*, PyObject*) {
  return yield_now();
}

// sched_yield is an object of its own with a vectorcall, which spares a builtin function's checks.
struct Yielder {
  PyObject_HEAD vectorcallfunc call;
};

PyObject* call_yielder(PyObject*, PyObject* const*, size_t count, PyObject* names) {
  if (PyVectorcall_NARGS(count) != 0 || (names && PyTuple_GET_SIZE(names) != 0)) [[unlikely]] {
    PyErr_SetString(PyExc_TypeError, "sched_yield() takes no arguments");
    return nullptr;
  }
  return yield_now();
}

PyObject* yielder_repr(PyObject*) {
  return PyUnicode_FromString("<built-in function sched_yield>");
}

void yielder_dealloc(PyObject* self) {
  free_instance(self);
}

// For inspect.signature(), which does not look into callables of C.
PyObject* yielder_signature(PyObject*, void*) {
  const Ref inspect = Ref::steal(PyImport_ImportModule("inspect"));
  return inspect ? PyObject_CallMethod(inspect.get(), "Signature", nullptr) : nullptr;
}

PyObject* yielder_name(PyObject*, void*) {
  return PyUnicode_FromString("sched_yield");
}

// A copy of a function is the function, and a pickle its name.
PyObject* yielder_reduce(PyObject*, PyObject*) {
  return PyUnicode_FromString("sched_yield");
}

PyMethodDef yielder_methods[] = {
    method("__reduce__", &yielder_reduce, METH_NOARGS, nullptr),
    {},
};

PyGetSetDef yielder_properties[] = {
    {"__name__", &yielder_name, nullptr, nullptr, nullptr},
    {"__qualname__", &yielder_name, nullptr, nullptr, nullptr},
    {"__signature__", &yielder_signature, nullptr, nullptr, nullptr},
    {},
};

PyMemberDef yielder_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Yielder, call), READONLY, nullptr},
    {},
};

PyType_Slot yielder_slots[] = {
    slot(Py_tp_doc, const_cast<char*>("sched_yield($self, /)\n--\n\n"
                                      "Let the other fibers that are ready run first.")),
    slot(Py_tp_dealloc, &yielder_dealloc),
    slot(Py_tp_repr, &yielder_repr),
    slot(Py_tp_call, &PyVectorcall_Call),
    slot(Py_tp_methods, static_cast<void*>(yielder_methods)),
    slot(Py_tp_members, static_cast<void*>(yielder_members)),
    slot(Py_tp_getset, static_cast<void*>(yielder_properties)),
    {},
};

PyType_Spec yielder_spec = {"runloom_c._SchedYield", sizeof(Yielder), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE |
                                Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_HAVE_VECTORCALL,
                            yielder_slots};

bool add_yielder(PyObject* module) {
  const Ref type = Ref::steal(PyType_FromModuleAndSpec(module, &yielder_spec, nullptr));
  if (!type) return false;
  auto* yielder = PyObject_New(Yielder, reinterpret_cast<PyTypeObject*>(type.get()));
  if (!yielder) return false;
  yielder->call = &call_yielder;
  const Ref keep = Ref::steal(reinterpret_cast<PyObject*>(yielder));
  return PyModule_AddObjectRef(module, "sched_yield", keep.get()) == 0;
}

// ---------------------------------------------------------------- sleep, park, wake

PyObject* sched_sleep(PyObject*, PyObject* value) {
  double seconds;
  if (!to_seconds(value, "seconds", seconds)) return nullptr;
  G* g = current_g();
  if (!g) Py_RETURN_NONE;
  ParkGuard guard;
  if (seconds <= 0) return yield_now();
  const Deadline until = after_seconds(seconds);
  g->wakes_ns = until.ns();
  return none_or_raise(this_fiber::sleep_until(until));
}

PyObject* time_sleep = nullptr;

PyObject* sleep(PyObject* self, PyObject* value) {
  if (current_g()) return sched_sleep(self, value);
  double seconds;
  if (!to_seconds(value, "seconds", seconds)) return nullptr;
  if (seconds <= 0) Py_RETURN_NONE;
  return PyObject_CallOneArg(time_sleep, value);
}

PyObject* park_self(PyObject*, PyObject*) {
  if (!current_g()) Py_RETURN_NONE;
  ParkGuard guard;
  return none_or_raise(this_fiber::park());
}

PyObject* park(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const parameters[] = {"timeout", "foreign_wakeable"};
  static const Signature signature{"park", parameters, 2, 0, 2};
  PyObject* value[2];
  Deadline deadline;
  if (!parse(signature, args, count, names, value) || !to_deadline(value[0], deadline))
    return nullptr;
  const int foreign = value[1] ? PyObject_IsTrue(value[1]) : 0;
  if (foreign < 0) return nullptr;
  if (!current_g()) {
    PyErr_SetString(PyExc_RuntimeError, "park() outside of a fiber");
    return nullptr;
  }
  ParkGuard guard;
  const Result<void> parked = this_fiber::park(deadline, foreign != 0);
  if (parked) Py_RETURN_FALSE;
  if (own_time_is_up(parked.error(), deadline)) Py_RETURN_TRUE;
  return raise(parked.error());
}

PyObject* unpark_many(PyObject*, PyObject* handles) {
  const Ref list = Ref::steal(PySequence_Fast(handles, "unpark_many() needs an iterable of G"));
  if (!list) return nullptr;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list.get()); ++i) {
    PyObject* each = PySequence_Fast_GET_ITEM(list.get(), i);
    if (!Py_IS_TYPE(each, g_type)) {
      PyErr_Format(PyExc_TypeError, "unpark_many() needs handles of fibers, not %.100s",
                   Py_TYPE(each)->tp_name);
      return nullptr;
    }
  }
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(list.get()); ++i) {
    auto* g = reinterpret_cast<G*>(PySequence_Fast_GET_ITEM(list.get(), i));
    if (g->home) g->fiber.unpark();
  }
  Py_RETURN_NONE;
}

PyObject* current(PyObject*, PyObject*) {
  G* g = current_g();
  return Py_NewRef(g ? g->object() : Py_None);
}

PyMethodDef functions[] = {
    method("sched_yield_classic", &sched_yield_classic, METH_NOARGS,
           "sched_yield_classic($module, /)\n--\n\nAs sched_yield()."),
    method("sched_sleep", &sched_sleep, METH_O,
           "sched_sleep($module, seconds, /)\n--\n\n"
           "Let other fibers run for at least so long. Outside of fibers it returns at once."),
    method("sleep", &sleep, METH_O,
           "sleep($module, seconds, /)\n--\n\n"
           "Let other fibers run for at least so long. Outside of fibers the thread sleeps."),
    method("park_self", &park_self, METH_NOARGS,
           "park_self($module, /)\n--\n\n"
           "Wait until the fiber's handle is woken; each wake() ends one wait, past or to come."),
    fast_method("park", &park,
                "park($module, /, timeout=None, foreign_wakeable=False)\n--\n\n"
                "As park_self(), up to a time. Returns True when the time is up.\n\n"
                "With foreign_wakeable another OS thread is expected to wake it: run() waits."),
    method("unpark_many", &unpark_many, METH_O,
           "unpark_many($module, handles, /)\n--\n\nwake() each of them."),
    method("current_g", &current, METH_NOARGS,
           "current_g($module, /)\n--\n\nThe running fiber's handle; None outside of fibers."),
    {},
};

}  // namespace

bool add_park_functions(PyObject* module) {
  // The function as it is now: it may be replaced by one that calls us.
  const Ref time = Ref::steal(PyImport_ImportModule("time"));
  if (time) time_sleep = PyObject_GetAttrString(time.get(), "sleep");
  if (!time_sleep) return false;
  return add_yielder(module) && PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace runloom::python
