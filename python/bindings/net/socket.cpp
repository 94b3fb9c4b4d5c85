// Sockets: the type, its making and its end.
#include "net/socket.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <unistd.h>

#include <new>
#include <utility>
#include <vector>

#include "core/g.hpp"
#include "core/gil.hpp"
#include "core/park.hpp"
#include "structmember.h"
#include "support/args.hpp"
#include "support/errors.hpp"
#include "support/ref.hpp"
#include "support/types.hpp"

namespace runloom::python {

PyTypeObject* socket_type = nullptr;

namespace {

using Use = net::Fd::Use;

// ---------------------------------------------------------------- making

PyObject* make(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* self = type->tp_alloc(type, 0);
  if (!self) return nullptr;
  Socket& socket = as_socket(self);
  new (&socket.fd) net::Fd();
  new (&socket.path) net::BoundPath();
  socket.timeout_ns = -1;
  socket.small_reads = true;
  return self;
}

bool is_initialised(const Socket& socket) noexcept {
  return socket.family != AF_UNSPEC;
}

bool to_argument(PyObject* value, const char* what, int fallback, int& result) {
  result = -1;
  if (value && !to_int(value, what, result)) return false;
  if (result == -1) result = fallback;
  return true;
}

bool open(Socket& socket, int family, int type, int proto) {
  const int number = ::socket(family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, proto);
  if (number < 0) {
    raise(last_errno());
    return false;
  }
  const int plain = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);
  auto fd = net::Fd::own(number, kind_of(family, plain));
  if (!fd) {
    ::close(number);
    raise(fd.error());
    return false;
  }
  socket.fd = std::move(*fd);
  socket.family = family;
  socket.type = plain;
  socket.proto = proto;
  if (type & SOCK_NONBLOCK) socket.timeout_ns = 0;
  return true;
}

// A socket's own word on what it is; -1 with OSError set.
int ask(int fd, int option) {
  int value = 0;
  socklen_t size = sizeof value;
  if (::getsockopt(fd, SOL_SOCKET, option, &value, &size) == 0) return value;
  raise(last_errno());
  return -1;
}

bool adopt(Socket& socket, int number, int family, int type, int proto) {
  if (family == -1 && (family = ask(number, SO_DOMAIN)) == -1) return false;
  if (type == -1 && (type = ask(number, SO_TYPE)) == -1) return false;
  if (proto == -1 && (proto = ask(number, SO_PROTOCOL)) == -1) return false;
  const int listens = ask(number, SO_ACCEPTCONN);
  if (listens == -1) return false;
  auto fd = net::Fd::adopt(number);
  if (!fd) {
    raise(fd.error());
    return false;
  }
  socket.fd = std::move(*fd);
  socket.family = family;
  socket.type = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);
  socket.proto = proto;
  socket.listening = listens != 0;
  return true;
}

bool to_fileno(PyObject* value, int& number) {
  if (PyFloat_Check(value)) {
    PyErr_SetString(PyExc_TypeError, "fileno must be an integer");
    return false;
  }
  if (!to_int(value, "fileno", number)) return false;
  if (number < 0) PyErr_SetString(PyExc_ValueError, "negative file descriptor");
  return number >= 0;
}

int init(PyObject* self, PyObject* args, PyObject* keywords) {
  static const char* const parameters[] = {"family", "type", "proto", "fileno"};
  static const Signature signature{"Socket", parameters, 4, 0, 4};
  PyObject* value[4];
  if (!parse_constructor(signature, args, keywords, value)) return -1;
  const bool adopts = is_given(value[3]);
  int family, type, proto, number = -1;
  if (!to_argument(value[0], "family", adopts ? -1 : AF_INET, family) ||
      !to_argument(value[1], "type", adopts ? -1 : SOCK_STREAM, type) ||
      !to_argument(value[2], "proto", adopts ? -1 : 0, proto) ||
      (adopts && !to_fileno(value[3], number)))
    return -1;
  // Only now: what an argument's __index__ does may have been this very call.
  Socket& socket = as_socket(self);
  if (is_initialised(socket)) {
    PyErr_SetString(PyExc_RuntimeError, "Socket.__init__() was called already");
    return -1;
  }
  const bool made =
      adopts ? adopt(socket, number, family, type, proto) : open(socket, family, type, proto);
  return made ? 0 : -1;
}

