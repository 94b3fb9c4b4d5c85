#include "core/scope.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <utility>

#include "runloom/sched/cancel.hpp"
#include "support/args.hpp"
#include "support/errors.hpp"
#include "support/object.hpp"
#include "support/types.hpp"

namespace runloom::python {

// Guarded by the GIL.
struct Scope {
  PyObject_HEAD PyObject* weakrefs;
  G* g;          // of the fiber that is in it; null: none is
  Scope* outer;  // of the same fiber
  double deadline;
  bool shield;
  bool entered;  // once
  bool cancel_called;
  bool caught;
  // While a fiber is in it. A shield hides the deadline of its own scope as well, so it is around.
  alignas(Shield) std::byte shield_memory[sizeof(Shield)];
  alignas(CancelScope) std::byte scope_memory[sizeof(CancelScope)];

  Shield& around() noexcept { return *std::launder(reinterpret_cast<Shield*>(shield_memory)); }
  CancelScope& scope() noexcept {
    return *std::launder(reinterpret_cast<CancelScope*>(scope_memory));
  }
};

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

Scope& as_scope(PyObject* self) noexcept {
  return *reinterpret_cast<Scope*>(self);
}

double now() noexcept {
  return static_cast<double>(monotonic_ns()) / 1e9;
}

// Of the clock of time.monotonic().
Deadline at_seconds(double when) noexcept {
  if (when == kNever) return Deadline::never();
  const double ns = std::ceil(when * 1e9);
  if (ns >= 9.0e18) return Deadline::never();
  return Deadline::at_ns(ns <= 0 ? 0 : static_cast<std::int64_t>(ns));
}

bool to_moment(PyObject* value, const char* what, double& when) {
  when = kNever;
  return value == Py_None || to_seconds(value, what, when);
}

// ---------------------------------------------------------------- entering and leaving

PyObject* make(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  static const char* const parameters[] = {"timeout", "deadline", "shield"};
  static const Signature signature{"CancelScope", parameters, 3, 0, 1};
  PyObject* value[3];
  double timeout = kNever, deadline = kNever;
  if (!parse_constructor(signature, args, keywords, value) ||
      (value[0] && !to_moment(value[0], "timeout", timeout)) ||
      (value[1] && !to_moment(value[1], "deadline", deadline)))
    return nullptr;
  const int shield = value[2] ? PyObject_IsTrue(value[2]) : 0;
  if (shield < 0) return nullptr;
  PyObject* self = type->tp_alloc(type, 0);
  if (!self) return nullptr;
  const double after = timeout == kNever ? kNever : now() + std::max(timeout, 0.0);
  as_scope(self).deadline = std::min(after, deadline);
  as_scope(self).shield = shield != 0;
  return self;
}

PyObject* enter(PyObject* self, PyObject*) {
  Scope& scope = as_scope(self);
  G* g = current_g();
  if (!g) {
    PyErr_SetString(PyExc_RuntimeError, "a CancelScope needs a fiber around it");
    return nullptr;
  }
  if (scope.entered) {
    PyErr_SetString(PyExc_RuntimeError, "a CancelScope can be entered once");
    return nullptr;
  }
  scope.entered = true;
  scope.g = g;
  scope.outer = g->scopes;
  if (scope.shield) new (scope.shield_memory) Shield;
  new (scope.scope_memory) CancelScope(at_seconds(scope.deadline));
  if (scope.cancel_called) scope.scope().cancel();
  g->scopes = &scope;
  Py_INCREF(self);
  return Py_NewRef(self);
}

// Leaves the innermost scope of the calling fiber.
void leave_innermost(G& g) noexcept {
  Scope& scope = *g.scopes;
  g.scopes = scope.outer;
  scope.g = nullptr;
  scope.scope().~CancelScope();
  if (scope.shield) scope.around().~Shield();
  Py_DECREF(reinterpret_cast<PyObject*>(&scope));
}

bool has_passed(const Scope& scope) noexcept {
  return scope.deadline != kNever && at_seconds(scope.deadline).passed();
}

// __exit__(type, value, traceback): whether the exception is this scope's own Cancelled.
PyObject* leave(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  Scope& scope = as_scope(self);
  if (count != 3) {
    PyErr_SetString(PyExc_TypeError, "__exit__() takes 3 arguments");
    return nullptr;
  }
  // Its fiber has ended before a generator that was in it.
  if (!scope.g) Py_RETURN_FALSE;
  G* const g = current_g();
  if (scope.g != g) {
    PyErr_SetString(PyExc_RuntimeError,
                    "a CancelScope was left on another fiber than it was entered on");
    return nullptr;
  }
  const bool in_order = g->scopes == &scope;
  while (g->scopes != &scope)
    leave_innermost(*g);
  const bool ended = scope.cancel_called || has_passed(scope);
  leave_innermost(*g);
  if (!in_order) {
    PyErr_SetString(PyExc_RuntimeError, "a CancelScope was left before one that is inside it");
    return nullptr;
  }
  if (args[0] == Py_None || !PyErr_GivenExceptionMatches(args[0], cancelled_error) || !ended)
    Py_RETURN_FALSE;
  // Of an outer scope as well: its border is where it ends. A shield has hidden those.
  if (!scope.shield && scope_has_ended()) Py_RETURN_FALSE;
  scope.caught = true;
  Py_RETURN_TRUE;
}

// ---------------------------------------------------------------- methods

PyObject* cancel(PyObject* self, PyObject*) {
  Scope& scope = as_scope(self);
  scope.cancel_called = true;
  if (scope.g) scope.scope().cancel();
  Py_RETURN_NONE;
}

PyObject* get_deadline(PyObject* self, void*) {
  return PyFloat_FromDouble(as_scope(self).deadline);
}

int set_deadline(PyObject* self, PyObject* value, void*) {
  Scope& scope = as_scope(self);
  double when;
  if (!value) {
    PyErr_SetString(PyExc_AttributeError, "deadline can't be deleted");
    return -1;
  }
  if (!to_moment(value, "deadline", when)) return -1;
  const double before = std::exchange(scope.deadline, when);
  if (!scope.g) return 0;
  scope.scope().set_deadline(at_seconds(when));
  // An end can't be taken back: the fiber may have been woken by it already, and would find a
  // timeout that is nobody's.
  if (before != kNever && at_seconds(before).passed()) {
    scope.cancel_called = true;
    scope.scope().cancel();
  }
  return 0;
}

PyObject* get_cancel_called(PyObject* self, void*) {
  const Scope& scope = as_scope(self);
  return PyBool_FromLong(scope.cancel_called || has_passed(scope));
}
PyObject* get_cancelled_caught(PyObject* self, void*) {
  return PyBool_FromLong(as_scope(self).caught);
}
PyObject* get_shield(PyObject* self, void*) {
  return PyBool_FromLong(as_scope(self).shield);
}

PyObject* repr(PyObject* self) {
  const Scope& scope = as_scope(self);
  return PyUnicode_FromFormat("<%s at %p: %s%s>", Py_TYPE(self)->tp_name, self,
                              scope.g         ? "entered"
                              : scope.entered ? "left"
                                              : "new",
                              scope.cancel_called || has_passed(scope) ? ", cancelled" : "");
}

void dealloc(PyObject* self) {
  if (as_scope(self).weakrefs) PyObject_ClearWeakRefs(self);
  free_instance(self);
}

PyMethodDef methods[] = {
    method("__enter__", &enter, METH_NOARGS, nullptr),
    method("__exit__", &leave, METH_FASTCALL, nullptr),
    method("cancel", &cancel, METH_NOARGS,
           "cancel($self, /)\n--\n\n"
           "Let every call that waits inside raise Cancelled, until the scope is left."),
    {},
};

PyGetSetDef properties[] = {
    {"deadline", &get_deadline, &set_deadline,
     "When it is cancelled by itself, on the clock of time.monotonic(); inf: never.", nullptr},
    {"cancel_called", &get_cancel_called, nullptr,
     "Whether it was cancelled, or its deadline has passed.", nullptr},
    {"cancelled_caught", &get_cancelled_caught, nullptr,
     "Whether it has ended its block, at whose end the exception was caught.", nullptr},
    {"shield", &get_shield, nullptr, "Whether what is around it is hidden inside.", nullptr},
    {},
};

PyMemberDef members[] = {weakref_member(), {}};

constexpr char kDoc[] =
    "CancelScope(timeout=None, *, deadline=None, shield=False)\n--\n\n"
    "A block that can be cancelled: with CancelScope() as scope.\n\n"
    "After scope.cancel(), or past the deadline, every call inside that waits raises\n"
    "runloom.Cancelled, until the block is left, which catches it. The timeout counts from now.\n"
    "With shield=True the block is not reached by scopes around it or by G.cancel(): for\n"
    "clean-up. Entered once, on a fiber.";

}  // namespace

bool scope_has_ended() noexcept {
  return this_fiber::exists() && !this_fiber::check_cancelled();
}

void leave_scopes(G& g) noexcept {
  while (g.scopes)
    leave_innermost(g);
}

void forget_scopes(G& g) noexcept {
  while (Scope* scope = g.scopes) {
    g.scopes = scope->outer;
    scope->g = nullptr;
    Py_DECREF(reinterpret_cast<PyObject*>(scope));
  }
}

bool add_cancel_scope(PyObject* module) {
  PyType_Slot slots[] = {
      slot(Py_tp_doc, const_cast<char*>(kDoc)),
      slot(Py_tp_new, &make),
      slot(Py_tp_repr, &repr),
      slot(Py_tp_dealloc, &dealloc),
      slot(Py_tp_methods, static_cast<void*>(methods)),
      slot(Py_tp_getset, static_cast<void*>(properties)),
      slot(Py_tp_members, static_cast<void*>(members)),
      {},
  };
  PyType_Spec spec = {"runloom.CancelScope", sizeof(Scope), 0,
                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};
  return add_type(module, spec) != nullptr;
}

}  // namespace runloom::python
