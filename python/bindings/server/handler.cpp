// A connection comes as a C++ stream, is a Python socket while its handler runs, and is closed, or
// lingered on, as a stream again.
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "core/g.hpp"
#include "core/park.hpp"
#include "core/signals.hpp"
#include "net/served.hpp"
#include "net/socket.hpp"
#include "runloom/net/tcp_stream.hpp"
#include "runloom/net/unix_stream.hpp"
#include "server/server.hpp"
#include "support/errors.hpp"
#include "tls/socket.hpp"

namespace runloom::python {
namespace {

// The Python connection as the stream that the C++ Server ends. Used under the GIL.
class ObjectStream final : public net::Stream {
 public:
  // Of a Socket or TLSSocket, or of what has one as `_sock`. Null with an exception set.
  static std::unique_ptr<ObjectStream> make(PyObject* connection) {
    Ref bottom = Ref::share(connection);
    const bool ours = is_socket(connection) || is_tls(connection);
    while (!is_socket(bottom.get())) {
      Ref next;
      if (is_tls(bottom.get())) {
        next = Ref::share(bottom_of(as_tls(bottom.get())));
      } else {
        next = Ref::steal(PyObject_GetAttrString(bottom.get(), "_sock"));
      }
      if (!next && !PyErr_Occurred()) raise(make_error_code(Errc::closed));
      if (!next) return nullptr;
      bottom = std::move(next);
    }
    return std::unique_ptr<ObjectStream>(
        new ObjectStream(connection, bottom.get(), stream_over(ours ? connection : bottom.get())));
  }

  PyObject* connection() const noexcept { return connection_.get(); }
  Socket& socket() const noexcept { return as_socket(bottom_.get()); }

  Result<std::size_t> read_some(std::span<std::byte> buffer, Deadline deadline) override {
    return below_->read_some(buffer, deadline);
  }
  Result<std::size_t> write_some(std::span<const std::byte> data, Deadline deadline) override {
    return below_->write_some(data, deadline);
  }
  Result<void> writev_all(std::span<const iovec> buffers, Deadline deadline,
                          std::size_t* bytes_written) override {
    return below_->writev_all(buffers, deadline, bytes_written);
  }
  Result<void> wait_readable(Deadline deadline) override { return below_->wait_readable(deadline); }
  Result<void> shutdown_write() override {
    if (!is_socket(connection()) && !is_tls(connection())) {
      const Ref said = Ref::steal(PyObject_CallMethod(connection(), "shutdown", "i", SHUT_WR));
      if (!said) PyErr_Clear();
    }
    return below_->shutdown_write();
  }
  void close() noexcept override {
    below_->close();
    socket().fd.close();
  }

 private:
  ObjectStream(PyObject* connection, PyObject* bottom, std::unique_ptr<net::Stream> below)
      : connection_(Ref::share(connection)),
        bottom_(Ref::share(bottom)),
        below_(std::move(below)) {}

