#include "dns/resolve.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>

#include <cstring>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "core/park.hpp"
#include "core/scope.hpp"
#include "net/address.hpp"
#include "net/socket.hpp"
#include "runloom/dns/dial.hpp"
#include "runloom/dns/resolver.hpp"
#include "support/args.hpp"
#include "support/errors.hpp"
#include "support/ref.hpp"
#include "support/types.hpp"

namespace runloom::python {
namespace {

SocketAddress to_sockaddr(const net::Address& address) noexcept {
  SocketAddress out;
  out.size = address.size();
  std::memcpy(&out.storage, address.data(), address.size());
  return out;
}

// ---------------------------------------------------------------- getaddrinfo, getnameinfo

// A port as the resolver takes it: a number or the name of a service. None: no service.
bool to_service(PyObject* port, std::optional<std::string>& service) {
  if (port == Py_None) return true;
  Ref text = Ref::share(port);
  if (PyLong_Check(port)) text = Ref::steal(PyObject_Str(port));
  if (text && PyUnicode_Check(text.get())) text = Ref::steal(PyUnicode_AsUTF8String(text.get()));
  if (!text) return false;
  if (!PyBytes_Check(text.get())) {
    PyErr_SetString(PyExc_OSError, "Int or String expected");
    return false;
  }
  service.emplace(PyBytes_AS_STRING(text.get()),
                  static_cast<std::size_t>(PyBytes_GET_SIZE(text.get())));
  return true;
}

std::optional<std::string_view> view(const std::optional<std::string>& text) noexcept {
  if (!text) return std::nullopt;
  return std::string_view(*text);
}

// _getaddrinfo(host, port, family, type, proto, flags) -> [(family, type, proto, name, address)]
PyObject* get_addresses(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 6) {
    PyErr_SetString(PyExc_TypeError, "_getaddrinfo() takes 6 arguments");
    return nullptr;
  }
  return or_no_memory([&]() -> PyObject* {
    dns::Hints hints;
    std::optional<std::string> host, service;
    if (!to_int(args[2], "family", hints.family) || !to_int(args[3], "type", hints.socktype) ||
        !to_int(args[4], "proto", hints.protocol) || !to_int(args[5], "flags", hints.flags) ||
        (args[0] != Py_None && !to_host(args[0], "getaddrinfo", host.emplace())) ||
        !to_service(args[1], service))
      return nullptr;
    ParkGuard guard;
    const auto found = dns::Resolver::process().getaddrinfo(view(host), view(service), hints);
    if (!found) return raise_lookup(found.error(), host.value_or(""));
    Ref list = Ref::steal(PyList_New(0));
    for (const dns::AddressInfo& each : *found) {
      if (!list) return nullptr;
      const Ref entry = Ref::steal(Py_BuildValue("(iiisN)", each.family, each.socktype,
                                                 each.protocol, each.canonical_name.c_str(),
                                                 from_address(to_sockaddr(each.address))));
      if (!entry || PyList_Append(list.get(), entry.get()) < 0) return nullptr;
    }
    return list.release();
  });
}

// _getnameinfo(host, port, flowinfo, scope_id, flags) -> (host, service). The host is numeric.
PyObject* get_name(PyObject*, PyObject* const* args, Py_ssize_t count) {
  int port, flow_info, scope_id, flags;
  if (count != 5) {
    PyErr_SetString(PyExc_TypeError, "_getnameinfo() takes 5 arguments");
    return nullptr;
  }
  if (!to_int(args[1], "port", port) || !to_int(args[2], "flowinfo", flow_info) ||
      !to_int(args[3], "scope_id", scope_id) || !to_int(args[4], "flags", flags))
    return nullptr;
  return or_no_memory([&]() -> PyObject* {
    std::string host;
    if (!to_host(args[0], "getnameinfo", host)) return nullptr;
    const dns::Hints hints{.flags = AI_NUMERICHOST | AI_NUMERICSERV, .socktype = SOCK_DGRAM};
    ParkGuard guard;
    dns::Resolver& resolver = dns::Resolver::process();
    const auto found = resolver.getaddrinfo(host, std::to_string(port), hints);
    if (!found) return raise_lookup(found.error(), host);
    if (found->size() > 1) {
      PyErr_SetString(PyExc_OSError, "sockaddr resolved to multiple addresses");
      return nullptr;
    }
    SocketAddress address = to_sockaddr(found->front().address);
    if (address.family() == AF_INET6) {
      auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
      v6->sin6_flowinfo = htonl(static_cast<std::uint32_t>(flow_info));
      if (scope_id != 0) v6->sin6_scope_id = static_cast<std::uint32_t>(scope_id);
    } else if (flow_info != 0 || scope_id != 0) {
      PyErr_SetString(PyExc_OSError, "IPv4 sockaddr must be 2 tuple");
      return nullptr;
    }
    const auto full = net::Address::from_sockaddr(address.data(), address.size);
    if (!full) return raise(full.error());
    const auto name = resolver.getnameinfo(*full, flags);
    if (!name) return raise_lookup(name.error(), host);
    return Py_BuildValue("(ss)", name->host.c_str(), name->service.c_str());
  });
}

// ---------------------------------------------------------------- connect by name

PyObject* raise_dial(std::error_code error, const std::string& host, const std::string& problem) {
  if (error.category() == dns::dns_category()) return raise_lookup(error, host);
  if (error == make_error_code(Errc::timed_out) && !scope_has_ended())
    return PyErr_Format(PyExc_TimeoutError, "timed out: %s",
                        problem.empty() ? host.c_str() : problem.c_str());
  const bool to_itself = error == make_error_code(Errc::self_connect);
  if (!to_itself && error.category() != std::system_category()) return raise(error);
  const int code = to_itself ? ECONNREFUSED : error.value();
  const std::string text = problem.empty() ? std::strerror(code) + (": " + host) : problem;
  const Ref value = Ref::steal(PyObject_CallFunction(PyExc_OSError, "is", code, text.c_str()));
  if (value) PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(value.get())), value.get());
  return nullptr;
}

