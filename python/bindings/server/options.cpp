#include <algorithm>
#include <chrono>
#include <climits>

#include "server/server.hpp"
#include "support/args.hpp"

namespace runloom::python {
namespace {

// A number of the dict; false with an exception set when it is none, or out of range.
bool get(PyObject* dict, const char* key, std::int64_t least, std::int64_t most,
         std::int64_t& result) {
  PyObject* value = PyDict_GetItemString(dict, key);
  Py_ssize_t number;
  if (!value) {
    PyErr_Format(PyExc_KeyError, "%s", key);
    return false;
  }
  if (!to_size(value, key, number)) return false;
  if (number < least || number > most) {
    PyErr_Format(PyExc_ValueError, "%s is out of range", key);
    return false;
  }
  result = number;
  return true;
}

bool get(PyObject* dict, const char* key, std::size_t& result) {
  std::int64_t number;
  if (!get(dict, key, 0, PY_SSIZE_T_MAX, number)) return false;
  result = static_cast<std::size_t>(number);
  return true;
}

bool get(PyObject* dict, const char* key, bool& result) {
  std::int64_t number;
  if (!get(dict, key, 0, 1, number)) return false;
  result = number != 0;
  return true;
}

// In milliseconds; 0 has the meaning that the option gives it.
bool get(PyObject* dict, const char* key, std::chrono::milliseconds& result) {
  std::int64_t number;
  if (!get(dict, key, 0, std::int64_t{1} << 40, number)) return false;
  result = std::chrono::milliseconds(number);
  return true;
}

bool get_networks(PyObject* dict, net::ProxyOptions& proxy) {
  PyObject* networks = PyDict_GetItemString(dict, "trusted_proxies");
  if (!networks || !PyTuple_Check(networks)) {
    PyErr_SetString(PyExc_TypeError, "trusted_proxies must be a tuple");
    return false;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(networks); ++i) {
    Py_ssize_t size;
    const char* text = PyUnicode_AsUTF8AndSize(PyTuple_GET_ITEM(networks, i), &size);
    if (!text) return false;
    std::string problem;
    auto network = net::Network::parse({text, static_cast<std::size_t>(size)}, &problem);
    if (!network) {
      PyErr_Format(PyExc_ValueError, "trusted_proxies: %s", problem.c_str());
      return false;
    }
    proxy.trusted.push_back(*network);
  }
  return true;
}

}  // namespace

bool to_options(PyObject* dict, net::ServerOptions& options) {
  net::ServerTimeouts& timeouts = options.timeouts;
  std::int64_t backlog, prefix, rate;
  bool lingers, refuses;
  net::ServerOptions::Linger linger;
  if (!get(dict, "backlog", 0, INT_MAX, backlog) ||
      !get(dict, "max_connections", options.max_connections) ||
      !get(dict, "reject_over_limit", options.reject_over_limit) ||
      !get(dict, "max_connections_per_peer", options.max_connections_per_peer) ||
      !get(dict, "ipv6_peer_prefix", 1, 128, prefix) ||
      !get(dict, "handshake", timeouts.handshake) ||
      !get(dict, "first_byte", timeouts.first_byte) || !get(dict, "idle", timeouts.idle) ||
      !get(dict, "head", timeouts.head) || !get(dict, "body", timeouts.body) ||
      !get(dict, "write", timeouts.write) || !get(dict, "least_rate", 0, UINT32_MAX, rate) ||
      !get_networks(dict, options.proxy) ||
      !get(dict, "serve_untrusted", options.proxy.serve_untrusted) ||
      !get(dict, "lingers", lingers) || !get(dict, "linger_time", linger.time) ||
      !get(dict, "linger_bytes", linger.bytes) || !get(dict, "stack_size", options.stack_size) ||
      !get(dict, "refuse_backlog_at_stop", refuses) ||
      !get(dict, "cancel_grace", options.cancel_grace) ||
      !get(dict, "notify_systemd", options.notify_systemd))
    return false;
  options.listen.backlog = static_cast<int>(backlog);
  options.ipv6_peer_prefix = static_cast<int>(prefix);
  timeouts.least_rate = static_cast<std::uint32_t>(rate);
  if (lingers) options.linger = linger;
  options.backlog_at_stop =
      refuses ? net::ServerOptions::Backlog::refuse : net::ServerOptions::Backlog::serve;
  options.guests = true;
  return true;
}

}  // namespace runloom::python
