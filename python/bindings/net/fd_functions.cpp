#include "net/fd_functions.hpp"

#include "core/park.hpp"
#include "core/scope.hpp"
#include "net/address.hpp"
#include "net/buffer.hpp"
#include "net/fd_argument.hpp"
#include "net/foreign.hpp"
#include "net/recv_bytes.hpp"
#include "net/socket.hpp"
#include "runloom/net/netpoll.hpp"
#include "support/args.hpp"
#include "support/errors.hpp"
#include "support/ref.hpp"
#include "support/types.hpp"

namespace runloom::python {
namespace {

// A receive into memory that the caller has.
class RecvInto final : public net::RecvBuffer {
 public:
  explicit RecvInto(std::span<std::byte> memory) noexcept : memory_(memory) {}
  std::span<std::byte> take() noexcept override { return memory_; }
  std::size_t room() const noexcept override { return memory_.size(); }
  void give_back(std::ptrdiff_t) noexcept override {}

 private:
  std::span<std::byte> memory_;
};

using Receive = Result<std::size_t>(int fd, net::RecvBuffer& buffer, int flags);
using Send = Result<std::size_t>(int fd, std::span<const std::byte> data, int flags);

Result<std::size_t> read_any(int fd, net::RecvBuffer& buffer, int) {
  return foreign_read(fd, buffer);
}
Result<std::size_t> write_any(int fd, std::span<const std::byte> data, int) {
  return foreign_write(fd, data);
}

bool to_flags(PyObject* value, int& flags) {
  flags = 0;
  return !value || to_int(value, "flags", flags);
}

PyObject* raise_failure(std::error_code error) {
  return PyErr_Occurred() ? nullptr : raise(error);
}

// Until `memory` is full or the stream ends.
Result<std::size_t> fill(Receive* call, int fd, std::span<std::byte> memory, int flags) {
  std::size_t filled = 0;
  while (filled < memory.size()) {
    RecvInto rest(memory.subspan(filled));
    Result<std::size_t> count = call(fd, rest, flags & ~MSG_WAITALL);
    if (!count && filled == 0) return count;
    if (!count || *count == 0) break;
    filled += *count;
  }
  return filled;
}

bool must_fill(int flags) noexcept {
  return (flags & MSG_WAITALL) && (flags & (MSG_PEEK | MSG_DONTWAIT)) == 0;
}

PyObject* bytes_from(Receive* call, int fd, Py_ssize_t size, int flags) {
  if (size == 0) return PyBytes_FromStringAndSize(nullptr, 0);
  if (must_fill(flags)) {
    PyObject* bytes = PyBytes_FromStringAndSize(nullptr, size);
    if (!bytes) return nullptr;
    const auto count = fill(
        call, fd,
        {reinterpret_cast<std::byte*>(PyBytes_AS_STRING(bytes)), static_cast<std::size_t>(size)},
        flags);
    if (!count) {
      Py_DECREF(bytes);
      return raise_failure(count.error());
    }
    _PyBytes_Resize(&bytes, static_cast<Py_ssize_t>(*count));
    return bytes;
  }
  static bool small = true;  // nothing is known of the descriptor: judge by the last one
  RecvBytes buffer(static_cast<std::size_t>(size), small);
  const auto count = call(fd, buffer, flags);
  return count ? buffer.release() : raise_failure(count.error());
}

PyObject* into_buffer(Receive* call, int fd, PyObject* target, Py_ssize_t size, int flags) {
  Buffer memory;
  if (!memory.write(target)) return nullptr;
  if (static_cast<std::size_t>(size) > memory.size()) {
    PyErr_SetString(PyExc_ValueError, "buffer too small for requested bytes");
    return nullptr;
  }
  if (size == 0) return PyLong_FromLong(0);
  const auto bytes = memory.bytes().first(static_cast<std::size_t>(size));
  RecvInto buffer(bytes);
  const auto count = must_fill(flags) ? fill(call, fd, bytes, flags) : call(fd, buffer, flags);
  return count ? PyLong_FromSize_t(*count) : raise_failure(count.error());
}

// All of it, by as many calls as it takes. -1 with an exception set.
Py_ssize_t send_all(Send* call, int fd, PyObject* data, int flags) {
  Buffer memory;
  if (!memory.read(data)) return -1;
  std::size_t sent = 0;
  do {
    const auto count = call(fd, memory.bytes().subspan(sent), flags);
    if (!count) {
      raise_failure(count.error());
      return -1;
    }
    sent += *count;
  } while (sent < memory.size());
  return static_cast<Py_ssize_t>(sent);
}

// ---------------------------------------------------------------- functions

PyObject* wait_fd(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const parameters[] = {"fd", "events", "timeout_ms"};
  static const Signature signature{"wait_fd", parameters, 3, 2, 3};
  PyObject* value[3];
  int events;
  double timeout_ms = -1;
  if (!parse(signature, args, count, names, value) || !to_int(value[1], "events", events) ||
      (value[2] && !to_seconds(value[2], "timeout_ms", timeout_ms)))
    return nullptr;
  if (events < 1 || events > 3) {
    PyErr_SetString(PyExc_ValueError, "events must be 1 (read), 2 (write) or 3 (both)");
    return nullptr;
  }
  int fd;
  if (!to_fd(value[0], fd)) return nullptr;
  const Deadline deadline = timeout_ms < 0 ? Deadline::never() : after_seconds(timeout_ms / 1000);
  ParkGuard guard;
  const auto ready = net::wait_fd(fd, static_cast<unsigned>(events), deadline);
  if (!ready && own_time_is_up(ready.error(), deadline)) return PyLong_FromLong(0);
  if (!ready) return raise(ready.error());
  // The time that was up may be that of a scope around.
  if (*ready == 0 && !own_time_is_up(make_error_code(Errc::timed_out), deadline))
    return raise(make_error_code(Errc::timed_out));
  return PyLong_FromUnsignedLong(*ready);
}

// fd_read(fd, n) -> bytes, or fd_read(fd, buffer, n) -> int
PyObject* fd_read(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 2 && count != 3)
    return PyErr_Format(PyExc_TypeError, "fd_read() takes 2 or 3 arguments (%zd given)", count);
  int fd;
  Py_ssize_t size;
  if (!to_fd(args[0], fd) || !to_count(args[count - 1], "n", size)) return nullptr;
  ParkGuard guard;
  return count == 2 ? bytes_from(&read_any, fd, size, 0)
                    : into_buffer(&read_any, fd, args[1], size, 0);
}

PyObject* fd_write(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const parameters[] = {"fd", "data"};
  static const Signature signature{"fd_write", parameters, 2, 2, 2};
  PyObject* value[2];
  int fd;
  if (!parse(signature, args, count, names, value) || !to_fd(value[0], fd)) return nullptr;
  ParkGuard guard;
  const Py_ssize_t sent = send_all(&write_any, fd, value[1], 0);
  return sent < 0 ? nullptr : PyLong_FromSsize_t(sent);
}

// tcp_recv(sock, n) -> bytes, or tcp_recv(sock, buffer, n, flags=0) -> int
PyObject* tcp_recv(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const parameters[] = {"sock", "buf", "n", "flags"};
  static const Signature signature{"tcp_recv", parameters, 4, 3, 4};
  int fd, flags;
  Py_ssize_t size;
  if (count == 2 && !names) {
    if (!to_count(args[1], "n", size)) return nullptr;
    if (is_socket(args[0])) return receive(as_socket(args[0]), size, 0);
    if (!to_fd(args[0], fd)) return nullptr;
    ParkGuard guard;
    return bytes_from(&foreign_recv, fd, size, 0);
  }
  PyObject* value[4];
  if (!parse(signature, args, count, names, value) || !to_count(value[2], "n", size) ||
      !to_flags(value[3], flags))
    return nullptr;
  if (is_socket(value[0]))
    return size == 0 ? PyLong_FromLong(0)
                     : receive_into(as_socket(value[0]), value[1], size, flags);
  if (!to_fd(value[0], fd)) return nullptr;
  ParkGuard guard;
  return into_buffer(&foreign_recv, fd, value[1], size, flags);
}

PyObject* tcp_recv_alloc(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const parameters[] = {"sock", "n", "flags"};
  static const Signature signature{"tcp_recv_alloc", parameters, 3, 2, 3};
  PyObject* value[3];
  int fd, flags;
  Py_ssize_t size;
  if (!parse(signature, args, count, names, value) || !to_count(value[1], "n", size) ||
      !to_flags(value[2], flags))
    return nullptr;
  if (is_socket(value[0])) return receive(as_socket(value[0]), size, flags);
  if (!to_fd(value[0], fd)) return nullptr;
  ParkGuard guard;
  return bytes_from(&foreign_recv, fd, size, flags);
}

struct SendArguments {
  PyObject* value[3];
  int flags;
};
bool parse_send(const char* function, SendArguments& result, PyObject* const* args,
                Py_ssize_t count, PyObject* names) {
  static const char* const parameters[] = {"sock", "data", "flags"};
  const Signature signature{function, parameters, 3, 2, 3};
  return parse(signature, args, count, names, result.value) &&
         to_flags(result.value[2], result.flags);
}

PyObject* tcp_send(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  SendArguments given;
  if (!parse_send("tcp_send", given, args, count, names)) return nullptr;
  if (is_socket(given.value[0])) {
    const Py_ssize_t sent = send_whole(as_socket(given.value[0]), given.value[1], given.flags);
    return sent < 0 ? nullptr : PyLong_FromSsize_t(sent);
  }
  int fd;
  if (!to_fd(given.value[0], fd)) return nullptr;
  ParkGuard guard;
  const Py_ssize_t sent = send_all(&foreign_send, fd, given.value[1], given.flags);
  return sent < 0 ? nullptr : PyLong_FromSsize_t(sent);
}

PyObject* tcp_send_once(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  SendArguments given;
  if (!parse_send("tcp_send_once", given, args, count, names)) return nullptr;
  if (is_socket(given.value[0]))
    return send_some(as_socket(given.value[0]), given.value[1], given.flags);
  int fd;
  Buffer data;
  if (!to_fd(given.value[0], fd) || !data.read(given.value[1])) return nullptr;
  ParkGuard guard;
  const auto sent = foreign_send(fd, data.bytes(), given.flags);
  return sent ? PyLong_FromSize_t(*sent) : raise_failure(sent.error());
}

// _resolve(host, port, family, type, passive) -> [(family, address), ...]
PyObject* resolve_host(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const parameters[] = {"host", "port", "family", "type", "passive"};
  static const Signature signature{"_resolve", parameters, 5, 5, 5};
  PyObject* value[5];
  int port, family, type;
  if (!parse(signature, args, count, names, value) || !to_int(value[1], "port", port) ||
      !to_int(value[2], "family", family) || !to_int(value[3], "type", type))
    return nullptr;
  if (port < 0 || port > 0xffff) {
    PyErr_SetString(PyExc_OverflowError, "port must be 0-65535.");
    return nullptr;
  }
  const int passive = PyObject_IsTrue(value[4]);
  if (passive < 0) return nullptr;
  return or_no_memory([&]() -> PyObject* {
    std::vector<SocketAddress> found;
    if (!resolve(value[0], port, family, type, passive != 0, found)) return nullptr;
    Ref list = Ref::steal(PyList_New(0));
    for (const SocketAddress& address : found) {
      if (!list) return nullptr;
      const Ref entry = Ref::steal(Py_BuildValue("(iN)", address.family(), from_address(address)));
      if (!entry || PyList_Append(list.get(), entry.get()) < 0) return nullptr;
    }
    return list.release();
  });
}

PyObject* netpoll_backend(PyObject*, PyObject*) {
  std::string_view name;
  if (this_fiber::exists()) {
    const auto current = net::Netpoll::current();
    if (!current) return raise(current.error());
    name = (*current)->name();
  } else {
    // What a fiber's first wait will choose.
    const auto made = net::make_netpoll();
    if (!made) return raise(made.error());
    name = (*made)->name();
  }
  return PyUnicode_FromStringAndSize(name.data(), static_cast<Py_ssize_t>(name.size()));
}

PyMethodDef functions[] = {
    fast_method("wait_fd", &wait_fd,
                "wait_fd($module, /, fd, events, timeout_ms=-1)\n--\n\n"
                "Wait until a descriptor is ready; return the ready events, 0 on timeout.\n\n"
                "Events: 1 to read, 2 to write. A timeout of 0 looks without waiting."),
    method("fd_read", &fd_read, METH_FASTCALL,
           "fd_read(fd, n) -> bytes\nfd_read(fd, buffer, n) -> int\n\n"
           "Read up to n bytes from a descriptor. Nothing is the end."),
    fast_method("fd_write", &fd_write,
                "fd_write($module, /, fd, data)\n--\n\n"
                "Write all of the data to a descriptor; return how many bytes."),
    fast_method("tcp_recv", &tcp_recv,
                "tcp_recv(sock, n) -> bytes\ntcp_recv(sock, buf, n, flags=0) -> int\n\n"
                "Receive up to n bytes from a socket or its descriptor. Nothing is the end."),
    fast_method("tcp_recv_alloc", &tcp_recv_alloc,
                "tcp_recv_alloc($module, /, sock, n, flags=0)\n--\n\n"
                "Receive up to n bytes from a socket or its descriptor, with flags."),
    fast_method("tcp_send", &tcp_send,
                "tcp_send($module, /, sock, data, flags=0)\n--\n\n"
                "Send all of the data to a socket or its descriptor; return how many bytes."),
    fast_method("tcp_send_once", &tcp_send_once,
                "tcp_send_once($module, /, sock, data, flags=0)\n--\n\n"
                "Send what the kernel takes at once; return how many bytes."),
    fast_method("_resolve", &resolve_host, nullptr),
    method("netpoll_backend", &netpoll_backend, METH_NOARGS,
           "netpoll_backend($module, /)\n--\n\nWhat waits for descriptors: 'io_uring', 'epoll' or "
           "'poll'."),
    {},
};

}  // namespace

bool add_fd_functions(PyObject* module) {
  return PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace runloom::python
