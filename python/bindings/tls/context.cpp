#include "tls/context.hpp"

#include <string>
#include <utility>

#include "core/park.hpp"
#include "support/args.hpp"
#include "support/errors.hpp"
#include "support/object.hpp"
#include "support/ref.hpp"
#include "support/types.hpp"
#include "tls/errors.hpp"

namespace runloom::python {

PyTypeObject* native_context_type = nullptr;
PyTypeObject* session_type = nullptr;

namespace {

using tls::ContextOptions;

// ---- options: a dict whose keys are those of tls::ContextOptions ----

// The value under `name`, borrowed; null without an exception when it is not there.
PyObject* option(PyObject* options, const char* name) {
  return PyDict_GetItemString(options, name);
}

bool take_text(PyObject* options, const char* name, std::string& out) {
  PyObject* value = option(options, name);
  if (!value) return true;
  Py_ssize_t size;
  const char* text;
  if (PyBytes_Check(value)) {
    text = PyBytes_AS_STRING(value);
    size = PyBytes_GET_SIZE(value);
  } else {
    text = PyUnicode_AsUTF8AndSize(value, &size);
    if (!text) return false;
  }
  out.assign(text, static_cast<std::size_t>(size));
  return true;
}

bool take_bool(PyObject* options, const char* name, bool& out) {
  PyObject* value = option(options, name);
  const int truth = value ? PyObject_IsTrue(value) : out;
  out = truth == 1;
  return truth >= 0;
}

template <class Enum>
bool take_enum(PyObject* options, const char* name, Enum& out) {
  PyObject* value = option(options, name);
  int number;
  if (!value) return true;
  if (!to_int(value, name, number)) return false;
  out = static_cast<Enum>(number);
  return true;
}

// What the callable returns, which may be asked while a context is made: on the fiber that does so.
Result<std::string> ask(PyObject* callable) {
  const Ref answer = Ref::steal(PyObject_CallNoArgs(callable));
  char* text = nullptr;
  Py_ssize_t size = 0;
  if (!answer || PyBytes_AsStringAndSize(answer.get(), &text, &size) < 0)
    return Unexpected{make_error_code(Errc::cancelled)};  // what was raised stays set
  return std::string(text, static_cast<std::size_t>(size));
}

std::string text_of(PyObject* bytes) {
  return {PyBytes_AS_STRING(bytes), static_cast<std::size_t>(PyBytes_GET_SIZE(bytes))};
}

// (certificate PEM, key PEM or "", callable for the password or None)
bool take_identities(PyObject* options, ContextOptions& out) {
  PyObject* list = option(options, "identities");
  for (Py_ssize_t i = 0; list && i < PyList_GET_SIZE(list); ++i) {
    PyObject *certificate, *key, *password;
    tls::Identity identity;
    if (!PyArg_ParseTuple(PyList_GET_ITEM(list, i), "SSO", &certificate, &key, &password))
      return false;
    identity.certificate_pem = text_of(certificate);
    identity.key_pem = text_of(key);
    // The dict of options, which the caller holds, keeps the callable alive.
    if (password != Py_None) identity.password = [password] { return ask(password); };
    out.identities.push_back(std::move(identity));
  }
  return true;
}

bool take_alpn(PyObject* options, ContextOptions& out) {
  PyObject* list = option(options, "alpn");
  for (Py_ssize_t i = 0; list && i < PyList_GET_SIZE(list); ++i) {
    char* name;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(PyList_GET_ITEM(list, i), &name, &size) < 0) return false;
    out.alpn.emplace_back(name, static_cast<std::size_t>(size));
  }
  return true;
}

bool take_options(PyObject* options, ContextOptions& out) {
  bool asks = false;
  if (!take_identities(options, out) || !take_alpn(options, out) ||
      !take_bool(options, "verify", out.verify) ||
      !take_bool(options, "check_host", out.check_host) ||
      !take_bool(options, "system_roots", out.system_roots) ||
      !take_bool(options, "add_system_roots", out.add_system_roots) ||
      !take_text(options, "ca_pem", out.ca_pem) || !take_text(options, "ca_path", out.ca_path) ||
      !take_enum(options, "client_certificates", out.client_certificates) ||
      !take_enum(options, "min_version", out.min_version) ||
      !take_enum(options, "max_version", out.max_version) ||
      !take_text(options, "ciphers", out.ciphers) ||
      !take_text(options, "cipher_suites", out.cipher_suites) ||
      !take_text(options, "groups", out.groups) ||
      !take_bool(options, "alpn_required", out.alpn_required) ||
      !take_bool(options, "session_tickets", out.session_tickets) ||
      !take_bool(options, "ignore_truncation", out.ignore_truncation) ||
      !take_bool(options, "asks", asks))
    return false;
  // Connections bring a handler of their own; with one a context needs no certificate.
  if (asks)
    out.on_client_hello = [](const tls::ClientHello&) {
      return Result<std::optional<tls::Context>>(std::nullopt);
    };
  return true;
}

// _tls_context(server_side, options) -> _TLSContext. Parks while files are read.
PyObject* make_context(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 2 || !PyDict_Check(args[1])) {
    PyErr_SetString(PyExc_TypeError, "_tls_context() takes a bool and a dict");
    return nullptr;
  }
  const int server_side = PyObject_IsTrue(args[0]);
  if (server_side < 0) return nullptr;
  return or_no_memory([&]() -> PyObject* {
    ContextOptions options;
    if (!take_options(args[1], options)) return nullptr;
    std::string problem;
    ParkGuard guard;
    auto context = server_side ? tls::Context::server(options, &problem)
                               : tls::Context::client(options, &problem);
    if (context) return make_instance<tls::Context>(native_context_type, std::move(*context));
    if (PyErr_Occurred()) return nullptr;
    return raise_tls(context.error(), problem.empty() ? context.error().message() : problem);
  });
}

PyMethodDef functions[] = {
    method("_tls_context", &make_context, METH_FASTCALL, nullptr),
    {},
};

constexpr char kSessionDoc[] =
    "What a client keeps of a connection, to begin the next one to the same host sooner.\n\n"
    "TLSSocket.session gives it, and wrap_socket() or tls_connect() take it.";

template <class T>
PyTypeObject* add_handle(PyObject* module, const char* name, const char* doc) {
  static PyMemberDef members[] = {weakref_member(), {}};
  PyType_Slot slots[] = {
      slot(Py_tp_doc, const_cast<char*>(doc)),
      slot(Py_tp_dealloc, &dealloc_instance<T>),
      slot(Py_tp_members, static_cast<void*>(members)),
      {},
  };
  PyType_Spec spec = {
      name, sizeof(Instance<T>), 0,
      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE, slots};
  return add_type(module, spec);
}

}  // namespace

const tls::Context* to_native_context(PyObject* object) {
  if (Py_TYPE(object) == native_context_type) return &unwrap<tls::Context>(object);
  PyErr_Format(PyExc_TypeError, "a native TLS context is required, not '%.100s'",
               Py_TYPE(object)->tp_name);
  return nullptr;
}

bool add_tls_context(PyObject* module) {
  native_context_type = add_handle<tls::Context>(module, "runloom_c._TLSContext",
                                                 "A TLS context that never changes.");
  session_type = add_handle<tls::Session>(module, "runloom.tls.TLSSession", kSessionDoc);
  return native_context_type && session_type && PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace runloom::python