// ---------------------------------------------------------------- the end

// A listener's port is free when the operations in flight have left. Those of this thread do so
// soon, those of a thread that runs no fibers now may not.
void close_now(Socket& socket) {
  socket.path.remove();  // while the socket lives, nobody takes the file for a stale one
  constexpr std::chrono::milliseconds kPatience{100};
  const bool may = socket.listening && this_fiber::exists() && tl_home && may_park(*tl_home);
  const G* g = may ? current_g() : nullptr;
  if (g && !g->noyield) {
    socket.fd.close_wait(Deadline::after(kPatience));
  } else {
    socket.fd.close();
  }
}

PyObject* close(PyObject* self, PyObject*) {
  Socket& socket = as_socket(self);
  socket.close_pending = true;
  if (socket.io_refs <= 0) close_now(socket);
  Py_RETURN_NONE;
}

// A file made by makefile() was closed.
PyObject* decref_socketios(PyObject* self, PyObject*) {
  Socket& socket = as_socket(self);
  if (socket.io_refs > 0) --socket.io_refs;
  if (socket.io_refs == 0 && socket.close_pending) close_now(socket);
  Py_RETURN_NONE;
}

PyObject* detach(PyObject* self, PyObject*) {
  Socket& socket = as_socket(self);
  if (!socket.fd) return PyLong_FromLong(-1);
  if (socket.unread) return raise(make_error_code(Errc::unread_data));
  ParkGuard guard;
  const auto number = socket.fd.release();
  if (!number) return raise(number.error());
  socket.path.forget();  // whoever has the descriptor has the name as well
  socket.close_pending = true;
  return PyLong_FromLong(*number);
}

void finalize(PyObject* self) {
  Socket& socket = as_socket(self);
  if (!socket.fd) return;
  const Ref raised = Ref::steal(take_raised());
  if (PyErr_ResourceWarning(self, 1, "unclosed %R", self) < 0) PyErr_WriteUnraisable(self);
  socket.path.remove();
  socket.fd.close();
  if (raised) raise_again(Py_NewRef(raised.get()));
}

void dealloc(PyObject* self) {
  if (PyObject_CallFinalizerFromDealloc(self) < 0) return;
  Socket& socket = as_socket(self);
  if (socket.weakrefs) PyObject_ClearWeakRefs(self);
  Py_CLEAR(socket.unread);
  Py_CLEAR(socket.served);
  socket.path.~BoundPath();
  socket.fd.~Fd();
  free_instance(self);
}

// _give_back(bytes): what TLS has read and is none is what the next recv() has.
PyObject* give_back(PyObject* self, PyObject* bytes) {
  if (!PyBytes_CheckExact(bytes)) {
    PyErr_SetString(PyExc_TypeError, "_give_back() takes bytes");
    return nullptr;
  }
  PyObject* unread = PyBytes_GET_SIZE(bytes) == 0 ? nullptr : Py_NewRef(bytes);
  Py_XDECREF(std::exchange(as_socket(self).unread, unread));
  Py_RETURN_NONE;
}

// ---------------------------------------------------------------- small things

PyObject* fileno(PyObject* self, PyObject*) {
  return PyLong_FromLong(as_socket(self).fd.number());
}

PyObject* enter(PyObject* self, PyObject*) {
  return Py_NewRef(self);
}

PyObject* leave(PyObject* self, PyObject* const*, Py_ssize_t) {
  return close(self, nullptr);
}

PyObject* dup(PyObject* self, PyObject*) {
  const Socket& socket = as_socket(self);
  if (socket.unread) return raise(make_error_code(Errc::unread_data));
  const Use use(socket.fd);
  if (!use) return raise(make_error_code(Errc::closed));
  const int number = ::fcntl(use.number(), F_DUPFD_CLOEXEC, 0);
  if (number < 0) return raise(last_errno());
  auto fd = net::Fd::own(number, kind_of(socket.family, socket.type));
  if (!fd) {
    ::close(number);
    return raise(fd.error());
  }
  PyObject* copy = new_socket(std::move(*fd), socket.family, socket.type, socket.proto);
  if (!copy) return nullptr;
  as_socket(copy).timeout_ns = socket.timeout_ns;
  as_socket(copy).listening = socket.listening;
  return copy;
}

