// TLS sockets: the type.
#include "tls/socket.hpp"

#include <array>
#include <vector>

#include "net/socket.hpp"
#include "support/args.hpp"
#include "support/errors.hpp"
#include "support/object.hpp"
#include "support/ref.hpp"
#include "support/types.hpp"

namespace runloom::python {

PyTypeObject* tls_socket_type = nullptr;

namespace {

PyObject* enter(PyObject* self, PyObject*) {
  return Py_NewRef(self);
}
PyObject* leave(PyObject* self, PyObject* const*, Py_ssize_t) {
  return PyObject_CallMethod(self, "close", nullptr);
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

PyObject* repr(PyObject* self) {
  TLSSocket& socket = as_tls(self);
  const Ref number = Ref::steal(PyObject_CallMethod(self, "fileno", nullptr));
  const Ref version = Ref::steal(PyObject_CallMethod(self, "version", nullptr));
  if (!number || !version) return nullptr;
  PyObject* host = socket.server_hostname ? socket.server_hostname : Py_None;
  return PyUnicode_FromFormat("<%s fd=%S, server_side=%s, server_hostname=%R, version=%R>",
                              Py_TYPE(self)->tp_name, number.get(),
                              socket.server_side ? "True" : "False", host, version.get());
}

// ---------------------------------------------------------------- the end

int traverse(PyObject* self, visitproc visit, void* arg) {
  TLSSocket& socket = as_tls(self);
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(socket.context);
  Py_VISIT(socket.server_hostname);
  Py_VISIT(socket.raised);
  // `below` is counted by the stream as well, so the collector would not find all of it; a socket
  // refers to nothing that could close a circle, and a TLSSocket to its own context only.
  return 0;
}

int clear(PyObject* self) {
  TLSSocket& socket = as_tls(self);
  Py_CLEAR(socket.context);
  Py_CLEAR(socket.raised);
  return 0;
}

void finalize(PyObject* self) {
  TLSSocket& socket = as_tls(self);
  PyObject* bottom = socket.taken ? nullptr : bottom_of(socket);
  if (!bottom || !as_socket(bottom).fd) return;
  const Ref raised = Ref::steal(take_raised());
  if (PyErr_ResourceWarning(self, 1, "unclosed %R", self) < 0) PyErr_WriteUnraisable(self);
  socket.stream.close();
  as_socket(bottom).fd.close();
  if (raised) raise_again(Py_NewRef(raised.get()));
}

void dealloc(PyObject* self) {
  if (PyObject_CallFinalizerFromDealloc(self) < 0) return;
  PyObject_GC_UnTrack(self);
  TLSSocket& socket = as_tls(self);
  if (socket.weakrefs) PyObject_ClearWeakRefs(self);
  clear(self);
  socket.stream.~Stream();
  Py_CLEAR(socket.below);
  Py_CLEAR(socket.server_hostname);
  free_instance(self);
}

// ---------------------------------------------------------------- the type

PyMethodDef own_methods[] = {
    method("__enter__", &enter, METH_NOARGS, nullptr),
    method("__exit__", &leave, METH_FASTCALL, nullptr),
    fast_method("makefile", &makefile,
                "makefile($self, /, mode='r', buffering=None, *, encoding=None, errors=None, "
                "newline=None)\n--\n\nA file over the connection, as open() makes them."),
    fast_method("sendfile", &sendfile,
                "sendfile($self, /, file, offset=0, count=None)\n--\n\n"
                "Send a file, through the program; return how many bytes that were."),
    fast_method("start_tls", &start_tls,
                "start_tls($self, /, context=None, *, server_side=False, server_hostname=None, "
                "handshake_timeout=None, do_handshake=True, suppress_ragged_eofs=False, "
                "session=None)\n--\n\n"
                "TLS within TLS: begin it, as Socket.start_tls() does."),
    {},
};

PyMethodDef* all_methods() {
  static std::vector<PyMethodDef> all;
  if (all.empty()) {
    for (PyMethodDef* table :
         {own_methods, tls_transfer_methods, tls_connection_methods, tls_info_methods})
      for (; table->ml_name; ++table)
        all.push_back(*table);
    all.push_back({});
  }
  return all.data();
}

PyMemberDef members[] = {weakref_member(), {}};

constexpr char kDoc[] =
    "A connection with TLS; runloom.tls.Context.wrap_socket() and others make them.\n\n"
    "One fiber may read while another writes; further ones queue. It is used as Socket is, and\n"
    "parks the fiber where ssl.SSLSocket blocks the thread.";

}  // namespace

bool add_tls_socket_type(PyObject* module) {
  PyType_Slot slots[] = {
      slot(Py_tp_doc, const_cast<char*>(kDoc)),
      slot(Py_tp_traverse, &traverse),
      slot(Py_tp_clear, &clear),
      slot(Py_tp_finalize, &finalize),
      slot(Py_tp_dealloc, &dealloc),
      slot(Py_tp_repr, &repr),
      slot(Py_tp_methods, static_cast<void*>(all_methods())),
      slot(Py_tp_getset, static_cast<void*>(tls_properties)),
      slot(Py_tp_members, static_cast<void*>(members)),
      {},
  };
  PyType_Spec spec = {"runloom.tls.TLSSocket", sizeof(TLSSocket), 0,
                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION |
                          Py_TPFLAGS_IMMUTABLETYPE,
                      slots};
  tls_socket_type = add_type(module, spec);
  return tls_socket_type && PyModule_AddFunctions(module, tls_functions) == 0;
}

}  // namespace runloom::python
