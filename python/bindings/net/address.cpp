#include "net/address.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <cstring>
#include <string>
#include <vector>

#include "core/scope.hpp"
#include "dns/resolve.hpp"
#include "runloom/net/address.hpp"
#include "support/args.hpp"
#include "support/errors.hpp"
#include "support/ref.hpp"

namespace runloom::python {
namespace {

void set_port(SocketAddress& address, int port) noexcept {
  const auto value = htons(static_cast<std::uint16_t>(port));
  if (address.family() == AF_INET)
    reinterpret_cast<sockaddr_in*>(&address.storage)->sin_port = value;
  else if (address.family() == AF_INET6)
    reinterpret_cast<sockaddr_in6*>(&address.storage)->sin6_port = value;
}

// ---------------------------------------------------------------- tuples

bool to_port(PyObject* object, const char* function, int& port) {
  Py_ssize_t value;
  if (!to_size(object, "port", value)) {
    if (!PyErr_ExceptionMatches(PyExc_OverflowError)) return false;
    value = -1;
  }
  if (value < 0 || value > 0xffff) {
    PyErr_Format(PyExc_OverflowError, "%s(): port must be 0-65535.", function);
    return false;
  }
  port = static_cast<int>(value);
  return true;
}

bool to_ip(int family, PyObject* object, const char* function, SocketAddress& result) {
  const bool v6 = family == AF_INET6;
  const char* name = v6 ? "AF_INET6" : "AF_INET";
  if (!PyTuple_Check(object)) {
    PyErr_Format(PyExc_TypeError, "%s(): %s address must be tuple, not %.100s", function, name,
                 Py_TYPE(object)->tp_name);
    return false;
  }
  const Py_ssize_t length = PyTuple_GET_SIZE(object);
  if (v6 ? length < 2 || length > 4 : length != 2) {
    PyErr_Format(PyExc_TypeError, "%s(): %s address must be a %s", function, name,
                 v6 ? "tuple (host, port[, flowinfo[, scopeid]])" : "pair (host, port)");
    return false;
  }
  std::string host;
  int port;
  if (!to_host(PyTuple_GET_ITEM(object, 0), function, host) ||
      !to_port(PyTuple_GET_ITEM(object, 1), function, port))
    return false;
  Py_ssize_t flow_info = 0, scope_id = 0;
  if (length > 2 && !to_size(PyTuple_GET_ITEM(object, 2), "flowinfo", flow_info)) return false;
  if (length > 3 && !to_size(PyTuple_GET_ITEM(object, 3), "scope_id", scope_id)) return false;
  if (flow_info < 0 || flow_info > 0xfffff) {
    PyErr_Format(PyExc_OverflowError, "%s(): flowinfo must be 0-1048575.", function);
    return false;
  }
  auto* v4_address = reinterpret_cast<sockaddr_in*>(&result.storage);
  auto* v6_address = reinterpret_cast<sockaddr_in6*>(&result.storage);
  result.storage.ss_family = static_cast<sa_family_t>(family);
  result.size = v6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (v6) {
    if (!host.empty() && ::inet_pton(AF_INET6, host.c_str(), &v6_address->sin6_addr) != 1) {
      std::vector<SocketAddress> found;
      if (!resolve(PyTuple_GET_ITEM(object, 0), port, family, 0, false, found)) return false;
      result = found.front();
    }
    v6_address->sin6_flowinfo = htonl(static_cast<std::uint32_t>(flow_info));
    if (scope_id != 0) v6_address->sin6_scope_id = static_cast<std::uint32_t>(scope_id);
  } else if (host == "<broadcast>" || host == "255.255.255.255") {
    v4_address->sin_addr.s_addr = htonl(INADDR_BROADCAST);
  } else if (!host.empty() && ::inet_pton(AF_INET, host.c_str(), &v4_address->sin_addr) != 1) {
    std::vector<SocketAddress> found;
    if (!resolve(PyTuple_GET_ITEM(object, 0), port, family, 0, false, found)) return false;
    result = found.front();
  }
  set_port(result, port);
  return true;
}

bool to_unix(PyObject* object, const char* function, SocketAddress& result) {
  Ref path = Ref::share(object);
  if (!PyUnicode_Check(object) && !PyBytes_Check(object)) {
    path =
        Ref::steal(PyObject_CheckBuffer(object) ? PyBytes_FromObject(object) : PyOS_FSPath(object));
    if (!path) {
      if (PyErr_ExceptionMatches(PyExc_TypeError))
        PyErr_Format(PyExc_TypeError,
                     "%s(): AF_UNIX address must be str, bytes or os.PathLike, not %.100s",
                     function, Py_TYPE(object)->tp_name);
      return false;
    }
  }
  if (PyUnicode_Check(path.get())) path = Ref::steal(PyUnicode_EncodeFSDefault(path.get()));
  if (!path) return false;
  auto* address = reinterpret_cast<sockaddr_un*>(&result.storage);
  const auto size = static_cast<std::size_t>(PyBytes_GET_SIZE(path.get()));
  const char* bytes = PyBytes_AS_STRING(path.get());
  const bool abstract = size == 0 || bytes[0] == 0;
  // The kernel would take what stands in front of it.
  if (!abstract && std::memchr(bytes, 0, size)) {
    PyErr_Format(PyExc_ValueError, "%s(): embedded null byte in AF_UNIX path", function);
    return false;
  }
  if (size + (abstract ? 0 : 1) > sizeof address->sun_path) {
    const Ref error = Ref::steal(
        PyObject_CallFunction(PyExc_OSError, "isO", ENAMETOOLONG, "AF_UNIX path too long", object));
    if (error) PyErr_SetObject(PyExc_OSError, error.get());
    return false;
  }
  address->sun_family = AF_UNIX;
  std::memcpy(address->sun_path, bytes, size);
  result.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + size + (abstract ? 0 : 1));
  return true;
}

PyObject* from_unix(const SocketAddress& address) {
  const auto* local = reinterpret_cast<const sockaddr_un*>(&address.storage);
  constexpr std::size_t kPath = offsetof(sockaddr_un, sun_path);
  const std::size_t size = address.size > kPath ? address.size - kPath : 0;
  if (size > 0 && local->sun_path[0] == 0)
    return PyBytes_FromStringAndSize(local->sun_path, static_cast<Py_ssize_t>(size));
  return PyUnicode_DecodeFSDefaultAndSize(
      local->sun_path, static_cast<Py_ssize_t>(::strnlen(local->sun_path, size)));
}

}  // namespace

