// ServerConnection: runloom.sync.ServerConnection. What the Server knows of a connection that it
// accepted, and the deadlines of its requests: `served` of the connection's socket, and of the TLS
// over it.
//
// All members but `clock` are guarded by the GIL.
#pragma once

#include <Python.h>

#include <cstddef>
#include <memory>
#include <string>

#include "net/socket.hpp"
#include "runloom/net/connection.hpp"
#include "runloom/net/request_clock.hpp"
#include "support/ref.hpp"

namespace runloom::python {

struct ServerConnection {
  PyObject_HEAD PyObject* weakrefs;
  std::shared_ptr<net::RequestClock> clock;  // null: the handler has not begun
  PyObject* server;             // keeps what the clock uses; null: the handler has ended
  net::Connection* connection;  // likewise
  net::Fd::Weak descriptor;     // where the connection is now
  PyObject* peer;
  PyObject* local;
  PyObject* proxy;
  PyObject* tlvs;
  std::size_t listener;
  bool failed;  // an operation on the connection ended in an error of the connection's own

  PyObject* object() noexcept { return reinterpret_cast<PyObject*>(this); }
};

inline ServerConnection& as_served(PyObject* object) noexcept {
  return *reinterpret_cast<ServerConnection*>(object);
}

// Of a new connection. Null with an exception set on failure.
PyObject* new_server_connection(PyObject* server, const net::ConnectionInfo& info);
// Its handler begins, and has ended.
void begin_serving(ServerConnection& served, net::Connection& connection, const net::Fd& fd);
void end_serving(ServerConnection& served) noexcept;
// The descriptor is another one's now, which has taken it from its socket.
void move_served(ServerConnection& served, const net::Fd& fd) noexcept;

// Keeps what a call on a served connection uses.
class ServedCall {
 public:
  explicit ServedCall(PyObject* served) noexcept
      : served_(Ref::share(served)), server_(Ref::share(as_served(served).server)) {}
  // Whether deadlines apply.
  explicit operator bool() const noexcept {
    return server_ && as_served(served_.get()).clock != nullptr;
  }
  net::RequestClock& clock() const noexcept { return *as_served(served_.get()).clock; }

 private:
  const Ref served_, server_;
};

// Makes a call on the socket, within `own` and what is due by its server's deadlines; see
// RequestClock.
template <class Call>
Result<std::size_t> bounded_read(const Socket& socket, Deadline own, Call&& call) {
  if (!socket.served) [[likely]]
    return call(own);
  const ServedCall served(socket.served);
  return served ? served.clock().read(own, call) : call(own);
}
template <class Call>
Result<void> bounded_wait(const Socket& socket, Deadline own, Call&& call) {
  if (!socket.served) [[likely]]
    return call(own);
  const ServedCall served(socket.served);
  return served ? served.clock().wait(own, call) : call(own);
}
template <class Call>
auto bounded_write(const Socket& socket, std::size_t size, Deadline own, Call&& call) {
  if (!socket.served) [[likely]]
    return call(own);
  const ServedCall served(socket.served);
  return served ? served.clock().write(size, own, call) : call(own);
}

// A protocol over the socket, such as TLS, has given bytes out, which it may have read ahead.
inline void bytes_came(const Socket& socket) noexcept {
  if (!socket.served) [[likely]]
    return;
  const ServerConnection& served = as_served(socket.served);
  if (served.server && served.clock) served.clock->request_begun();
}

// An operation on the connection failed. Returns what to raise: a wait for a further request that
// the server's stop has ended is an aborted connection.
std::error_code served_failed(const Socket& socket, std::error_code error) noexcept;

bool add_server_connection_type(PyObject* module);

}  // namespace runloom::python
