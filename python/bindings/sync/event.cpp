#include "runloom/sched/event.hpp"

#include "support/args.hpp"
#include "support/object.hpp"
#include "sync/sync.hpp"
#include "sync/wait.hpp"

namespace runloom::python {

PyTypeObject* event_type = nullptr;

namespace {

PyObject* event_set(PyObject* self, PyObject*) {
  unwrap<Event>(self).set();
  Py_RETURN_NONE;
}

PyObject* event_clear(PyObject* self, PyObject*) {
  unwrap<Event>(self).clear();
  Py_RETURN_NONE;
}

PyObject* event_is_set(PyObject* self, PyObject*) {
  return PyBool_FromLong(unwrap<Event>(self).is_set());
}

PyObject* event_wait(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const parameters[] = {"timeout"};
  static const Signature signature{"wait", parameters, 1, 0, 1};
  PyObject* value[1];
  Deadline deadline;
  if (!parse(signature, args, count, names, value) || !to_deadline(value[0], deadline))
    return nullptr;
  Event& event = unwrap<Event>(self);
  if (event.is_set()) Py_RETURN_TRUE;
  SharedWait wait;
  return true_or_timed_out(event.wait(deadline), deadline);
}

PyObject* make_event(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  if (!takes_no_arguments(type, args, kwargs)) return nullptr;
  return make_instance<Event>(type);
}

PyObject* event_repr(PyObject* self) {
  return PyUnicode_FromFormat("<%s at %p: %s>", Py_TYPE(self)->tp_name, self,
                              unwrap<Event>(self).is_set() ? "set" : "unset");
}

PyMethodDef methods[] = {
    method("set", &event_set, METH_NOARGS,
           "set($self, /)\n--\n\nRelease all who wait, also when clear() follows at once."),
    method("clear", &event_clear, METH_NOARGS,
           "clear($self, /)\n--\n\nLet those who come now wait."),
    method("is_set", &event_is_set, METH_NOARGS, "is_set($self, /)\n--\n\nWhether it is set."),
    fast_method("wait", &event_wait,
                "wait($self, /, timeout=None)\n--\n\n"
                "Wait until it is set; False when the time was up first."),
    {},
};

PyMemberDef members[] = {weakref_member(), {}};

PyType_Slot slots[] = {
    slot(Py_tp_doc, const_cast<char*>("Event()\n--\n\n"
                                      "A flag to wait for, by fibers and OS threads.")),
    slot(Py_tp_new, &make_event),
    slot(Py_tp_dealloc, &dealloc_instance<Event>),
    slot(Py_tp_repr, &event_repr),
    slot(Py_tp_methods, static_cast<void*>(methods)),
    slot(Py_tp_members, static_cast<void*>(members)),
    {},
};

PyType_Spec spec = {"runloom_c.Event", sizeof(Instance<Event>), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE, slots};

}  // namespace

bool add_event(PyObject* module) {
  event_type = add_type(module, spec);
  return event_type != nullptr;
}

}  // namespace runloom::python