// What is built on the methods here is Python.
PyObject* makefile(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  return call_python("runloom.sync.socket", "makefile", self, args, count, names);
}
PyObject* sendfile(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  return call_python("runloom.sync.socket", "sendfile", self, args, count, names);
}
PyObject* start_tls(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  return call_python("runloom.sync.tls", "start_tls", self, args, count, names);
}

// A constant of the socket module as its enum member, where it has one.
PyObject* as_enum(const char* name, int value) {
  const Ref module = Ref::steal(PyImport_ImportModule("socket"));
  const Ref type = Ref::steal(module ? PyObject_GetAttrString(module.get(), name) : nullptr);
  if (!type) {
    // Late in the interpreter's exit there are no imports; a socket can still say what it is.
    if (!interpreter_finalizes()) return nullptr;
    PyErr_Clear();
    return PyLong_FromLong(value);
  }
  PyObject* member = PyObject_CallFunction(type.get(), "i", value);
  if (member || !PyErr_ExceptionMatches(PyExc_ValueError)) return member;
  PyErr_Clear();
  return PyLong_FromLong(value);
}

PyObject* get_family(PyObject* self, void*) {
  return as_enum("AddressFamily", as_socket(self).family);
}
PyObject* get_type(PyObject* self, void*) {
  return as_enum("SocketKind", as_socket(self).type);
}
PyObject* get_proto(PyObject* self, void*) {
  return PyLong_FromLong(as_socket(self).proto);
}
PyObject* get_served(PyObject* self, void*) {
  return served_of(as_socket(self));
}
PyObject* get_timeout(PyObject* self, void*) {
  return PyObject_CallMethod(self, "gettimeout", nullptr);
}

PyObject* get_io_refs(PyObject* self, void*) {
  return PyLong_FromLong(as_socket(self).io_refs);
}
int set_io_refs(PyObject* self, PyObject* value, void*) {
  int count;
  if (!value) {
    PyErr_SetString(PyExc_AttributeError, "_io_refs can't be deleted");
    return -1;
  }
  if (!to_int(value, "_io_refs", count)) return -1;
  as_socket(self).io_refs = count;
  return 0;
}

Ref address_or_none(const Socket& socket, int (*call)(int, sockaddr*, socklen_t*)) {
  const Use use(socket.fd);
  SocketAddress address;
  address.size = sizeof address.storage;
  if (!use || call(use.number(), address.data(), &address.size) != 0) return Ref::share(Py_None);
  return Ref::steal(from_address(address));
}

PyObject* repr(PyObject* self) {
  const Socket& socket = as_socket(self);
  const Ref family = Ref::steal(get_family(self, nullptr));
  const Ref type = Ref::steal(get_type(self, nullptr));
  if (!family || !type) return nullptr;
  const char* name = Py_TYPE(self)->tp_name;
  const int number = socket.fd.number();
  if (number < 0)
    return PyUnicode_FromFormat("<%s [closed] family=%S, type=%S, proto=%d>", name, family.get(),
                                type.get(), socket.proto);
  const Ref local = address_or_none(socket, &::getsockname);
  const Ref remote = address_or_none(socket, &::getpeername);
  if (!local || !remote) return nullptr;
  return PyUnicode_FromFormat("<%s fd=%d, family=%S, type=%S, proto=%d, laddr=%R, raddr=%R>", name,
                              number, family.get(), type.get(), socket.proto, local.get(),
                              remote.get());
}

// ---------------------------------------------------------------- the type

