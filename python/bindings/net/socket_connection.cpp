// Sockets: bind, listen, accept, connect, and the addresses at both ends.
#include <fcntl.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>

#include "core/park.hpp"
#include "core/scope.hpp"
#include "net/socket.hpp"
#include "runloom/net/unix_socket.hpp"
#include "support/args.hpp"
#include "support/errors.hpp"
#include "support/ref.hpp"
#include "support/types.hpp"

namespace runloom::python {
namespace {

using Use = net::Fd::Use;

PyObject* raise_closed() {
  return raise(make_error_code(Errc::closed));
}

PyObject* bind(PyObject* self, PyObject* address) {
  const Socket& socket = as_socket(self);
  SocketAddress local;
  if (!to_address(socket.family, address, "bind", local)) return nullptr;
  const Use use(socket.fd);
  if (!use) return raise_closed();
  if (::bind(use.number(), local.data(), local.size) != 0) return raise_at(last_errno(), local);
  Py_RETURN_NONE;
}

PyObject* listen(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const parameters[] = {"backlog"};
  static const Signature signature{"listen", parameters, 1, 0, 1};
  PyObject* value[1];
  Py_ssize_t backlog = 128;
  if (!parse(signature, args, count, names, value) ||
      (value[0] && !to_size(value[0], "backlog", backlog)))
    return nullptr;
  Socket& socket = as_socket(self);
  const Use use(socket.fd);
  if (!use) return raise_closed();
  const Py_ssize_t within = std::clamp<Py_ssize_t>(backlog, 0, INT_MAX);
  if (::listen(use.number(), static_cast<int>(within)) != 0) return raise(last_errno());
  socket.listening = true;
  Py_RETURN_NONE;
}

PyObject* accept(PyObject* self, PyObject*) {
  Socket& listener = as_socket(self);
  SocketAddress peer;
  peer.size = sizeof peer.storage;
  int number;
  {
    ParkGuard guard;
    const auto accepted =
        listener.family == AF_UNIX
            ? net::accept_unix(listener.fd, peer.data(), &peer.size, listener.deadline())
            : listener.fd.accept(peer.data(), &peer.size, listener.deadline());
    if (!accepted) return raise_io(listener, accepted.error());
    number = *accepted;
  }
  auto fd = net::Fd::own(number, kind_of(listener.family, listener.type));
  if (!fd) {
    ::close(number);
    return raise(fd.error());
  }
  const Ref socket =
      Ref::steal(new_socket(std::move(*fd), listener.family, listener.type, listener.proto));
  const Ref address = Ref::steal(socket ? from_address(peer) : nullptr);
  return address ? PyTuple_Pack(2, socket.get(), address.get()) : nullptr;
}

// A connect to a port where nobody listens succeeds when the kernel picks that very port for our
// own side: a client that retries until its server is up would end up talking to itself, and hold
// the server's port.
bool undo_self_connect(const Socket& socket, const SocketAddress& peer) noexcept {
  const Use use(socket.fd);
  SocketAddress local;
  local.size = sizeof local.storage;
  if (!use || socket.type != SOCK_STREAM || (peer.family() != AF_INET && peer.family() != AF_INET6))
    return false;
  if (::getsockname(use.number(), local.data(), &local.size) != 0 || local.size != peer.size)
    return false;
  bool same;
  if (peer.family() == AF_INET) {
    const auto* a = reinterpret_cast<const sockaddr_in*>(&local.storage);
    const auto* b = reinterpret_cast<const sockaddr_in*>(&peer.storage);
    same = a->sin_port == b->sin_port && a->sin_addr.s_addr == b->sin_addr.s_addr;
  } else {
    const auto* a = reinterpret_cast<const sockaddr_in6*>(&local.storage);
    const auto* b = reinterpret_cast<const sockaddr_in6*>(&peer.storage);
    same = a->sin6_port == b->sin6_port &&
           std::memcmp(&a->sin6_addr, &b->sin6_addr, sizeof a->sin6_addr) == 0;
  }
  if (!same) return false;
  sockaddr nobody{};
  nobody.sa_family = AF_UNSPEC;
  (void)::connect(use.number(), &nobody, sizeof nobody);
  return true;
}

Result<void> connect_to(const Socket& socket, const SocketAddress& peer) {
  if (!socket.blocking()) {
    const Use use(socket.fd);
    if (!use) return fail(Errc::closed);
    if (::connect(use.number(), peer.data(), peer.size) != 0) return fail(last_errno());
    return {};
  }
  ParkGuard guard;
  if (socket.family == AF_UNIX)
    return net::connect_unix(socket.fd, peer.data(), peer.size, socket.deadline());
  auto connected = socket.fd.connect(peer.data(), peer.size, socket.deadline());
  if (connected && undo_self_connect(socket, peer)) return fail(Errc::self_connect);
  return connected;
}

PyObject* connect(PyObject* self, PyObject* address) {
  const Socket& socket = as_socket(self);
  SocketAddress peer;
  if (!to_address(socket.family, address, "connect", peer)) return nullptr;
  const auto connected = connect_to(socket, peer);
  if (!connected) return raise_at(connected.error(), peer);
  Py_RETURN_NONE;
}

PyObject* connect_ex(PyObject* self, PyObject* address) {
  const Socket& socket = as_socket(self);
  SocketAddress peer;
  if (!to_address(socket.family, address, "connect_ex", peer)) return nullptr;
  const auto connected = connect_to(socket, peer);
  if (connected) return PyLong_FromLong(0);
  const std::error_code error = connected.error();
  if (error.category() == std::system_category()) return PyLong_FromLong(error.value());
  if (error == make_error_code(Errc::closed)) return PyLong_FromLong(EBADF);
  if (error == make_error_code(Errc::timed_out) && !scope_has_ended())
    return PyLong_FromLong(EAGAIN);
  if (error == make_error_code(Errc::self_connect)) return PyLong_FromLong(ECONNREFUSED);
  return raise(error);
}

PyObject* address_at(PyObject* self, int (*call)(int, sockaddr*, socklen_t*)) {
  const Use use(as_socket(self).fd);
  if (!use) return raise_closed();
  SocketAddress address;
  address.size = sizeof address.storage;
  if (call(use.number(), address.data(), &address.size) != 0) return raise(last_errno());
  return from_address(address);
}

PyObject* getsockname(PyObject* self, PyObject*) {
  return address_at(self, &::getsockname);
}
PyObject* getpeername(PyObject* self, PyObject*) {
  return address_at(self, &::getpeername);
}

PyObject* shutdown(PyObject* self, PyObject* value) {
  int how;
  if (!to_int(value, "how", how)) return nullptr;
  ParkGuard guard;
  const auto done = as_socket(self).fd.shutdown(how);
  if (!done) return raise(done.error());
  Py_RETURN_NONE;
}

}  // namespace

net::FdKind kind_of(int family, int type) noexcept {
  if (type != SOCK_STREAM) return net::FdKind::datagram;
  return family == AF_INET || family == AF_INET6 ? net::FdKind::tcp : net::FdKind::stream;
}

PyMethodDef socket_connection_methods[] = {
    method("bind", &bind, METH_O, "bind($self, address, /)\n--\n\nBind to a local address."),
    fast_method("listen", &listen,
                "listen($self, /, backlog=128)\n--\n\n"
                "Let so many connections wait to be accepted."),
    method("accept", &accept, METH_NOARGS,
           "accept($self, /)\n--\n\nWait for a connection; return (socket, address).\n\n"
           "Running out of descriptors is an OSError, and the connection stays in the queue."),
    method("connect", &connect, METH_O, "connect($self, address, /)\n--\n\nConnect."),
    method("connect_ex", &connect_ex, METH_O,
           "connect_ex($self, address, /)\n--\n\nConnect; return 0 or the errno."),
    method("getsockname", &getsockname, METH_NOARGS,
           "getsockname($self, /)\n--\n\nThe local address."),
    method("getpeername", &getpeername, METH_NOARGS,
           "getpeername($self, /)\n--\n\nThe address of the peer."),
    method("shutdown", &shutdown, METH_O,
           "shutdown($self, how, /)\n--\n\nEnd one direction, or both."),
    {},
};

}  // namespace runloom::python
