// A Python object changes hands as a Ref, with the GIL held. No reference is dropped under the
// channel's lock: a Ref that was moved from holds nothing.
#include "sync/channel.hpp"

#include <new>
#include <optional>

#include "support/args.hpp"
#include "support/object.hpp"
#include "sync/sync.hpp"
#include "sync/wait.hpp"

namespace runloom::python {

PyTypeObject* chan_type = nullptr;

PyObject* raise_send_on_closed() {
  PyErr_SetString(PyExc_ValueError, "send on closed channel");
  return nullptr;
}

PyObject* raise_would_wait(const char* what) {
  return PyErr_Format(PyExc_RuntimeError, "%s would have to wait outside of a fiber", what);
}

PyObject* received(Result<Ref> value) {
  PyObject* item = value ? value->release() : Py_NewRef(Py_None);
  PyObject* pair = PyTuple_New(2);
  if (!pair) {
    Py_DECREF(item);
    return nullptr;
  }
  PyTuple_SET_ITEM(pair, 0, item);
  PyTuple_SET_ITEM(pair, 1, Py_NewRef(value ? Py_True : Py_False));
  return pair;
}

namespace {

const std::error_code kClosed = make_error_code(Errc::closed);
const std::error_code kWouldBlock = make_error_code(Errc::would_block);

// Null with an exception set when the receive failed otherwise than by the channel's end.
std::optional<Result<Ref>> receive(PyObject* self) {
  Channel<Ref>& channel = channel_of(self);
  const bool on_fiber = this_fiber::exists();
  Result<Ref> value = [&] {
    if (!on_fiber) return channel.try_recv();
    ParkGuard guard;
    return channel.recv();
  }();
  if (value || value.error() == kClosed) return value;
  if (!on_fiber) {
    raise_would_wait("recv()");
  } else {
    raise(value.error());
  }
  return std::nullopt;
}

PyObject* send(PyObject* self, PyObject* value) {
  Channel<Ref>& channel = channel_of(self);
  const bool on_fiber = this_fiber::exists();
  const Result<void> sent = [&] {
    if (!on_fiber) return channel.try_send(Ref::share(value));
    ParkGuard guard;
    return channel.send(Ref::share(value));
  }();
  if (sent) [[likely]]
    Py_RETURN_NONE;
  if (sent.error() == kClosed) return raise_send_on_closed();
  return on_fiber ? raise(sent.error()) : raise_would_wait("send()");
}

PyObject* recv(PyObject* self, PyObject*) {
  auto value = receive(self);
  return value ? received(std::move(*value)) : nullptr;
}

PyObject* next(PyObject* self) {
  auto value = receive(self);
  return value && *value ? (*value)->release() : nullptr;
}

PyObject* try_send(PyObject* self, PyObject* value) {
  const Result<void> sent = channel_of(self).try_send(Ref::share(value));
  if (!sent && sent.error() == kClosed) return raise_send_on_closed();
  return PyBool_FromLong(sent.has_value());
}

PyObject* try_recv(PyObject* self, PyObject*) {
  Result<Ref> value = channel_of(self).try_recv();
  if (!value && value.error() == kWouldBlock) Py_RETURN_NONE;
  return received(std::move(value));
}

PyObject* close(PyObject* self, PyObject*) {
  if (channel_of(self).close()) Py_RETURN_NONE;
  PyErr_SetString(PyExc_ValueError, "close on closed channel");
  return nullptr;
}

PyObject* closed(PyObject* self, void*) {
  return PyBool_FromLong(channel_of(self).closed());
}

PyObject* capacity(PyObject* self, void*) {
  return PyLong_FromSize_t(channel_of(self).capacity());
}

// ---------------------------------------------------------------- object protocol

Py_ssize_t length(PyObject* self) {
  return static_cast<Py_ssize_t>(channel_of(self).size());
}

// A channel is true, however much it holds.
int truth(PyObject*) {
  return 1;
}

PyObject* make(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* const parameters[] = {"capacity"};
  static const Signature signature{"Chan", parameters, 1, 0, 1};
  PyObject* value[1];
  Py_ssize_t size = 0;
  if (!parse_constructor(signature, args, kwargs, value) ||
      (value[0] && !to_size(value[0], "capacity", size)))
    return nullptr;
  if (size < 0) {
    PyErr_SetString(PyExc_ValueError, "capacity must not be negative");
    return nullptr;
  }
  if (static_cast<std::size_t>(size) > PY_SSIZE_T_MAX / sizeof(Ref)) return PyErr_NoMemory();
  PyObject* self = type->tp_alloc(type, 0);
  if (!self) return nullptr;
  // The collector must not meet it half-made.
  PyObject_GC_UnTrack(self);
  try {
    new (&channel_of(self)) Channel<Ref>(static_cast<std::size_t>(size));
  } catch (const std::bad_alloc&) {
    free_instance(self);
    return PyErr_NoMemory();
  }
  PyObject_GC_Track(self);
  return self;
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  int result = 0;
  channel_of(self).for_each_buffered([&](Ref& value) {
    if (result == 0) result = visit(value.get(), arg);
  });
  return result;
}

// One by one, because dropping a value runs Python code. Nobody waits in a channel that is
// collected: a waiter's frames refer to it.
int clear(PyObject* self) {
  while (channel_of(self).try_recv())
    continue;
  return 0;
}

void dealloc(PyObject* self) {
  auto* chan = reinterpret_cast<Chan*>(self);
  PyObject_GC_UnTrack(self);
  if (chan->weakrefs) PyObject_ClearWeakRefs(self);
  clear(self);
  chan->channel.~Channel();
  free_instance(self);
}

PyObject* repr(PyObject* self) {
  const Channel<Ref>& channel = channel_of(self);
  return PyUnicode_FromFormat("<runloom.Chan at %p: %zu/%zu%s>", self, channel.size(),
                              channel.capacity(), channel.closed() ? ", closed" : "");
}

PyMethodDef methods[] = {
    method("send", &send, METH_O,
           "send($self, value, /)\n--\n\n"
           "Wait until a receiver or the buffer takes the value. ValueError once it is closed."),
    method("recv", &recv, METH_NOARGS,
           "recv($self, /)\n--\n\n"
           "Wait for a value: (value, True), or (None, False) once it is closed and drained."),
    method("try_send", &try_send, METH_O,
           "try_send($self, value, /)\n--\n\nSend if that needs no waiting; whether it was sent."),
    method("try_recv", &try_recv, METH_NOARGS,
           "try_recv($self, /)\n--\n\nAs recv(), or None where that would wait."),
    method("close", &close, METH_NOARGS,
           "close($self, /)\n--\n\n"
           "Wake all who wait: no value will be sent any more. ValueError when it is closed."),
    method("__class_getitem__", &Py_GenericAlias, METH_O | METH_CLASS,
           "Chan[T]: a channel of values of that type."),
    {},
};

PyGetSetDef getset[] = {
    {"closed", &closed, nullptr, "Whether it was closed.", nullptr},
    {"capacity", &capacity, nullptr, "How many values wait in it at most.", nullptr},
    {},
};

PyMemberDef members[] = {weakref_member(), {}};

PyType_Slot slots[] = {
    slot(Py_tp_doc, const_cast<char*>("Chan(capacity=0)\n--\n\n"
                                      "A channel of values between fibers; with capacity 0 a send "
                                      "and a receive meet.\n\n"
                                      "Outside of fibers, what would have to wait raises "
                                      "RuntimeError. A loop over a channel\n"
                                      "receives until it is closed and drained.")),
    slot(Py_tp_new, &make),
    slot(Py_tp_dealloc, &dealloc),
    slot(Py_tp_traverse, &traverse),
    slot(Py_tp_clear, &clear),
    slot(Py_tp_repr, &repr),
    slot(Py_tp_iter, &PyObject_SelfIter),
    slot(Py_tp_iternext, &next),
    slot(Py_sq_length, &length),
    slot(Py_nb_bool, &truth),
    slot(Py_tp_methods, static_cast<void*>(methods)),
    slot(Py_tp_getset, static_cast<void*>(getset)),
    slot(Py_tp_members, static_cast<void*>(members)),
    {},
};

PyType_Spec spec = {
    "runloom_c.Chan", sizeof(Chan), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE,
    slots};

}  // namespace

bool add_channel(PyObject* module) {
  chan_type = add_type(module, spec);
  return chan_type != nullptr;
}

}  // namespace runloom::python
