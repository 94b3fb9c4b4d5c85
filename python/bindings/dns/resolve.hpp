// Names for Python: on the process's resolver (dns::Resolver::process()), without a thread.
#pragma once

#include <Python.h>

#include <string>
#include <system_error>

namespace runloom::python {

// The host as the resolver takes it. False with TypeError, UnicodeError or ValueError set.
bool to_host(PyObject* host, const char* function, std::string& text);

// Raises socket.gaierror for an error of a lookup, with the host in the text; as raise() for what
// is none. Returns null.
PyObject* raise_lookup(std::error_code error, const std::string& host);

// _getaddrinfo, _getnameinfo, _dial, _dns_query, dns_stats, _dns_reload.
bool add_dns_functions(PyObject* module);

}  // namespace runloom::python
