#include "sync/lock.hpp"

#include <type_traits>

#include "support/args.hpp"
#include "support/object.hpp"
#include "sync/sync.hpp"
#include "sync/wait.hpp"

namespace runloom::python {

PyTypeObject* lock_type = nullptr;
PyTypeObject* rlock_type = nullptr;

namespace {

template <class M>
PyObject* acquire(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const parameters[] = {"blocking", "timeout"};
  static const Signature signature{"acquire", parameters, 2, 0, 2};
  PyObject* value[2];
  Deadline deadline;
  if (!parse(signature, args, count, names, value) ||
      !to_acquire_deadline(value[0], value[1], deadline))
    return nullptr;
  return true_or_timed_out(lock_until(unwrap<M>(self), deadline), deadline);
}

template <class M>
PyObject* enter(PyObject* self, PyObject*) {
  const Result<void> locked = lock_until(unwrap<M>(self), Deadline::never());
  if (!locked) return raise(locked.error());
  Py_RETURN_TRUE;
}

// Mutex.lock() and Mutex.__enter__.
PyObject* lock(PyObject* self, PyObject*) {
  const Result<void> locked = lock_until(unwrap<Mutex>(self), Deadline::never());
  if (!locked) return raise(locked.error());
  Py_RETURN_NONE;
}

PyObject* enter_mutex(PyObject* self, PyObject*) {
  const Result<void> locked = lock_until(unwrap<Mutex>(self), Deadline::never());
  return locked ? Py_NewRef(self) : raise(locked.error());
}

template <class M>
PyObject* release(PyObject* self, PyObject*) {
  if (unwrap<M>(self).try_unlock()) [[likely]]
    Py_RETURN_NONE;
  PyErr_SetString(PyExc_RuntimeError, std::is_same_v<M, Mutex> ? "release unlocked lock"
                                                               : "cannot release un-acquired lock");
  return nullptr;
}

template <class M>
PyObject* leave(PyObject* self, PyObject* const*, Py_ssize_t) {
  return release<M>(self, nullptr);
}

PyObject* try_lock(PyObject* self, PyObject*) {
  return PyBool_FromLong(unwrap<Mutex>(self).try_lock());
}

template <class M>
PyObject* locked(PyObject* self, PyObject*) {
  return PyBool_FromLong(unwrap<M>(self).locked());
}

PyObject* is_owned(PyObject* self, PyObject*) {
  return PyBool_FromLong(unwrap<RecursiveMutex>(self).owned());
}

template <class M>
PyObject* make(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  if (!takes_no_arguments(type, args, kwargs)) return nullptr;
  return make_instance<M>(type);
}

template <class M>
PyObject* repr(PyObject* self) {
  return PyUnicode_FromFormat("<%s %s at %p>", unwrap<M>(self).locked() ? "locked" : "unlocked",
                              Py_TYPE(self)->tp_name, self);
}

constexpr char kAcquireDoc[] =
    "acquire($self, /, blocking=True, timeout=-1)\n--\n\n"
    "Lock it, waiting for it if need be; False when the time was up first.";
constexpr char kEnterDoc[] = "__enter__($self, /)\n--\n\nLock it.";
constexpr char kExitDoc[] = "__exit__($self, /, *exc_info)\n--\n\nUnlock it.";
constexpr char kLockedDoc[] = "locked($self, /)\n--\n\nWhether it is locked.";
constexpr char kReleaseDoc[] =
    "release($self, /)\n--\n\nUnlock it: who has waited longest has it next.";

PyMethodDef lock_methods[] = {
    fast_method("acquire", &acquire<Mutex>, kAcquireDoc),
    method("release", &release<Mutex>, METH_NOARGS, kReleaseDoc),
    method("locked", &locked<Mutex>, METH_NOARGS, kLockedDoc),
    method("__enter__", &enter<Mutex>, METH_NOARGS, kEnterDoc),
    method("__exit__", &leave<Mutex>, METH_FASTCALL, kExitDoc),
    {},
};

PyMethodDef rlock_methods[] = {
    fast_method("acquire", &acquire<RecursiveMutex>, kAcquireDoc),
    method("release", &release<RecursiveMutex>, METH_NOARGS,
           "release($self, /)\n--\n\nUndo one acquire(); only its owner may."),
    method("locked", &locked<RecursiveMutex>, METH_NOARGS, kLockedDoc),
    method("_is_owned", &is_owned, METH_NOARGS,
           "_is_owned($self, /)\n--\n\nWhether the calling fiber or thread has it."),
    method("__enter__", &enter<RecursiveMutex>, METH_NOARGS, kEnterDoc),
    method("__exit__", &leave<RecursiveMutex>, METH_FASTCALL, kExitDoc),
    {},
};

PyMethodDef mutex_methods[] = {
    method("lock", &lock, METH_NOARGS, "lock($self, /)\n--\n\nLock it, waiting for it if need be."),
    method("try_lock", &try_lock, METH_NOARGS,
           "try_lock($self, /)\n--\n\nLock it if that needs no waiting."),
    method("unlock", &release<Mutex>, METH_NOARGS,
           "unlock($self, /)\n--\n\nUnlock it: who has waited longest has it next."),
    method("locked", &locked<Mutex>, METH_NOARGS, kLockedDoc),
    method("__enter__", &enter_mutex, METH_NOARGS, kEnterDoc),
    method("__exit__", &leave<Mutex>, METH_FASTCALL, kExitDoc),
    {},
};

PyMemberDef members[] = {weakref_member(), {}};

template <class M>
PyTypeObject* add_lock(PyObject* module, const char* name, const char* doc, PyMethodDef* methods) {
  PyType_Slot slots[] = {
      slot(Py_tp_doc, const_cast<char*>(doc)),
      slot(Py_tp_new, &make<M>),
      slot(Py_tp_dealloc, &dealloc_instance<M>),
      slot(Py_tp_repr, &repr<M>),
      slot(Py_tp_methods, static_cast<void*>(methods)),
      slot(Py_tp_members, static_cast<void*>(members)),
      {},
  };
  PyType_Spec spec{name, sizeof(Instance<M>), 0,
                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE, slots};
  return add_type(module, spec);
}

}  // namespace

bool AnyLock::from(PyObject* object, AnyLock& lock) {
  lock = {};
  if (PyObject_TypeCheck(object, lock_type)) {
    lock.plain_ = &unwrap<Mutex>(object);
  } else if (PyObject_TypeCheck(object, rlock_type)) {
    lock.recursive_ = &unwrap<RecursiveMutex>(object);
  } else {
    PyErr_Format(PyExc_TypeError, "lock must be a runloom Lock or RLock, not %.100s",
                 Py_TYPE(object)->tp_name);
    return false;
  }
  return true;
}

bool add_locks(PyObject* module) {
  lock_type = add_lock<Mutex>(module, "runloom_c.Lock",
                              "Lock()\n--\n\n"
                              "Exclusion between fibers, OS threads, and both; first come, first "
                              "served.",
                              lock_methods);
  rlock_type = add_lock<RecursiveMutex>(module, "runloom_c.RLock",
                                        "RLock()\n--\n\n"
                                        "A Lock that its owner, a fiber or a thread, may lock "
                                        "again.",
                                        rlock_methods);
  return lock_type && rlock_type &&
         add_lock<Mutex>(module, "runloom_c.Mutex", "Mutex()\n--\n\nA Lock with Go's names.",
                         mutex_methods);
}

}  // namespace runloom::python
