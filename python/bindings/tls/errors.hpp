// What TLS fails with, as the exceptions of the ssl module.
#pragma once

#include <Python.h>

#include <string>
#include <system_error>

namespace runloom::python {

// Sets the exception that `error` stands for, with `text` to explain it, and returns null:
//   a certificate that was refused  -> ssl.SSLCertVerificationError, with verify_code and
//                                      verify_message
//   an end without close_notify     -> ssl.SSLEOFError
//   whatever else is of TLS         -> ssl.SSLError
// with `library` and `reason` as OpenSSL names them; and as raise() for the rest.
PyObject* raise_tls(std::error_code error, const std::string& text);

// ssl.SSLWantReadError or, for net::kWrite, ssl.SSLWantWriteError. Returns null.
PyObject* raise_wants(unsigned direction);

}  // namespace runloom::python