PyObject* to_socket(net::TcpStream stream) {
  const int number = stream.fd().number();
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  if (::getsockname(number, reinterpret_cast<sockaddr*>(&own), &size) != 0)
    return raise(last_errno());
  return new_socket(stream.take_fd(), own.ss_family, SOCK_STREAM, IPPROTO_TCP);
}

// _dial(host, port, timeout, no_delay) -> Socket
PyObject* dial(PyObject*, PyObject* const* args, Py_ssize_t count) {
  int port;
  Deadline deadline;
  if (count != 4) {
    PyErr_SetString(PyExc_TypeError, "_dial() takes 4 arguments");
    return nullptr;
  }
  if (!to_int(args[1], "port", port) || !to_deadline(args[2], deadline)) return nullptr;
  const int no_delay = PyObject_IsTrue(args[3]);
  if (no_delay < 0) return nullptr;
  if (port < 0 || port > 0xffff) {
    PyErr_SetString(PyExc_OverflowError, "port must be 0-65535.");
    return nullptr;
  }
  return or_no_memory([&]() -> PyObject* {
    std::string host;
    if (args[0] != Py_None && !to_host(args[0], "tcp_connect", host)) return nullptr;
    dns::DialOptions options;
    options.connect.tcp.no_delay = no_delay != 0;
    std::string problem;
    ParkGuard guard;
    // No host is the loopback, as for the resolver.
    auto stream = dns::dial_host(host.empty() ? "localhost" : host, std::to_string(port), options,
                                 deadline, &problem);
    if (!stream) return raise_dial(stream.error(), host, problem);
    return to_socket(std::move(*stream));
  });
}

// ---------------------------------------------------------------- records and counters

// _dns_query(name, type, timeout) -> [(name, type, ttl, data as text)]
PyObject* query(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Deadline deadline;
  if (count != 3) {
    PyErr_SetString(PyExc_TypeError, "_dns_query() takes 3 arguments");
    return nullptr;
  }
  if (!to_deadline(args[2], deadline)) return nullptr;
  const char* type_text = PyUnicode_Check(args[1]) ? PyUnicode_AsUTF8(args[1]) : nullptr;
  if (!type_text) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "the record type must be a str");
    return nullptr;
  }
  return or_no_memory([&]() -> PyObject* {
    std::string name;
    if (!to_host(args[0], "query", name)) return nullptr;
    const auto type = dns::parse_record_type(type_text);
    if (!type) return PyErr_Format(PyExc_ValueError, "%R is no record type", args[1]);
    ParkGuard guard;
    const auto answer = dns::Resolver::process().query(name, *type, deadline);
    if (!answer) return raise_lookup(answer.error(), name);
    Ref list = Ref::steal(PyList_New(0));
    for (const dns::Record& record : (*answer)->answers) {
      if (!list) return nullptr;
      const std::string data = dns::data_text(record);
      const Ref text = Ref::steal(PyUnicode_DecodeUTF8(
          data.data(), static_cast<Py_ssize_t>(data.size()), "surrogateescape"));
      const Ref entry = Ref::steal(text ? Py_BuildValue("(ssIO)", record.name.c_str(),
                                                        dns::to_string(record.type).c_str(),
                                                        record.ttl, text.get())
                                        : nullptr);
      if (!entry || PyList_Append(list.get(), entry.get()) < 0) return nullptr;
    }
    return list.release();
  });
}

PyObject* strings(const std::vector<net::Address>& addresses) {
  Ref list = Ref::steal(PyList_New(0));
  for (const net::Address& each : addresses) {
    const Ref text = Ref::steal(PyUnicode_FromString(each.to_string().c_str()));
    if (!list || !text || PyList_Append(list.get(), text.get()) < 0) return nullptr;
  }
  return list.release();
}

