#include "net/served.hpp"

#include <new>

#include "net/address.hpp"
#include "runloom/sched/error.hpp"
#include "support/args.hpp"
#include "support/errors.hpp"
#include "support/object.hpp"
#include "support/types.hpp"

namespace runloom::python {
namespace {

PyTypeObject* type = nullptr;

// The clock, while the handler runs; else null with RuntimeError set.
net::RequestClock* clock_of(PyObject* self) {
  const ServerConnection& served = as_served(self);
  if (served.server && served.clock) return served.clock.get();
  PyErr_SetString(PyExc_RuntimeError, served.clock ? "the connection's handler has ended"
                                                   : "the connection's handler has not begun");
  return nullptr;
}

PyObject* await_request(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const parameters[] = {"begun"};
  static const Signature signature{"await_request", parameters, 1, 0, 1};
  PyObject* value[1];
  if (!parse(signature, args, count, names, value)) return nullptr;
  const int begun = value[0] ? PyObject_IsTrue(value[0]) : 0;
  net::RequestClock* clock = begun < 0 ? nullptr : clock_of(self);
  if (!clock) return nullptr;
  clock->await_request(begun != 0);
  Py_RETURN_NONE;
}

PyObject* head_done(PyObject* self, PyObject*) {
  net::RequestClock* clock = clock_of(self);
  if (!clock) return nullptr;
  clock->head_done();
  Py_RETURN_NONE;
}

PyObject* unbounded(PyObject* self, PyObject*) {
  net::RequestClock* clock = clock_of(self);
  if (!clock) return nullptr;
  clock->unbounded();
  Py_RETURN_NONE;
}

PyObject* get_expired(PyObject* self, void*) {
  using Expired = net::RequestClock::Expired;
  const ServerConnection& served = as_served(self);
  switch (served.clock ? served.clock->expired() : Expired::none) {
    case Expired::none:
      break;
    case Expired::first_byte:
      return PyUnicode_FromString("first_byte");
    case Expired::idle:
      return PyUnicode_FromString("idle");
    case Expired::head:
      return PyUnicode_FromString("head");
    case Expired::body:
      return PyUnicode_FromString("body");
    case Expired::write:
      return PyUnicode_FromString("write");
  }
  Py_RETURN_NONE;
}

PyObject* get_stopping(PyObject* self, void*) {
  const ServerConnection& served = as_served(self);
  return PyBool_FromLong(!served.server || (served.clock && served.clock->stopping()));
}
PyObject* get_listener(PyObject* self, void*) {
  return PyLong_FromSize_t(as_served(self).listener);
}
PyObject* get_peer(PyObject* self, void*) {
  return Py_NewRef(as_served(self).peer);
}
PyObject* get_local(PyObject* self, void*) {
  return Py_NewRef(as_served(self).local);
}
PyObject* get_proxy(PyObject* self, void*) {
  return Py_NewRef(as_served(self).proxy);
}
PyObject* get_tlvs(PyObject* self, void*) {
  return Py_NewRef(as_served(self).tlvs);
}

PyObject* repr(PyObject* self) {
  return PyUnicode_FromFormat("<runloom.sync.ServerConnection peer=%R>", as_served(self).peer);
}

void dealloc(PyObject* self) {
  ServerConnection& served = as_served(self);
  if (served.weakrefs) PyObject_ClearWeakRefs(self);
  served.clock.~shared_ptr();
  Py_CLEAR(served.server);
  Py_CLEAR(served.peer);
  Py_CLEAR(served.local);
  Py_CLEAR(served.proxy);
  Py_CLEAR(served.tlvs);
  free_instance(self);
}

// _bytes_came(): as the function of this name, for TLS in Python.
PyObject* tell_bytes_came(PyObject* self, PyObject*) {
  const ServerConnection& served = as_served(self);
  if (served.server && served.clock) served.clock->request_begun();
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    method("_bytes_came", &tell_bytes_came, METH_NOARGS, nullptr),
    fast_method(
        "await_request", &await_request,
        "await_request($self, /, begun=False)\n--\n\n"
        "A request is expected: its first byte within ServerTimeouts.first_byte, after an\n"
        "earlier request within `idle`; from that byte on its head is read, within `head`.\n"
        "The time for writes starts afresh. begun: its first bytes were read together with\n"
        "the request before it. Doesn't wait. RuntimeError once the handler has ended."),
    method("head_done", &head_done, METH_NOARGS,
           "head_done($self, /)\n--\n\n"
           "The head is there. What follows may take ServerTimeouts.body of waiting in all, and\n"
           "as much longer as its bytes take at `least_rate`."),
    method("unbounded", &unbounded, METH_NOARGS,
           "unbounded($self, /)\n--\n\n"
           "No deadlines but the socket's timeout, until the next await_request(): for a\n"
           "connection that becomes something else, such as a stream of events."),
    {},
};

PyGetSetDef properties[] = {
    {"peer", &get_peer, nullptr, "The client's address, as a trusted proxy told if one did.",
     nullptr},
    {"local", &get_local, nullptr, "The address that it connected to, likewise.", nullptr},
    {"proxy", &get_proxy, nullptr, "The proxy that told who the client is; None: nobody did.",
     nullptr},
    {"tlvs", &get_tlvs, nullptr, "What else the proxy told: bytes of TLVs of the PROXY protocol.",
     nullptr},
    {"listener", &get_listener, nullptr, "Which of the server's listeners it came in by, from 0.",
     nullptr},
    {"expired", &get_expired, nullptr,
     "Which deadline ended a read or write with TimeoutError, the last time one did: "
     "'first_byte', 'idle', 'head', 'body' or 'write'; else None.",
     nullptr},
    {"stopping", &get_stopping, nullptr,
     "True once the server stops: no further request will be answered.", nullptr},
    {},
};

PyMemberDef members[] = {weakref_member(), {}};

PyType_Slot slots[] = {
    slot(Py_tp_doc, const_cast<char*>(
                        "What a Server knows of a connection, and where its handler stands.\n\n"
                        "The attribute `served` of the handler's connection. A handler that speaks "
                        "in requests says\nwhere it stands, and every read and write is bounded "
                        "then as the server's timeouts have it.")),
    slot(Py_tp_dealloc, &dealloc),
    slot(Py_tp_repr, &repr),
    slot(Py_tp_methods, static_cast<void*>(methods)),
    slot(Py_tp_getset, static_cast<void*>(properties)),
    slot(Py_tp_members, static_cast<void*>(members)),
    {},
};

PyType_Spec spec = {
    "runloom.sync.ServerConnection", sizeof(ServerConnection), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

}  // namespace

PyObject* new_server_connection(PyObject* server, const net::ConnectionInfo& info) {
  Ref peer = Ref::steal(from_address(info.peer));
  Ref local = Ref::steal(from_address(info.local));
  Ref proxy = Ref::steal(from_address(info.proxy));
  Ref tlvs = Ref::steal(
      PyBytes_FromStringAndSize(info.tlvs.data(), static_cast<Py_ssize_t>(info.tlvs.size())));
  if (!peer || !local || !proxy || !tlvs) return nullptr;
  PyObject* self = type->tp_alloc(type, 0);
  if (!self) return nullptr;
  ServerConnection& served = as_served(self);
  new (&served.clock) std::shared_ptr<net::RequestClock>();
  new (&served.descriptor) net::Fd::Weak();
  served.server = Py_NewRef(server);
  served.peer = peer.release();
  served.local = local.release();
  served.proxy = proxy.release();
  served.tlvs = tlvs.release();
  served.listener = info.listener;
  return self;
}

void begin_serving(ServerConnection& served, net::Connection& connection, const net::Fd& fd) {
  served.clock = connection.clock();
  served.connection = &connection;
  move_served(served, fd);
}

void end_serving(ServerConnection& served) noexcept {
  served.connection = nullptr;
  Py_CLEAR(served.server);
}

void move_served(ServerConnection& served, const net::Fd& fd) noexcept {
  served.descriptor = net::Fd::Weak(fd);
  if (served.connection) served.connection->follow(fd);
}

std::error_code served_failed(const Socket& socket, std::error_code error) noexcept {
  ServerConnection& served = as_served(socket.served);
  const bool stopping = served.clock && served.clock->stopping();
  if (error == Errc::closed && socket.fd && stopping) error = errno_code(ECONNABORTED);
  // What is wrong with the call, or with its fiber, says nothing of the connection; nor does it
  // that the handler has closed it.
  const bool own = error == Errc::cancelled || error == Errc::park_forbidden ||
                   error == Errc::unread_data || (error == Errc::closed && !stopping);
  if (!own) served.failed = true;
  return error;
}

bool add_server_connection_type(PyObject* module) {
  type = add_type(module, spec);
  return type != nullptr;
}

}  // namespace runloom::python
