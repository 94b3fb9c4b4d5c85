#include "runloom/sched/semaphore.hpp"

#include "support/args.hpp"
#include "support/object.hpp"
#include "sync/sync.hpp"
#include "sync/wait.hpp"

namespace runloom::python {
namespace {

bool to_permits(PyObject* value, std::uint32_t& permits) {
  permits = 1;
  if (!value) return true;
  Py_ssize_t number;
  if (!to_size(value, "n", number)) return false;
  if (number < 1) {
    PyErr_SetString(PyExc_ValueError, "n must be at least 1");
    return false;
  }
  // What is more than any capacity is told apart by the semaphore itself.
  permits = number > Py_ssize_t{0xffffffff} ? 0xffffffff : static_cast<std::uint32_t>(number);
  return true;
}

PyObject* raise_too_many(const Semaphore& semaphore) {
  return PyErr_Format(PyExc_ValueError, "more permits than the semaphore has (%u)",
                      semaphore.capacity());
}

PyObject* acquire(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const parameters[] = {"n", "timeout"};
  static const Signature signature{"acquire", parameters, 2, 0, 2};
  PyObject* value[2];
  std::uint32_t permits;
  Deadline deadline;
  if (!parse(signature, args, count, names, value) || !to_permits(value[0], permits) ||
      !to_deadline(value[1], deadline))
    return nullptr;
  Semaphore& semaphore = unwrap<Semaphore>(self);
  if (permits > semaphore.capacity()) return raise_too_many(semaphore);
  if (semaphore.try_acquire(permits)) Py_RETURN_TRUE;
  SharedWait wait;
  return true_or_timed_out(semaphore.acquire(permits, deadline), deadline);
}

PyObject* try_acquire(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const parameters[] = {"n"};
  static const Signature signature{"try_acquire", parameters, 1, 0, 1};
  PyObject* value[1];
  std::uint32_t permits;
  if (!parse(signature, args, count, names, value) || !to_permits(value[0], permits))
    return nullptr;
  Semaphore& semaphore = unwrap<Semaphore>(self);
  if (permits > semaphore.capacity()) return raise_too_many(semaphore);
  return PyBool_FromLong(semaphore.try_acquire(permits));
}

PyObject* release_permits(Semaphore& semaphore, std::uint32_t permits) {
  if (semaphore.try_release(permits)) Py_RETURN_NONE;
  PyErr_SetString(PyExc_ValueError, "semaphore released too many times");
  return nullptr;
}

PyObject* release(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const parameters[] = {"n"};
  static const Signature signature{"release", parameters, 1, 0, 1};
  PyObject* value[1];
  std::uint32_t permits;
  if (!parse(signature, args, count, names, value) || !to_permits(value[0], permits))
    return nullptr;
  return release_permits(unwrap<Semaphore>(self), permits);
}

PyObject* enter(PyObject* self, PyObject*) {
  Semaphore& semaphore = unwrap<Semaphore>(self);
  if (semaphore.try_acquire()) Py_RETURN_TRUE;
  SharedWait wait;
  return true_or_timed_out(semaphore.acquire(), Deadline::never());
}

PyObject* leave(PyObject* self, PyObject* const*, Py_ssize_t) {
  return release_permits(unwrap<Semaphore>(self), 1);
}

PyObject* locked(PyObject* self, PyObject*) {
  return PyBool_FromLong(unwrap<Semaphore>(self).available() == 0);
}

PyObject* value_of(PyObject* self, void*) {
  return PyLong_FromUnsignedLong(unwrap<Semaphore>(self).available());
}

PyObject* capacity(PyObject* self, void*) {
  return PyLong_FromUnsignedLong(unwrap<Semaphore>(self).capacity());
}

PyObject* make(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* const parameters[] = {"value"};
  static const Signature signature{"Semaphore", parameters, 1, 0, 1};
  PyObject* value[1];
  Py_ssize_t permits = 1;
  if (!parse_constructor(signature, args, kwargs, value) ||
      (value[0] && !to_size(value[0], "value", permits)))
    return nullptr;
  if (permits < 0 || permits >= Py_ssize_t{Semaphore::kUnbounded}) {
    PyErr_SetString(PyExc_ValueError, permits < 0 ? "semaphore initial value must be >= 0"
                                                  : "semaphore initial value is too large");
    return nullptr;
  }
  return make_instance<Semaphore>(type, static_cast<std::uint32_t>(permits));
}

PyObject* repr(PyObject* self) {
  const Semaphore& semaphore = unwrap<Semaphore>(self);
  return PyUnicode_FromFormat("<%s at %p: value=%u/%u>", Py_TYPE(self)->tp_name, self,
                              semaphore.available(), semaphore.capacity());
}

PyMethodDef methods[] = {
    fast_method("acquire", &acquire,
                "acquire($self, /, n=1, timeout=None)\n--\n\n"
                "Take n permits, waiting for them if need be; False when the time was up first."),
    fast_method("try_acquire", &try_acquire,
                "try_acquire($self, /, n=1)\n--\n\nTake n permits if that needs no waiting."),
    fast_method("release", &release, "release($self, /, n=1)\n--\n\nGive n permits back."),
    method("locked", &locked, METH_NOARGS, "locked($self, /)\n--\n\nWhether no permit is free."),
    method("__enter__", &enter, METH_NOARGS, "__enter__($self, /)\n--\n\nTake a permit."),
    method("__exit__", &leave, METH_FASTCALL, "__exit__($self, /, *exc_info)\n--\n\nGive it back."),
    {},
};

PyGetSetDef getset[] = {
    {"value", &value_of, nullptr, "How many permits are free.", nullptr},
    {"capacity", &capacity, nullptr, "How many permits there are.", nullptr},
    {},
};

PyMemberDef members[] = {weakref_member(), {}};

PyType_Slot slots[] = {
    slot(Py_tp_doc, const_cast<char*>("Semaphore(value=1)\n--\n\n"
                                      "A number of permits, for fibers and OS threads; who waits "
                                      "for many is not overtaken by who wants few.")),
    slot(Py_tp_new, &make),
    slot(Py_tp_dealloc, &dealloc_instance<Semaphore>),
    slot(Py_tp_repr, &repr),
    slot(Py_tp_methods, static_cast<void*>(methods)),
    slot(Py_tp_getset, static_cast<void*>(getset)),
    slot(Py_tp_members, static_cast<void*>(members)),
    {},
};

PyType_Spec spec = {"runloom_c.Semaphore", sizeof(Instance<Semaphore>), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE, slots};

}  // namespace

bool add_semaphore(PyObject* module) {
  return add_type(module, spec) != nullptr;
}

}  // namespace runloom::python