PyObject* stats(PyObject*, PyObject*) {
  return or_no_memory([]() -> PyObject* {
    const dns::ResolverStats now = dns::Resolver::process().stats();
    const struct {
      const char* key;
      std::uint64_t value;
    } counters[] = {
        {"lookups", now.lookups},       {"numeric", now.numeric},
        {"from_files", now.from_files}, {"from_cache", now.from_cache},
        {"queries", now.queries},       {"coalesced", now.coalesced},
        {"timeouts", now.timeouts},     {"tcp_connections", now.tcp_connections},
        {"dropped", now.dropped},       {"failed", now.failed},
        {"in_flight", now.in_flight},   {"cached", now.cached},
        {"reloads", now.reloads},       {"system_calls", now.system_calls},
    };
    Ref dict = Ref::steal(PyDict_New());
    const auto put = [&](const char* key, PyObject* value) {
      const Ref keep = Ref::steal(value);
      return dict && keep && PyDict_SetItemString(dict.get(), key, keep.get()) == 0;
    };
    for (const auto& counter : counters)
      if (!put(counter.key, PyLong_FromUnsignedLongLong(counter.value))) return nullptr;
    Ref ignored = Ref::steal(PyList_New(0));
    for (const std::string& each : now.ignored_sources) {
      const Ref text = Ref::steal(PyUnicode_FromString(each.c_str()));
      if (!ignored || !text || PyList_Append(ignored.get(), text.get()) < 0) return nullptr;
    }
    if (!put("servers", strings(now.servers)) || !put("dead_servers", strings(now.dead_servers)) ||
        !put("ignored_sources", ignored.release()))
      return nullptr;
    return dict.release();
  });
}

PyObject* reload(PyObject*, PyObject*) {
  ParkGuard guard;
  const auto done = dns::Resolver::process().reload();
  if (!done) return raise(done.error());
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    method("_getaddrinfo", &get_addresses, METH_FASTCALL, nullptr),
    method("_getnameinfo", &get_name, METH_FASTCALL, nullptr),
    method("_dial", &dial, METH_FASTCALL, nullptr),
    method("_dns_query", &query, METH_FASTCALL, nullptr),
    method("_dns_stats", &stats, METH_NOARGS, nullptr),
    method("_dns_reload", &reload, METH_NOARGS, nullptr),
    {},
};

}  // namespace

bool to_host(PyObject* host, const char* function, std::string& text) {
  Ref encoded;
  if (PyUnicode_Check(host)) {
    encoded =
        Ref::steal(PyUnicode_IS_ASCII(host) ? PyUnicode_AsASCIIString(host)
                                            : PyUnicode_AsEncodedString(host, "idna", nullptr));
    if (!encoded) return false;
    host = encoded.get();
  }
  const char* bytes;
  Py_ssize_t size;
  if (PyBytes_Check(host)) {
    bytes = PyBytes_AS_STRING(host);
    size = PyBytes_GET_SIZE(host);
  } else if (PyByteArray_Check(host)) {
    bytes = PyByteArray_AS_STRING(host);
    size = PyByteArray_GET_SIZE(host);
  } else {
    PyErr_Format(PyExc_TypeError, "%s(): host must be str, bytes or bytearray, not %.100s",
                 function, Py_TYPE(host)->tp_name);
    return false;
  }
  text.assign(bytes, static_cast<std::size_t>(size));
  if (text.find('\0') == std::string::npos) return true;
  PyErr_Format(PyExc_ValueError, "%s(): host name must not contain a null character", function);
  return false;
}

PyObject* raise_lookup(std::error_code error, const std::string& host) {
  if (error.category() != dns::dns_category()) return raise(error);
  const Ref socket = Ref::steal(PyImport_ImportModule("socket"));
  const Ref type = Ref::steal(socket ? PyObject_GetAttrString(socket.get(), "gaierror") : nullptr);
  if (!type) return nullptr;
  const int code = dns::eai(error);
  const std::string text =
      host.empty() ? ::gai_strerror(code) : ::gai_strerror(code) + (": " + host);
  const Ref arguments = Ref::steal(Py_BuildValue("(is)", code, text.c_str()));
  if (arguments) PyErr_SetObject(type.get(), arguments.get());
  return nullptr;
}

bool resolve(PyObject* host, int port, int family, int type, bool passive,
             std::vector<SocketAddress>& results) {
  std::optional<std::string> text;
  if (host != Py_None) {
    if (!to_host(host, "resolve", text.emplace())) return false;
    if (text->empty()) text.reset();
  }
  const dns::Hints hints{.flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0),
                         .family = family,
                         .socktype = type != 0 ? type : SOCK_STREAM};
  ParkGuard guard;
  const auto found = dns::Resolver::process().getaddrinfo(view(text), std::to_string(port), hints);
  if (!found) {
    raise_lookup(found.error(), text.value_or(""));
    return false;
  }
  for (const dns::AddressInfo& each : *found)
    results.push_back(to_sockaddr(each.address));
  return true;
}

bool add_dns_functions(PyObject* module) {
  return PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace runloom::python
