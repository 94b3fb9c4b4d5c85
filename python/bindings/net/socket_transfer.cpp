// Sockets: bytes in and out.
#include <fcntl.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/park.hpp"
#include "net/buffer.hpp"
#include "net/recv_bytes.hpp"
#include "net/served.hpp"
#include "net/socket.hpp"
#include "runloom/net/unix_socket.hpp"
#include "support/args.hpp"
#include "support/errors.hpp"
#include "support/ref.hpp"
#include "support/types.hpp"

namespace runloom::python {
namespace {

// The arguments of functions that take them by position only.
bool check_count(const char* function, Py_ssize_t count, Py_ssize_t least, Py_ssize_t most) {
  if (count >= least && count <= most) [[likely]]
    return true;
  if (count < least) {
    PyErr_Format(PyExc_TypeError, "%s() takes at least %zd argument%s (%zd given)", function, least,
                 least == 1 ? "" : "s", count);
  } else {
    PyErr_Format(PyExc_TypeError, "%s() takes at most %zd argument%s (%zd given)", function, most,
                 most == 1 ? "" : "s", count);
  }
  return false;
}

bool to_flags(PyObject* value, int& flags) {
  return to_int(value, "flags", flags);
}

bool check_size(Py_ssize_t size, const char* function) {
  if (size >= 0) [[likely]]
    return true;
  PyErr_Format(PyExc_ValueError, "negative buffersize in %s", function);
  return false;
}

PyObject* receive_with_flags(Socket& socket, Py_ssize_t size, int flags) {
  Ref bytes = Ref::steal(PyBytes_FromStringAndSize(nullptr, size));
  if (!bytes) return nullptr;
  const std::span memory(reinterpret_cast<std::byte*>(PyBytes_AS_STRING(bytes.get())),
                         static_cast<std::size_t>(size));
  ParkGuard guard;
  const auto count = bounded_read(socket, socket.deadline(), [&](Deadline until) {
    return socket.fd.recv(memory, flags_of(socket, flags), until);
  });
  if (!count) return raise_io(socket, count.error());
  PyObject* result = bytes.release();
  // With MSG_TRUNC the kernel tells the size of the datagram.
  if (*count < memory.size()) _PyBytes_Resize(&result, static_cast<Py_ssize_t>(*count));
  return result;
}

Result<void> send_flagged(const Socket& socket, std::span<const std::byte> data, int flags,
                          Deadline deadline) {
  std::size_t sent = 0;
  do {
    if (sent != 0 && deadline.passed()) return fail(Errc::timed_out);
    RUNLOOM_TRY(const std::size_t count, socket.fd.send(data.subspan(sent), flags, deadline));
    sent += count;
  } while (sent < data.size());
  return {};
}

// Drops the first bytes of what is unread. False with MemoryError set.
bool take_unread(Socket& socket, Py_ssize_t count) {
  const Py_ssize_t left = PyBytes_GET_SIZE(socket.unread) - count;
  PyObject* rest = nullptr;
  if (left != 0) {
    rest = PyBytes_FromStringAndSize(PyBytes_AS_STRING(socket.unread) + count, left);
    if (!rest) return false;
  }
  Py_XDECREF(std::exchange(socket.unread, rest));
  return true;
}

// ---------------------------------------------------------------- methods

PyObject* recv(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  Py_ssize_t size;
  int flags = 0;
  if (!check_count("recv", count, 1, 2) || !to_size(args[0], "bufsize", size) ||
      !check_size(size, "recv") || (count > 1 && !to_flags(args[1], flags)))
    return nullptr;
  return receive(as_socket(self), size, flags);
}

PyObject* recv_into(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const parameters[] = {"buffer", "nbytes", "flags"};
  static const Signature signature{"recv_into", parameters, 3, 1, 3};
  PyObject* value[3];
  Py_ssize_t size = 0;
  int flags = 0;
  if (!parse(signature, args, count, names, value) ||
      (value[1] && !to_size(value[1], "nbytes", size)) || !check_size(size, "recv_into") ||
      (value[2] && !to_flags(value[2], flags)))
    return nullptr;
  return receive_into(as_socket(self), value[0], size, flags);
}

// One message with its sender. No size at all still takes a datagram, as the standard library's
// recvfrom does.
Result<std::size_t> receive_from(const Socket& socket, std::span<std::byte> bytes, int flags,
                                 SocketAddress& from) {
  if (socket.unread) return fail(Errc::unread_data);
  iovec memory{bytes.data(), bytes.size()};
  msghdr message{};
  message.msg_name = &from.storage;
  message.msg_namelen = sizeof from.storage;
  message.msg_iov = &memory;
  message.msg_iovlen = 1;
  ParkGuard guard;
  auto got = bounded_read(socket, socket.deadline(), [&](Deadline until) {
    return socket.fd.recvmsg(message, flags_of(socket, flags), until);
  });
  if (got) from.size = message.msg_namelen;
  return got;
}

PyObject* recvfrom(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  const Socket& socket = as_socket(self);
  Py_ssize_t size;
  int flags = 0;
  if (!check_count("recvfrom", count, 1, 2) || !to_size(args[0], "bufsize", size) ||
      !check_size(size, "recvfrom") || (count > 1 && !to_flags(args[1], flags)))
    return nullptr;
  Ref bytes = Ref::steal(PyBytes_FromStringAndSize(nullptr, size));
  if (!bytes) return nullptr;
  const std::span memory(reinterpret_cast<std::byte*>(PyBytes_AS_STRING(bytes.get())),
                         static_cast<std::size_t>(size));
  SocketAddress from;
  const auto got = receive_from(socket, memory, flags, from);
  if (!got) return raise_io(socket, got.error());
  PyObject* data = bytes.release();
  if (*got < static_cast<std::size_t>(size) &&
      _PyBytes_Resize(&data, static_cast<Py_ssize_t>(*got)) < 0)
    return nullptr;
  bytes = Ref::steal(data);
  const Ref address = Ref::steal(from_address(from));
  return address ? PyTuple_Pack(2, data, address.get()) : nullptr;
}

PyObject* recvfrom_into(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const parameters[] = {"buffer", "nbytes", "flags"};
  static const Signature signature{"recvfrom_into", parameters, 3, 1, 3};
  const Socket& socket = as_socket(self);
  PyObject* value[3];
  Py_ssize_t size = 0;
  int flags = 0;
  Buffer memory;
  if (!parse(signature, args, count, names, value) ||
      (value[1] && !to_size(value[1], "nbytes", size)) || !check_size(size, "recvfrom_into") ||
      (value[2] && !to_flags(value[2], flags)) || !memory.write(value[0]))
    return nullptr;
  auto bytes = memory.bytes();
  if (static_cast<std::size_t>(size) > bytes.size()) {
    PyErr_SetString(PyExc_ValueError, "nbytes is greater than the length of the buffer");
    return nullptr;
  }
  if (size != 0) bytes = bytes.first(static_cast<std::size_t>(size));
  SocketAddress from;
  const auto got = receive_from(socket, bytes, flags, from);
  if (!got) return raise_io(socket, got.error());
  PyObject* address = from_address(from);
  return address ? Py_BuildValue("(nN)", static_cast<Py_ssize_t>(*got), address) : nullptr;
}

PyObject* send(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  int flags = 0;
  if (!check_count("send", count, 1, 2) || (count > 1 && !to_flags(args[1], flags))) return nullptr;
  return send_some(as_socket(self), args[0], flags);
}

PyObject* sendall(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  int flags = 0;
  if (!check_count("sendall", count, 1, 2) || (count > 1 && !to_flags(args[1], flags)) ||
      send_whole(as_socket(self), args[0], flags) < 0)
    return nullptr;
  Py_RETURN_NONE;
}

PyObject* sendto(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  Socket& socket = as_socket(self);
  int flags = 0;
  Buffer data;
  SocketAddress to;
  if (!check_count("sendto", count, 2, 3) || (count > 2 && !to_flags(args[1], flags)) ||
      !data.read(args[0]) || !to_address(socket.family, args[count - 1], "sendto", to))
    return nullptr;
  iovec memory{data.bytes().data(), data.size()};
  msghdr message{};
  message.msg_name = &to.storage;
  message.msg_namelen = to.size;
  message.msg_iov = &memory;
  message.msg_iovlen = 1;
  ParkGuard guard;
  const auto sent = send_message(socket, message, flags);
  if (!sent) return raise_io(socket, sent.error());
  return PyLong_FromSize_t(*sent);
}

// _sendfile(fd, offset, count) -> (sent, error or None): sendfile() without its conveniences.
PyObject* sendfile_fd(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  Socket& socket = as_socket(self);
  Py_ssize_t offset, wanted;
  if (!check_count("_sendfile", count, 3, 3)) return nullptr;
  const int file = PyObject_AsFileDescriptor(args[0]);
  if (file < 0 || !to_size(args[1], "offset", offset) || !to_size(args[2], "count", wanted) ||
      !check_size(wanted, "sendfile"))
    return nullptr;
  std::size_t sent = 0;
  Ref error = Ref::share(Py_None);
  {
    ParkGuard guard;
    const auto size = static_cast<std::size_t>(wanted);
    const auto done = bounded_write(socket, size, socket.deadline(), [&](Deadline until) {
      return socket.fd.send_file(file, offset, size, until, &sent);
    });
    if (!done) {
      raise_io(socket, done.error());
      error = Ref::steal(take_raised());
    }
  }
  return Py_BuildValue("(nO)", static_cast<Py_ssize_t>(sent), error.get());
}

}  // namespace

PyObject* raise_io(const Socket& socket, std::error_code error) {
  if (!socket.blocking() && error == make_error_code(Errc::timed_out))
    return raise(errno_code(EAGAIN));
  if (socket.served) [[unlikely]]
    error = served_failed(socket, error);
  return raise(error);
}

PyObject* receive(Socket& socket, Py_ssize_t size, int flags) {
  if (size == 0) return PyBytes_FromStringAndSize(nullptr, 0);
  if (socket.unread) [[unlikely]] {
    const Ref bytes = Ref::steal(PyBytes_FromStringAndSize(
        PyBytes_AS_STRING(socket.unread), std::min(size, PyBytes_GET_SIZE(socket.unread))));
    if (bytes && (flags & MSG_PEEK) == 0 && !take_unread(socket, PyBytes_GET_SIZE(bytes.get())))
      return nullptr;
    return Py_XNewRef(bytes.get());
  }
  if (flags != 0 || !socket.blocking()) return receive_with_flags(socket, size, flags);
  RecvBytes buffer(static_cast<std::size_t>(size), socket.small_reads);
  ParkGuard guard;
  const auto count = bounded_read(socket, socket.deadline(), [&](Deadline until) {
    return socket.fd.recv_late(buffer, until);
  });
  if (count) [[likely]]
    return buffer.release();
  return PyErr_Occurred() ? nullptr : raise_io(socket, count.error());
}

PyObject* receive_into(Socket& socket, PyObject* buffer, Py_ssize_t size, int flags) {
  Buffer memory;
  if (!memory.write(buffer)) return nullptr;
  auto bytes = memory.bytes();
  if (static_cast<std::size_t>(size) > bytes.size()) {
    PyErr_SetString(PyExc_ValueError, "buffer too small for requested bytes");
    return nullptr;
  }
  if (size != 0) bytes = bytes.first(static_cast<std::size_t>(size));
  if (bytes.empty()) return PyLong_FromLong(0);
  if (socket.unread) [[unlikely]] {
    const auto most =
        std::min(bytes.size(), static_cast<std::size_t>(PyBytes_GET_SIZE(socket.unread)));
    std::memcpy(bytes.data(), PyBytes_AS_STRING(socket.unread), most);
    if ((flags & MSG_PEEK) == 0 && !take_unread(socket, static_cast<Py_ssize_t>(most)))
      return nullptr;
    return PyLong_FromSize_t(most);
  }
  ParkGuard guard;
  const auto count = bounded_read(socket, socket.deadline(), [&](Deadline until) {
    return socket.fd.recv(bytes, flags_of(socket, flags), until);
  });
  if (!count) return raise_io(socket, count.error());
  return PyLong_FromSize_t(*count);
}

PyObject* send_some(Socket& socket, PyObject* data, int flags) {
  Buffer memory;
  if (!memory.read(data)) return nullptr;
  ParkGuard guard;
  const auto count = bounded_write(socket, memory.size(), socket.deadline(), [&](Deadline until) {
    return socket.fd.send(memory.bytes(), flags_of(socket, flags), until);
  });
  if (!count) return raise_io(socket, count.error());
  return PyLong_FromSize_t(*count);
}

Result<std::size_t> send_message(const Socket& socket, const msghdr& message, int flags) {
  flags = flags_of(socket, flags);
  if (socket.family == AF_UNIX && socket.type == SOCK_DGRAM && message.msg_name)
    return net::sendmsg_to(socket.fd, message, flags, socket.deadline());
  std::size_t size = 0;
  for (std::size_t i = 0; i < message.msg_iovlen; ++i)
    size += message.msg_iov[i].iov_len;
  return bounded_write(socket, size, socket.deadline(),
                       [&](Deadline until) { return socket.fd.sendmsg(message, flags, until); });
}

Py_ssize_t send_whole(Socket& socket, PyObject* data, int flags) {
  Buffer memory;
  if (!memory.read(data)) return -1;
  ParkGuard guard;
  const Result<void> done =
      bounded_write(socket, memory.size(), socket.deadline(), [&](Deadline until) {
        if (flags != 0 || memory.size() == 0) [[unlikely]]
          return send_flagged(socket, memory.bytes(), flags_of(socket, flags), until);
        const iovec all{memory.bytes().data(), memory.size()};
        return socket.fd.send_all({&all, 1}, until);
      });
  if (done) [[likely]]
    return static_cast<Py_ssize_t>(memory.size());
  raise_io(socket, done.error());
  return -1;
}

PyMethodDef socket_transfer_methods[] = {
    method("recv", &recv, METH_FASTCALL,
           "recv($self, bufsize, flags=0, /)\n--\n\n"
           "Receive up to bufsize bytes; b'' is the end of the stream.\n\n"
           "Nothing is allocated while it waits."),
    fast_method("recv_into", &recv_into,
                "recv_into($self, /, buffer, nbytes=0, flags=0)\n--\n\n"
                "Receive into a buffer, up to nbytes (0: its size); return how many bytes."),
    method("recvfrom", &recvfrom, METH_FASTCALL,
           "recvfrom($self, bufsize, flags=0, /)\n--\n\n"
           "Receive (data, address); on a stream the address is None."),
    fast_method("recvfrom_into", &recvfrom_into,
                "recvfrom_into($self, /, buffer, nbytes=0, flags=0)\n--\n\n"
                "Receive into a buffer, up to nbytes (0: its size); return (how many, address)."),
    method("send", &send, METH_FASTCALL,
           "send($self, data, flags=0, /)\n--\n\n"
           "Send; return how many bytes the kernel took: all of a datagram, of a stream at least "
           "one."),
    method("sendall", &sendall, METH_FASTCALL,
           "sendall($self, data, flags=0, /)\n--\n\n"
           "Send all of the data. The socket's timeout bounds the whole call.\n\n"
           "When it ends in the middle by a timeout or a cancel, later sends fail (EPIPE)."),
    method("sendto", &sendto, METH_FASTCALL,
           "sendto($self, data, [flags,] address)\n\nSend to an address."),
    method("_sendfile", &sendfile_fd, METH_FASTCALL, nullptr),
    {},
};

}  // namespace runloom::python
