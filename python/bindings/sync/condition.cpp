#include <new>

#include "runloom/sched/cond_var.hpp"
#include "support/args.hpp"
#include "support/object.hpp"
#include "support/ref.hpp"
#include "sync/lock.hpp"
#include "sync/sync.hpp"
#include "sync/wait.hpp"

namespace runloom::python {
namespace {

struct Condition {
  PyObject_HEAD PyObject* weakrefs;
  PyObject* lock_object;  // owns what `lock` points to
  AnyLock lock;
  CondVar changed;
};

Condition& as_condition(PyObject* self) noexcept {
  return *reinterpret_cast<Condition*>(self);
}

bool require_held(const Condition& condition, const char* what) {
  if (condition.lock.held()) return true;
  PyErr_Format(PyExc_RuntimeError, "cannot %s on un-acquired lock", what);
  return false;
}

Result<void> wait_until(Condition& condition, Deadline deadline) {
  SharedWait wait;
  return condition.lock.with([&](auto& mutex) { return condition.changed.wait(mutex, deadline); });
}

PyObject* wait(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const parameters[] = {"timeout"};
  static const Signature signature{"wait", parameters, 1, 0, 1};
  PyObject* value[1];
  Deadline deadline;
  Condition& condition = as_condition(self);
  if (!parse(signature, args, count, names, value) || !to_deadline(value[0], deadline) ||
      !require_held(condition, "wait"))
    return nullptr;
  return true_or_timed_out(wait_until(condition, deadline), deadline);
}

// Returns what the predicate said last.
PyObject* wait_for(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const parameters[] = {"predicate", "timeout"};
  static const Signature signature{"wait_for", parameters, 2, 1, 2};
  PyObject* value[2];
  Deadline deadline;
  Condition& condition = as_condition(self);
  if (!parse(signature, args, count, names, value) || !to_deadline(value[1], deadline) ||
      !require_held(condition, "wait"))
    return nullptr;
  bool timed_out = false;
  for (;;) {
    Ref answer = Ref::steal(PyObject_CallNoArgs(value[0]));
    const int is_true = answer ? PyObject_IsTrue(answer.get()) : -1;
    if (is_true < 0) return nullptr;
    if (is_true || timed_out) return answer.release();
    const Result<void> woken = wait_until(condition, deadline);
    timed_out = !woken && own_time_is_up(woken.error(), deadline);
    if (!woken && !timed_out) return raise(woken.error());
  }
}

PyObject* notify(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const parameters[] = {"n"};
  static const Signature signature{"notify", parameters, 1, 0, 1};
  PyObject* value[1];
  Py_ssize_t number = 1;
  Condition& condition = as_condition(self);
  if (!parse(signature, args, count, names, value) ||
      (value[0] && !to_size(value[0], "n", number)) || !require_held(condition, "notify"))
    return nullptr;
  if (number > 0) condition.changed.notify(static_cast<std::size_t>(number));
  Py_RETURN_NONE;
}

PyObject* notify_all(PyObject* self, PyObject*) {
  Condition& condition = as_condition(self);
  if (!require_held(condition, "notify")) return nullptr;
  condition.changed.notify_all();
  Py_RETURN_NONE;
}

// ---------------------------------------------------------------- the lock's own methods

PyObject* acquire(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const parameters[] = {"blocking", "timeout"};
  static const Signature signature{"acquire", parameters, 2, 0, 2};
  PyObject* value[2];
  Deadline deadline;
  if (!parse(signature, args, count, names, value) ||
      !to_acquire_deadline(value[0], value[1], deadline))
    return nullptr;
  return true_or_timed_out(
      as_condition(self).lock.with([&](auto& mutex) { return lock_until(mutex, deadline); }),
      deadline);
}

PyObject* enter(PyObject* self, PyObject*) {
  return true_or_timed_out(as_condition(self).lock.with(
                               [](auto& mutex) { return lock_until(mutex, Deadline::never()); }),
                           Deadline::never());
}

PyObject* release(PyObject* self, PyObject*) {
  if (as_condition(self).lock.with([](auto& mutex) { return mutex.try_unlock(); })) Py_RETURN_NONE;
  PyErr_SetString(PyExc_RuntimeError, "cannot release un-acquired lock");
  return nullptr;
}

PyObject* leave(PyObject* self, PyObject* const*, Py_ssize_t) {
  return release(self, nullptr);
}

PyObject* locked(PyObject* self, PyObject*) {
  return PyBool_FromLong(as_condition(self).lock.with([](auto& mutex) { return mutex.locked(); }));
}

// ---------------------------------------------------------------- object protocol

PyObject* make(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* const parameters[] = {"lock"};
  static const Signature signature{"Condition", parameters, 1, 0, 1};
  PyObject* value[1];
  if (!parse_constructor(signature, args, kwargs, value)) return nullptr;
  Ref object = is_given(value[0])
                   ? Ref::share(value[0])
                   : Ref::steal(PyObject_CallNoArgs(reinterpret_cast<PyObject*>(lock_type)));
  AnyLock lock;
  if (!object || !AnyLock::from(object.get(), lock)) return nullptr;
  PyObject* self = type->tp_alloc(type, 0);
  if (!self) return nullptr;
  Condition& condition = as_condition(self);
  condition.lock_object = object.release();
  new (&condition.lock) AnyLock(lock);
  new (&condition.changed) CondVar();
  return self;
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(as_condition(self).lock_object);
  return 0;
}

// The lock goes with the condition only: methods rely on it.
void dealloc(PyObject* self) {
  Condition& condition = as_condition(self);
  PyObject_GC_UnTrack(self);
  if (condition.weakrefs) PyObject_ClearWeakRefs(self);
  condition.changed.~CondVar();
  Py_DECREF(condition.lock_object);
  free_instance(self);
}

PyMethodDef methods[] = {
    fast_method("wait", &wait,
                "wait($self, /, timeout=None)\n--\n\n"
                "Release the lock, wait for a notification, take the lock again; False when the "
                "time was up first."),
    fast_method("wait_for", &wait_for,
                "wait_for($self, /, predicate, timeout=None)\n--\n\n"
                "Wait until predicate() is true; returns what it said last."),
    fast_method("notify", &notify,
                "notify($self, /, n=1)\n--\n\nWake those n who have waited longest."),
    method("notify_all", &notify_all, METH_NOARGS,
           "notify_all($self, /)\n--\n\nWake all who wait."),
    fast_method("acquire", &acquire,
                "acquire($self, /, blocking=True, timeout=-1)\n--\n\nAcquire the lock."),
    method("release", &release, METH_NOARGS, "release($self, /)\n--\n\nRelease the lock."),
    method("locked", &locked, METH_NOARGS, "locked($self, /)\n--\n\nWhether the lock is locked."),
    method("__enter__", &enter, METH_NOARGS, "__enter__($self, /)\n--\n\nAcquire the lock."),
    method("__exit__", &leave, METH_FASTCALL,
           "__exit__($self, /, *exc_info)\n--\n\nRelease the lock."),
    {},
};

PyMemberDef members[] = {weakref_member(), {}};

PyType_Slot slots[] = {
    slot(Py_tp_doc, const_cast<char*>("Condition(lock=None)\n--\n\n"
                                      "Waits for a change of what a Lock or RLock protects; for "
                                      "fibers and OS threads.")),
    slot(Py_tp_new, &make),
    slot(Py_tp_dealloc, &dealloc),
    slot(Py_tp_traverse, &traverse),
    slot(Py_tp_methods, static_cast<void*>(methods)),
    slot(Py_tp_members, static_cast<void*>(members)),
    {},
};

PyType_Spec spec = {
    "runloom_c.Condition", sizeof(Condition), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE,
    slots};

}  // namespace

bool add_condition(PyObject* module) {
  return add_type(module, spec) != nullptr;
}

}  // namespace runloom::python
