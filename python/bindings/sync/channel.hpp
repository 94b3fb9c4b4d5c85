// Chan: the core's channel of Python objects.
#pragma once

#include <Python.h>

#include "runloom/sched/channel.hpp"
#include "support/ref.hpp"

namespace runloom::python {

struct Chan {
  PyObject_HEAD PyObject* weakrefs;
  Channel<Ref> channel;
};

extern PyTypeObject* chan_type;

inline Channel<Ref>& channel_of(PyObject* chan) noexcept {
  return reinterpret_cast<Chan*>(chan)->channel;
}

// Raised by a send on a closed channel. Returns null.
PyObject* raise_send_on_closed();
// (value, ok) of a receive: what came, or (None, False) of a closed channel.
PyObject* received(Result<Ref> value);
// Raised where `what` would have to wait and no fiber runs that could. Returns null.
PyObject* raise_would_wait(const char* what);

}  // namespace runloom::python
