// Sockets: listening on a path, and pairs.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>

#include "core/park.hpp"
#include "net/socket.hpp"
#include "runloom/net/unix_listener.hpp"
#include "support/args.hpp"
#include "support/errors.hpp"
#include "support/ref.hpp"
#include "support/types.hpp"

namespace runloom::python {
namespace {

// _unix_listen(path, backlog, mode or None) -> Socket
PyObject* unix_listen(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const parameters[] = {"path", "backlog", "mode"};
  static const Signature signature{"unix_listen", parameters, 3, 3, 3};
  PyObject* value[3];
  Py_ssize_t backlog;
  int mode = 0;
  SocketAddress address;
  if (!parse(signature, args, count, names, value) || !to_size(value[1], "backlog", backlog) ||
      (value[2] != Py_None && !to_int(value[2], "mode", mode)) ||
      !to_address(AF_UNIX, value[0], "unix_listen", address))
    return nullptr;
  if (mode < 0 || mode > 07777) {
    PyErr_Format(PyExc_ValueError, "unix_listen(): mode must be 0 to 0o7777, not %d", mode);
    return nullptr;
  }
  return or_no_memory([&]() -> PyObject* {
    const auto where = net::Address::from_sockaddr(address.data(), address.size);
    if (!where) return raise_at(where.error(), address);
    net::UnixListenOptions options;
    options.backlog = static_cast<int>(std::clamp<Py_ssize_t>(backlog, 0, INT_MAX));
    if (value[2] != Py_None) options.bind.mode = static_cast<mode_t>(mode);
    ParkGuard guard;
    auto listener = net::UnixListener::listen(*where, options);
    if (!listener) return raise_at(listener.error(), address);
    auto [fd, path] = listener->take();
    PyObject* self = new_socket(std::move(fd), AF_UNIX, SOCK_STREAM, 0);
    if (!self) return nullptr;
    as_socket(self).path = std::move(path);
    as_socket(self).listening = true;
    return self;
  });
}

// _socketpair(family, type, proto) -> (Socket, Socket)
PyObject* socketpair(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const parameters[] = {"family", "type", "proto"};
  static const Signature signature{"socketpair", parameters, 3, 3, 3};
  PyObject* value[3];
  int family, type, proto;
  if (!parse(signature, args, count, names, value) || !to_int(value[0], "family", family) ||
      !to_int(value[1], "type", type) || !to_int(value[2], "proto", proto))
    return nullptr;
  std::array<int, 2> ends;
  if (::socketpair(family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, proto, ends.data()) != 0)
    return raise(last_errno());
  const int plain = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);
  std::array<Ref, 2> sockets;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    auto fd = net::Fd::own(ends[i], kind_of(family, plain));
    if (fd) {
      sockets[i] = Ref::steal(new_socket(std::move(*fd), family, plain, proto));
    } else {
      raise(fd.error());
      ::close(ends[i]);
    }
    if (!sockets[i]) {
      if (i == 0) ::close(ends[1]);
      return nullptr;
    }
    if (type & SOCK_NONBLOCK) as_socket(sockets[i].get()).timeout_ns = 0;
  }
  return PyTuple_Pack(2, sockets[0].get(), sockets[1].get());
}

PyMethodDef functions[] = {
    fast_method("_unix_listen", &unix_listen, nullptr),
    fast_method("_socketpair", &socketpair, nullptr),
    {},
};

}  // namespace

bool add_unix_functions(PyObject* module) {
  return PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace runloom::python
