// TLS sockets: what was agreed upon, timeouts, and what the socket below says.
#include <string>

#include "net/socket.hpp"
#include "support/args.hpp"
#include "support/errors.hpp"
#include "support/object.hpp"
#include "support/types.hpp"
#include "tls/context.hpp"
#include "tls/errors.hpp"
#include "tls/socket.hpp"

namespace runloom::python {
namespace {

PyObject* text_or_none(const std::string& text) {
  if (text.empty()) Py_RETURN_NONE;
  return PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
}

bool check_established(const TLSSocket& socket) {
  if (!check_open(socket)) return false;
  if (socket.stream.established()) return true;
  PyErr_SetString(PyExc_ValueError, "handshake not done yet");
  return false;
}

// ---------------------------------------------------------------- what was agreed upon

PyObject* version(PyObject* self, PyObject*) {
  const auto version = as_tls(self).stream.version();
  if (!version) Py_RETURN_NONE;
  return PyUnicode_FromString(tls::to_string(*version));
}

PyObject* cipher(PyObject* self, PyObject*) {
  return or_no_memory([&]() -> PyObject* {
    const tls::Stream& stream = as_tls(self).stream;
    const auto version = stream.version();
    if (!version) Py_RETURN_NONE;
    return Py_BuildValue("(ssi)", stream.cipher().c_str(), tls::to_string(*version),
                         stream.cipher_bits());
  });
}

PyObject* selected_alpn_protocol(PyObject* self, PyObject*) {
  return or_no_memory([&] { return text_or_none(as_tls(self).stream.alpn()); });
}

PyObject* compression(PyObject*, PyObject*) {
  Py_RETURN_NONE;
}

PyObject* pending(PyObject* self, PyObject*) {
  return PyLong_FromSize_t(as_tls(self).stream.pending());
}

// The certificates that the peer sent, in DER.
PyObject* get_unverified_chain(PyObject* self, PyObject*) {
  if (!check_established(as_tls(self))) return nullptr;
  return or_no_memory([&]() -> PyObject* {
    Ref list = Ref::steal(PyList_New(0));
    if (!list) return nullptr;
    for (const tls::Bytes& der : as_tls(self).stream.peer_certificates()) {
      const Ref bytes = Ref::steal(PyBytes_FromStringAndSize(
          reinterpret_cast<const char*>(der.data()), static_cast<Py_ssize_t>(der.size())));
      if (!bytes || PyList_Append(list.get(), bytes.get()) < 0) return nullptr;
    }
    return list.release();
  });
}

PyObject* getpeercert(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  return call_python("runloom.tls", "_getpeercert", self, args, count, names);
}

PyObject* get_channel_binding(PyObject* self, PyObject* const* args, Py_ssize_t count,
                              PyObject* names) {
  static const char* const parameters[] = {"cb_type"};
  static const Signature signature{"get_channel_binding", parameters, 1, 0, 1};
  PyObject* value[1];
  if (!parse(signature, args, count, names, value)) return nullptr;
  if (value[0] && !PyUnicode_Check(value[0])) {
    PyErr_SetString(PyExc_TypeError, "cb_type must be a str");
    return nullptr;
  }
  if (value[0] && PyUnicode_CompareWithASCIIString(value[0], "tls-exporter") != 0) {
    PyErr_Format(PyExc_ValueError, "%R channel binding type not implemented", value[0]);
    return nullptr;
  }
  if (!as_tls(self).stream.established()) Py_RETURN_NONE;
  return or_no_memory([&]() -> PyObject* {
    const auto binding = as_tls(self).stream.channel_binding();
    if (!binding) return raise_io(as_tls(self), binding.error());
    return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(binding->data()),
                                     static_cast<Py_ssize_t>(binding->size()));
  });
}

// ---------------------------------------------------------------- timeouts

PyObject* settimeout(PyObject* self, PyObject* value) {
  if (!to_timeout(value, as_tls(self).timeout_ns)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* gettimeout(PyObject* self, PyObject*) {
  return from_timeout(as_tls(self).timeout_ns);
}

PyObject* setblocking(PyObject* self, PyObject* value) {
  const int blocks = PyObject_IsTrue(value);
  if (blocks < 0) return nullptr;
  as_tls(self).timeout_ns = blocks ? -1 : 0;
  Py_RETURN_NONE;
}

PyObject* getblocking(PyObject* self, PyObject*) {
  return PyBool_FromLong(as_tls(self).blocking());
}

// ---------------------------------------------------------------- the socket below

PyObject* call_bottom(PyObject* self, const char* name, PyObject* const* args, Py_ssize_t count) {
  TLSSocket& socket = as_tls(self);
  if (!check_open(socket)) return nullptr;
  const Ref bound = Ref::steal(PyObject_GetAttrString(bottom_of(socket), name));
  if (!bound) return nullptr;
  return PyObject_Vectorcall(bound.get(), args, static_cast<std::size_t>(count), nullptr);
}

PyObject* getsockname(PyObject* self, PyObject*) {
  return call_bottom(self, "getsockname", nullptr, 0);
}
PyObject* getpeername(PyObject* self, PyObject*) {
  return call_bottom(self, "getpeername", nullptr, 0);
}
PyObject* getsockopt(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  return call_bottom(self, "getsockopt", args, count);
}
PyObject* setsockopt(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  return call_bottom(self, "setsockopt", args, count);
}

PyObject* fileno(PyObject* self, PyObject*) {
  TLSSocket& socket = as_tls(self);
  PyObject* bottom = socket.taken ? nullptr : bottom_of(socket);
  return PyLong_FromLong(bottom ? as_socket(bottom).fd.number() : -1);
}

PyObject* of_bottom(PyObject* self, const char* name) {
  PyObject* bottom = bottom_of(as_tls(self));
  if (!bottom) return raise(make_error_code(Errc::closed));
  return PyObject_GetAttrString(bottom, name);
}
PyObject* get_family(PyObject* self, void*) {
  return of_bottom(self, "family");
}
PyObject* get_type(PyObject* self, void*) {
  return of_bottom(self, "type");
}
PyObject* get_proto(PyObject* self, void*) {
  return of_bottom(self, "proto");
}

// ---------------------------------------------------------------- properties

PyObject* get_timeout(PyObject* self, void*) {
  return gettimeout(self, nullptr);
}
PyObject* get_served(PyObject* self, void*) {
  PyObject* bottom = bottom_of(as_tls(self));
  return bottom ? served_of(as_socket(bottom)) : Py_NewRef(Py_None);
}
PyObject* get_server_side(PyObject* self, void*) {
  return PyBool_FromLong(as_tls(self).server_side);
}
PyObject* get_server_hostname(PyObject* self, void*) {
  PyObject* name = as_tls(self).server_hostname;
  return Py_NewRef(name ? name : Py_None);
}
PyObject* get_session_reused(PyObject* self, void*) {
  return PyBool_FromLong(as_tls(self).stream.session_reused());
}

PyObject* get_session(PyObject* self, void*) {
  tls::Session session = as_tls(self).stream.session();
  if (!session) Py_RETURN_NONE;
  return make_instance<tls::Session>(session_type, std::move(session));
}

PyObject* get_context(PyObject* self, void*) {
  PyObject* context = as_tls(self).context;
  return Py_NewRef(context ? context : Py_None);
}

// Only what asks for certificates again may change it: the SNI callback.
int set_context(PyObject* self, PyObject* value, void*) {
  TLSSocket& socket = as_tls(self);
  if (!value || !socket.context || Py_TYPE(value) != Py_TYPE(socket.context)) {
    PyErr_SetString(PyExc_TypeError, "context must be a runloom.tls.Context");
    return -1;
  }
  if (!socket.server_side || socket.stream.established()) {
    PyErr_SetString(PyExc_ValueError,
                    "only the SNI callback of a server can change the context of a connection");
    return -1;
  }
  Py_XDECREF(std::exchange(socket.context, Py_NewRef(value)));
  return 0;
}

PyObject* get_io_refs(PyObject* self, void*) {
  return PyLong_FromLong(as_tls(self).io_refs);
}
int set_io_refs(PyObject* self, PyObject* value, void*) {
  int count;
  if (!value) {
    PyErr_SetString(PyExc_AttributeError, "_io_refs can't be deleted");
    return -1;
  }
  if (!to_int(value, "_io_refs", count)) return -1;
  as_tls(self).io_refs = count;
  return 0;
}

}  // namespace

PyMethodDef tls_info_methods[] = {
    method("version", &version, METH_NOARGS,
           "version($self, /)\n--\n\n'TLSv1.2' or 'TLSv1.3'; None before the handshake."),
    method("cipher", &cipher, METH_NOARGS,
           "cipher($self, /)\n--\n\n(name, version, bits of its key); None before the handshake."),
    method("selected_alpn_protocol", &selected_alpn_protocol, METH_NOARGS,
           "selected_alpn_protocol($self, /)\n--\n\nThe protocol above TLS; None: none."),
    method("compression", &compression, METH_NOARGS,
           "compression($self, /)\n--\n\nNone: TLS is never compressed here."),
    method("pending", &pending, METH_NOARGS,
           "pending($self, /)\n--\n\n"
           "How many bytes recv() has ready of which fileno() tells nothing any more."),
    fast_method("getpeercert", &getpeercert,
                "getpeercert($self, /, binary_form=False)\n--\n\n"
                "The peer's certificate as a dict, or in DER; None when it sent none.\n\n"
                "The dict is empty when the certificate was not verified."),
    method("get_unverified_chain", &get_unverified_chain, METH_NOARGS,
           "get_unverified_chain($self, /)\n--\n\nThe certificates that the peer sent, in DER."),
    fast_method("get_channel_binding", &get_channel_binding,
                "get_channel_binding($self, /, cb_type='tls-exporter')\n--\n\n"
                "Bytes that both sides know and nobody else (RFC 9266)."),
    method("settimeout", &settimeout, METH_O,
           "settimeout($self, timeout, /)\n--\n\n"
           "Bound each operation by so many seconds, after which it raises TimeoutError.\n\n"
           "None: wait for ever; 0: never wait, ssl.SSLWantReadError or ssl.SSLWantWriteError\n"
           "instead."),
    method("gettimeout", &gettimeout, METH_NOARGS,
           "gettimeout($self, /)\n--\n\nThe timeout in seconds; None: there is none."),
    method("setblocking", &setblocking, METH_O,
           "setblocking($self, flag, /)\n--\n\nAs settimeout(None) or settimeout(0)."),
    method("getblocking", &getblocking, METH_NOARGS,
           "getblocking($self, /)\n--\n\nFalse when operations never wait."),
    method("getsockname", &getsockname, METH_NOARGS,
           "getsockname($self, /)\n--\n\nThe local address."),
    method("getpeername", &getpeername, METH_NOARGS,
           "getpeername($self, /)\n--\n\nThe address of the peer."),
    method("getsockopt", &getsockopt, METH_FASTCALL,
           "getsockopt($self, level, option, buflen=0, /)\n--\n\nAs Socket.getsockopt()."),
    method("setsockopt", &setsockopt, METH_FASTCALL,
           "setsockopt(level, option, value)\nsetsockopt(level, option, None, optlen)\n\n"
           "As Socket.setsockopt()."),
    method("fileno", &fileno, METH_NOARGS,
           "fileno($self, /)\n--\n\nThe descriptor's number; -1 once closed.\n\n"
           "What is read from it is ciphertext."),
    {},
};

PyGetSetDef tls_properties[] = {
    {"family", &get_family, nullptr, "The family of the socket below.", nullptr},
    {"type", &get_type, nullptr, "socket.SOCK_STREAM", nullptr},
    {"proto", &get_proto, nullptr, "The protocol's number.", nullptr},
    {"timeout", &get_timeout, nullptr, "As gettimeout().", nullptr},
    {"served", &get_served, nullptr,
     "What the Server that accepted the connection knows of it, a ServerConnection; else None.",
     nullptr},
    {"server_side", &get_server_side, nullptr, "Whether this is the server's end.", nullptr},
    {"server_hostname", &get_server_hostname, nullptr,
     "The host that a client's certificate check is for; None: none.", nullptr},
    {"session", &get_session, nullptr,
     "Of a client: the newest session that can be resumed; with TLS 1.3 None before the first\n"
     "read.",
     nullptr},
    {"session_reused", &get_session_reused, nullptr, "Whether a session was resumed.", nullptr},
    {"context", &get_context, &set_context,
     "The context. An SNI callback may set another one of a server.", nullptr},
    {"_io_refs", &get_io_refs, &set_io_refs, nullptr, nullptr},
    {},
};

}  // namespace runloom::python