PyMethodDef lifetime_methods[] = {
    method("close", &close, METH_NOARGS,
           "close($self, /)\n--\n\n"
           "Close. Whoever waits on the socket gets OSError(EBADF). Idempotent."),
    method("detach", &detach, METH_NOARGS,
           "detach($self, /)\n--\n\n"
           "Give the descriptor away, in blocking mode; the socket is closed for everyone else.\n\n"
           "Outside of fibers OSError(EBUSY) while somebody waits on it."),
    method("dup", &dup, METH_NOARGS, "dup($self, /)\n--\n\nA second socket for the connection."),
    method("fileno", &fileno, METH_NOARGS,
           "fileno($self, /)\n--\n\nThe descriptor's number; -1 once closed."),
    fast_method("makefile", &makefile,
                "makefile($self, /, mode='r', buffering=None, *, encoding=None, errors=None, "
                "newline=None)\n--\n\nA file over the socket, as open() makes them."),
    fast_method("sendfile", &sendfile,
                "sendfile($self, /, file, offset=0, count=None)\n--\n\n"
                "Send a file, from offset, up to count bytes; return how many were sent."),
    fast_method("start_tls", &start_tls,
                "start_tls($self, /, context=None, *, server_side=False, server_hostname=None, "
                "handshake_timeout=None, do_handshake=True, suppress_ragged_eofs=False, "
                "session=None)\n--\n\n"
                "Begin TLS on the connection; return the TLSSocket, and close this one.\n\n"
                "What makefile() files have read ahead belongs to TLS. The context is a\n"
                "runloom.tls.Context or an ssl.SSLContext; a client needs none, but then the\n"
                "server_hostname."),
    method("_give_back", &give_back, METH_O, nullptr),
    method("_decref_socketios", &decref_socketios, METH_NOARGS, nullptr),
    method("__enter__", &enter, METH_NOARGS, nullptr),
    method("__exit__", &leave, METH_FASTCALL, nullptr),
    {},
};

PyGetSetDef properties[] = {
    {"family", &get_family, nullptr, "The address family.", nullptr},
    {"type", &get_type, nullptr, "The kind of socket.", nullptr},
    {"proto", &get_proto, nullptr, "The protocol's number.", nullptr},
    {"timeout", &get_timeout, nullptr, "The timeout in seconds; None: there is none.", nullptr},
    {"served", &get_served, nullptr,
     "What the Server that accepted it knows of it, a ServerConnection; else None.", nullptr},
    {"_io_refs", &get_io_refs, &set_io_refs, nullptr, nullptr},
    {},
};

PyMemberDef members[] = {
    // weakrefs, which follows the head; offsetof() is for simpler types than this one.
    {"__weaklistoffset__", T_PYSSIZET, sizeof(PyObject), READONLY, nullptr},
    {},
};

// All methods in one table, as a type wants them.
PyMethodDef* all_methods() {
  static std::vector<PyMethodDef> all;
  if (all.empty()) {
    for (PyMethodDef* table : {lifetime_methods, socket_transfer_methods, socket_message_methods,
                               socket_connection_methods, socket_option_methods})
      for (; table->ml_name; ++table)
        all.push_back(*table);
    all.push_back({});
  }
  return all.data();
}

constexpr char kDoc[] =
    "Socket(family=AF_INET, type=SOCK_STREAM, proto=0, fileno=None)\n--\n\n"
    "A socket whose calls park the fiber where socket.socket blocks the thread.\n\n"
    "Outside of fibers they block the thread, with the GIL released. With fileno it takes over a\n"
    "descriptor and puts it into non-blocking mode; detach() hands it out again.";

}  // namespace

PyObject* new_socket(net::Fd fd, int family, int type, int proto) {
  PyObject* self = make(socket_type, nullptr, nullptr);
  if (!self) return nullptr;
  Socket& socket = as_socket(self);
  socket.fd = std::move(fd);
  socket.family = family;
  socket.type = type;
  socket.proto = proto;
  return self;
}

PyObject* served_of(const Socket& socket) noexcept {
  return Py_NewRef(socket.served ? socket.served : Py_None);
}

bool add_socket_type(PyObject* module) {
  PyType_Slot slots[] = {
      slot(Py_tp_doc, const_cast<char*>(kDoc)),
      slot(Py_tp_new, &make),
      slot(Py_tp_init, &init),
      slot(Py_tp_finalize, &finalize),
      slot(Py_tp_dealloc, &dealloc),
      slot(Py_tp_repr, &repr),
      slot(Py_tp_methods, static_cast<void*>(all_methods())),
      slot(Py_tp_getset, static_cast<void*>(properties)),
      slot(Py_tp_members, static_cast<void*>(members)),
      {},
  };
  PyType_Spec spec = {"runloom.sync.Socket", sizeof(Socket), 0,
                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};
  socket_type = add_type(module, spec);
  return socket_type != nullptr;
}

}  // namespace runloom::python
