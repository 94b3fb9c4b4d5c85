// Socket: runloom.sync.Socket. A socket of the program's own (net::Fd) with the interface of the
// standard library's socket.socket; what blocks there parks the fiber here, and blocks an OS
// thread outside of fibers.
//
// All members but `fd` are guarded by the GIL, which is never released around a system call that
// doesn't wait.
#pragma once

#include <Python.h>
#include <sys/socket.h>

#include <cstdint>

#include "net/address.hpp"
#include "runloom/net/bound_path.hpp"
#include "runloom/net/fd.hpp"
#include "runloom/sched/deadline.hpp"

namespace runloom::python {

struct Socket {
  PyObject_HEAD PyObject* weakrefs;
  net::Fd fd;
  net::BoundPath path;      // of a Unix listener that unix_listen() made
  std::int64_t timeout_ns;  // negative: none; 0: non-blocking
  int family, type, proto;
  int io_refs;         // files made by makefile() that are open
  bool close_pending;  // close() was called while there were such files
  bool listening;
  bool small_reads;  // see RecvBytes
  // Bytes that TLS has read and that are not of TLS: the next recv() has them. Else null.
  PyObject* unread;
  // What the Server that accepted it knows of it, a ServerConnection. Else null.
  PyObject* served;

  PyObject* object() noexcept { return reinterpret_cast<PyObject*>(this); }
  bool blocking() const noexcept { return timeout_ns != 0; }
  Deadline deadline() const noexcept {
    if (timeout_ns < 0) return Deadline::never();
    return Deadline::after(std::chrono::nanoseconds(timeout_ns));
  }
};

extern PyTypeObject* socket_type;

inline Socket& as_socket(PyObject* object) noexcept {
  return *reinterpret_cast<Socket*>(object);
}
inline bool is_socket(PyObject* object) noexcept {
  return PyObject_TypeCheck(object, socket_type);
}

// A Socket around `fd`, which it takes over. Null with an exception set on failure, then `fd` is
// closed.
PyObject* new_socket(net::Fd fd, int family, int type, int proto);
// `served` of the socket, or None.
PyObject* served_of(const Socket& socket) noexcept;
// The kind of a socket's descriptor.
net::FdKind kind_of(int family, int type) noexcept;

// The flags of a transfer, of which a non-blocking socket's must not wait.
inline int flags_of(const Socket& socket, int flags) noexcept {
  return socket.blocking() ? flags : flags | MSG_DONTWAIT;
}

// Raises what ended an operation of the socket. Returns null.
PyObject* raise_io(const Socket& socket, std::error_code error);

// As the methods, for other callers.
PyObject* receive(Socket& socket, Py_ssize_t size, int flags);
PyObject* receive_into(Socket& socket, PyObject* buffer, Py_ssize_t size, int flags);
PyObject* send_some(Socket& socket, PyObject* data, int flags);
// sendmsg(2). Parks.
Result<std::size_t> send_message(const Socket& socket, const msghdr& message, int flags);
// How many bytes that were; -1 with an exception set.
Py_ssize_t send_whole(Socket& socket, PyObject* data, int flags);

// The argument of settimeout() as a member like `timeout_ns`, false with an exception set when it
// is none; and what gettimeout() returns for one.
bool to_timeout(PyObject* value, std::int64_t& ns);
PyObject* from_timeout(std::int64_t ns);

// The methods, by theme; each table ends with an empty row.
extern PyMethodDef socket_transfer_methods[];
extern PyMethodDef socket_connection_methods[];
extern PyMethodDef socket_option_methods[];
extern PyMethodDef socket_message_methods[];

bool add_socket_type(PyObject* module);
// What Unix sockets need besides: _unix_listen, _socketpair.
bool add_unix_functions(PyObject* module);

}  // namespace runloom::python