bool to_address(int family, PyObject* object, const char* function, SocketAddress& result) {
  result = SocketAddress();
  switch (family) {
    case AF_INET:
    case AF_INET6:
      return or_no_memory([&] { return to_ip(family, object, function, result); });
    case AF_UNIX:
      return to_unix(object, function, result);
    default:
      PyErr_Format(PyExc_OSError, "%s(): bad family", function);
      return false;
  }
}

PyObject* from_address(const SocketAddress& address) {
  if (address.size == 0) Py_RETURN_NONE;
  char text[INET6_ADDRSTRLEN];
  switch (address.family()) {
    case AF_INET: {
      const auto* ip = reinterpret_cast<const sockaddr_in*>(&address.storage);
      ::inet_ntop(AF_INET, &ip->sin_addr, text, sizeof text);
      return Py_BuildValue("(si)", text, int{ntohs(ip->sin_port)});
    }
    case AF_INET6: {
      const auto* ip = reinterpret_cast<const sockaddr_in6*>(&address.storage);
      ::inet_ntop(AF_INET6, &ip->sin6_addr, text, sizeof text);
      return Py_BuildValue("(siII)", text, int{ntohs(ip->sin6_port)}, ntohl(ip->sin6_flowinfo),
                           ip->sin6_scope_id);
    }
    case AF_UNIX:
      return from_unix(address);
    default: {
      const auto* bytes = reinterpret_cast<const char*>(&address.storage);
      constexpr std::size_t kHead = sizeof(sa_family_t);
      const std::size_t size = address.size > kHead ? address.size - kHead : 0;
      return Py_BuildValue("(iN)", address.family(),
                           PyBytes_FromStringAndSize(bytes + kHead, static_cast<Py_ssize_t>(size)));
    }
  }
}

PyObject* from_address(const net::Address& address) {
  SocketAddress out;
  out.size = address.size();
  std::memcpy(&out.storage, address.data(), out.size);
  return from_address(out);
}

std::string to_text(const SocketAddress& address) {
  const auto known = net::Address::from_sockaddr(address.data(), address.size);
  return known ? known->to_string() : std::string("?");
}

namespace {

PyObject* raise_with_address(std::error_code error, const SocketAddress& address) {
  const std::string where = to_text(address);
  if (error == make_error_code(Errc::timed_out) && !scope_has_ended())
    return PyErr_Format(PyExc_TimeoutError, "timed out: %s", where.c_str());
  const bool to_itself = error == make_error_code(Errc::self_connect);
  if (!to_itself && error.category() != std::system_category()) return raise(error);
  const int code = to_itself ? ECONNREFUSED : error.value();
  const std::string text = std::strerror(code) + (": " + where) +
                           (to_itself ? " (the socket was connected to itself)" : "");
  const Ref value = Ref::steal(PyObject_CallFunction(PyExc_OSError, "is", code, text.c_str()));
  if (value) PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(value.get())), value.get());
  return nullptr;
}

}  // namespace

PyObject* raise_at(std::error_code error, const SocketAddress& address) {
  return or_no_memory([&] { return raise_with_address(error, address); });
}

}  // namespace runloom::python