  const Ref connection_;
  const Ref bottom_;
  const std::unique_ptr<net::Stream> below_;
};

// The socket of a connection, as a Python object. Null with an exception set.
Ref make_socket(PyServer& server, net::Fd fd, const net::ConnectionInfo& info) {
  int family = AF_INET;
  socklen_t size = sizeof family;
  if (::getsockopt(fd.number(), SOL_SOCKET, SO_DOMAIN, &family, &size) != 0) {
    raise(last_errno());
    return {};
  }
  Ref socket = Ref::steal(
      new_socket(std::move(fd), family, SOCK_STREAM, family == AF_UNIX ? 0 : IPPROTO_TCP));
  if (!socket) return {};
  as_socket(socket.get()).served = new_server_connection(server.object(), info);
  return as_socket(socket.get()).served ? std::move(socket) : Ref();
}

net::Fd take_fd(net::Stream& stream) noexcept {
  if (auto* tcp = dynamic_cast<net::TcpStream*>(&stream)) return tcp->take_fd();
  return static_cast<net::UnixStream&>(stream).take_fd();
}

// The connection came to its end: closes it, or leaves that to the server, which lingers.
void end_connection(const PyServer& server, net::Connection& connection,
                    std::unique_ptr<ObjectStream> own, const ObjectStream& stream, bool failed) {
  net::Fd& fd = stream.socket().fd;
  if (failed) {
    fd.close();
  } else if (!server.lingers) {
    const Ref closed = Ref::steal(PyObject_CallMethod(stream.connection(), "close", nullptr));
    if (!closed) PyErr_WriteUnraisable(stream.connection());
    fd.close();  // files over it, by makefile(), may be open
  } else if (own && fd) {
    connection.replace(std::move(own));
  }
}

// What a handler raised that says no more than that its connection has failed, or that it was
// cancelled.
bool is_traffic(const ServerConnection& served, PyObject* error) noexcept {
  return PyErr_GivenExceptionMatches(error, cancelled_error) ||
         (served.failed && PyErr_GivenExceptionMatches(error, PyExc_OSError));
}

}  // namespace

Result<std::unique_ptr<net::Stream>> wrap_connection(PyServer& server,
                                                     std::unique_ptr<net::Stream> stream,
                                                     const net::ConnectionInfo& info,
                                                     Deadline deadline) {
  Py_CLEAR(server.raised);
  const Ref socket = make_socket(server, take_fd(*stream), info);
  const Ref served = Ref::share(socket ? as_socket(socket.get()).served : nullptr);
  std::unique_ptr<ObjectStream> made;
  if (socket) {
    const double seconds =
        deadline.is_never() ? -1.0 : static_cast<double>(deadline.ns() - monotonic_ns()) / 1e9;
    const Ref wrapped =
        Ref::steal(PyObject_CallFunction(server.start_tls, "Od", socket.get(), seconds));
    if (wrapped) made = ObjectStream::make(wrapped.get());
  }
  if (made) return std::unique_ptr<net::Stream>(std::move(made));
  Ref error = Ref::steal(take_raised());
  if (socket) as_socket(socket.get()).fd.close();
  // The traceback has frames that have the socket: it must not keep the server that keeps it.
  if (served) end_serving(as_served(served.get()));
  if (PyErr_GivenExceptionMatches(error.get(), cancelled_error)) return fail(Errc::cancelled);
  if (PyErr_GivenExceptionMatches(error.get(), PyExc_TimeoutError)) return fail(Errc::timed_out);
  // That of another connection may be there, which was not reported.
  Py_XDECREF(std::exchange(server.raised, error.release()));
  return fail_errno(EPROTO);
}

void handle_connection(PyServer& server, net::Connection& connection) {
  Home& home = *tl_home;
  G* g = current_g();
  if (!g || g->cancelled || home.unwinding) return;
  const Ref keep = Ref::share(server.object());
  std::unique_ptr<ObjectStream> own;
  auto* stream = dynamic_cast<ObjectStream*>(&connection.below());
  if (!stream) {
    const Ref socket = make_socket(server, take_fd(connection.below()), connection.info());
    if (socket) own = ObjectStream::make(socket.get());
    if (!own) throw HandlerRaised(Ref::steal(take_raised()));
    stream = own.get();
  }
  Ref held = Ref::share(stream->socket().served);
  ServerConnection& served = as_served(held.get());
  begin_serving(served, connection, stream->socket().fd);
  const Ref object = Ref::share(stream->connection());
  const Ref result = Ref::steal(PyObject_CallOneArg(server.handler, object.get()));
  Ref error = Ref::steal(result ? nullptr : take_raised());
  {
    const ParkGuard guard;
    end_connection(server, connection, std::move(own), *stream, !result);
  }
  // TLS that the handler began on its own has taken the descriptor.
  if (!result || !server.lingers) served.descriptor.close();
  end_serving(served);
  if (!error || is_traffic(served, error.get())) return;
  if (PyErr_GivenExceptionMatches(error.get(), PyExc_KeyboardInterrupt) &&
      pass_on_interrupt(home, error.get()))
    return;
  throw HandlerRaised(std::move(error));
}

}  // namespace runloom::python
