// Addresses as Python has them (tuples of host and port, paths) and as the kernel has them, and
// the resolution of names.
#pragma once

#include <Python.h>
#include <sys/socket.h>

#include <string>
#include <system_error>
#include <vector>

#include "runloom/net/address.hpp"

namespace runloom::python {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  sockaddr* data() noexcept { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* data() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const noexcept { return storage.ss_family; }
};

// (host, port), for AF_INET6 also (host, port, flowinfo, scope_id), for AF_UNIX a path as str,
// bytes or os.PathLike, which begins with a zero byte when it is an abstract name. A host that is
// no numeric address is resolved, which parks. False with an exception set: TypeError and
// OverflowError that begin with `function`, socket.gaierror, Cancelled.
bool to_address(int family, PyObject* object, const char* function, SocketAddress& result);
// What getsockname() and accept() of the standard library return. Null with an exception set.
PyObject* from_address(const SocketAddress& address);
// Likewise of one of the core's; None where there is none.
PyObject* from_address(const net::Address& address);
// "127.0.0.1:80", for messages.
std::string to_text(const SocketAddress& address);

// As raise(), with the address in the text.
PyObject* raise_at(std::error_code error, const SocketAddress& address);

// The addresses of a host for `family` (AF_UNSPEC: any), in the resolver's order. None as host:
// the wildcard addresses if `passive`, else loopback. Parks unless the host is numeric. False with
// an exception set. In dns/resolve.cpp.
bool resolve(PyObject* host, int port, int family, int type, bool passive,
             std::vector<SocketAddress>& results);

}  // namespace runloom::python
