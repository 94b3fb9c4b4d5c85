#include "tls/errors.hpp"

#include <algorithm>
#include <cctype>

#include "runloom/net/fd.hpp"
#include "runloom/tls/error.hpp"
#include "support/errors.hpp"
#include "support/ref.hpp"

namespace runloom::python {
namespace {

using tls::TlsErrc;

// SSL_ERROR_* of OpenSSL, which are the errno of SSLError.
constexpr int kErrorSsl = 1, kErrorWantRead = 2, kErrorWantWrite = 3, kErrorEof = 8;

// "[SSL: WRONG_VERSION_NUMBER] text", as the ssl module has it.
std::string message_of(const std::string& name, const std::string& text) {
  return name.empty() ? text : "[SSL: " + name + "] " + text;
}

Ref make_error(const char* type_name, int number, const std::string& text) {
  const Ref module = Ref::steal(PyImport_ImportModule("ssl"));
  const Ref type = Ref::steal(module ? PyObject_GetAttrString(module.get(), type_name) : nullptr);
  if (!type) return {};
  return Ref::steal(PyObject_CallFunction(type.get(), "is", number, text.c_str()));
}

bool set(const Ref& error, const char* name, PyObject* value) {
  const Ref owned = Ref::steal(value);
  return owned && PyObject_SetAttrString(error.get(), name, owned.get()) == 0;
}

PyObject* text_or_none(const std::string& text) {
  return text.empty() ? Py_NewRef(Py_None) : PyUnicode_FromString(text.c_str());
}

void raise_object(const Ref& error) {
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.get())), error.get());
}

}  // namespace

PyObject* raise_tls(std::error_code error, const std::string& text) {
  if (error.category() != tls::tls_category()) return raise(error);
  return or_no_memory([&]() -> PyObject* {
    std::string name = tls::reason_of(error);
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) {
      return static_cast<char>(c == ' ' ? '_' : std::toupper(c));
    });
    const bool refused = error == TlsErrc::certificate;
    const bool cut = error == TlsErrc::unexpected_eof;
    const Ref raised =
        make_error(refused ? "SSLCertVerificationError"
                   : cut   ? "SSLEOFError"
                           : "SSLError",
                   cut ? kErrorEof : kErrorSsl,
                   cut ? "EOF occurred in violation of protocol: " + text : message_of(name, text));
    if (!raised || !set(raised, "library", PyUnicode_FromString("SSL")) ||
        !set(raised, "reason", text_or_none(name)))
      return nullptr;
    if (refused && (!set(raised, "verify_code", PyLong_FromLong(tls::tls_detail(error))) ||
                    !set(raised, "verify_message", text_or_none(tls::verify_message_of(error)))))
      return nullptr;
    raise_object(raised);
    return nullptr;
  });
}

PyObject* raise_wants(unsigned direction) {
  const bool writes = direction == net::kWrite;
  const Ref error = make_error(
      writes ? "SSLWantWriteError" : "SSLWantReadError", writes ? kErrorWantWrite : kErrorWantRead,
      writes ? "The operation did not complete (write)" : "The operation did not complete (read)");
  if (error) raise_object(error);
  return nullptr;
}

}  // namespace runloom::python
