// TLS sockets: how they are made, the handshake, and their ends.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <string>
#include <utility>

#include "core/park.hpp"
#include "core/scope.hpp"
#include "net/buffer.hpp"
#include "net/served.hpp"
#include "net/socket.hpp"
#include "runloom/sched/cancel.hpp"
#include "support/args.hpp"
#include "support/errors.hpp"
#include "support/object.hpp"
#include "support/types.hpp"
#include "tls/context.hpp"
#include "tls/errors.hpp"
#include "tls/socket.hpp"

namespace runloom::python {
namespace {

using HelloAnswer = Result<std::optional<tls::Context>>;

// ---------------------------------------------------------------- the SNI callback

// Refuses the client with `alert`; the exception that is set, or else one that says so, comes out
// of the handshake.
HelloAnswer refuse(TLSSocket& socket, int alert) {
  if (!PyErr_Occurred())
    raise_tls(tls::tls_error(tls::TlsErrc::refused),
              "the SNI callback refused the client with alert " + std::to_string(alert));
  Py_XDECREF(std::exchange(socket.raised, take_raised()));
  return Unexpected{tls::tls_error(tls::TlsErrc::alert, alert)};
}

HelloAnswer answer_of(TLSSocket& socket, const Ref& answer, const Ref& before) {
  if (answer.get() != Py_None) {
    int alert;
    if (!to_int(answer.get(), "the alert that an SNI callback returns", alert))
      return refuse(socket, tls::kAlertInternalError);
    if (alert < 1 || alert > 255) {
      PyErr_Format(PyExc_ValueError, "the SNI callback returned %d, which is no alert", alert);
      return refuse(socket, tls::kAlertInternalError);
    }
    return refuse(socket, alert);
  }
  if (socket.context == before.get()) return std::optional<tls::Context>();
  const Ref native = Ref::steal(PyObject_CallMethod(socket.context, "_native", "O", Py_True));
  const tls::Context* context = native ? to_native_context(native.get()) : nullptr;
  if (!context) return refuse(socket, tls::kAlertInternalError);
  return std::optional(*context);
}

// On the fiber that makes the handshake, outside of OpenSSL.
HelloAnswer ask_callback(TLSSocket& socket, const tls::ClientHello& hello) {
  const Ref before = Ref::share(socket.context);
  if (!before) return std::optional<tls::Context>();  // the collector has taken it
  const Ref callback = Ref::steal(PyObject_GetAttrString(before.get(), "sni_callback"));
  if (!callback) return refuse(socket, tls::kAlertInternalError);
  if (callback.get() == Py_None) return std::optional<tls::Context>();
  const std::string& text = hello.server_name;
  const Ref name = Ref::steal(
      text.empty() ? Py_NewRef(Py_None)
                   : PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()),
                                          "surrogateescape"));
  const Ref answer =
      Ref::steal(name ? PyObject_CallFunctionObjArgs(callback.get(), socket.object(), name.get(),
                                                     before.get(), nullptr)
                      : nullptr);
  if (!answer) return refuse(socket, tls::kAlertInternalError);
  return answer_of(socket, answer, before);
}

// ---------------------------------------------------------------- wrapping

struct WrapArguments {
  PyObject* below;
  const tls::Context* native;
  PyObject* context;
  bool server_side;
  PyObject* server_hostname;  // str or None
  PyObject* session;          // TLSSession or None
  std::string received;
  std::int64_t handshake_ns;
  bool ragged_eof_is_end;
};

Result<tls::Stream> make_stream(TLSSocket& socket, WrapArguments& args) {
  if (args.server_side) {
    tls::ServerOptions options{.received = std::move(args.received)};
    // The socket lives as long as its stream.
    options.on_client_hello = [&socket](const tls::ClientHello& hello) {
      return ask_callback(socket, hello);
    };
    return tls::Stream::server(stream_over(socket.below), *args.native, std::move(options));
  }
  tls::ClientOptions options{.received = std::move(args.received)};
  if (args.server_hostname != Py_None) {
    Py_ssize_t size;
    const char* text = PyUnicode_AsUTF8AndSize(args.server_hostname, &size);
    if (!text) return Unexpected{errno_code(EINVAL)};
    options.host.assign(text, static_cast<std::size_t>(size));
  }
  if (args.session != Py_None) options.session = unwrap<tls::Session>(args.session);
  return tls::Stream::client(stream_over(socket.below), *args.native, std::move(options));
}

// Moves the descriptor of `from` to `to`, a closed socket. False with an exception set.
bool move_descriptor(Socket& from, Socket& to) {
  const auto number = from.fd.release();
  if (!number) {
    raise(number.error());
    return false;
  }
  // It came in blocking mode.
  auto fd = ::fcntl(*number, F_SETFL, O_RDWR | O_NONBLOCK) == 0
                ? net::Fd::own(*number, kind_of(from.family, from.type))
                : Result<net::Fd>(fail(last_errno()));
  if (!fd) {
    ::close(*number);
    raise(fd.error());
    return false;
  }
  to.fd = std::move(*fd);
  if (from.served) {
    to.served = std::exchange(from.served, nullptr);
    move_served(as_served(to.served), to.fd);
  }
  Py_CLEAR(from.unread);
  from.path.forget();
  from.close_pending = true;
  return true;
}

bool can_be_wrapped(PyObject* below) {
  if (is_tls(below)) {
    if (!check_open(as_tls(below))) return false;
    if (as_tls(below).users == 0) return true;
    errno = EBUSY;
    PyErr_SetFromErrno(PyExc_OSError);
    return false;
  }
  if (!is_socket(below)) {
    PyErr_Format(PyExc_TypeError, "a runloom.sync.Socket is required, not '%.100s'",
                 Py_TYPE(below)->tp_name);
    return false;
  }
  const Socket& socket = as_socket(below);
  if (socket.type != SOCK_STREAM || socket.listening) {
    PyErr_SetString(PyExc_ValueError, "TLS needs a connected stream socket");
    return false;
  }
  if (socket.fd) return true;
  raise(make_error_code(Errc::closed));
  return false;
}

PyObject* wrap(WrapArguments& args) {
  if (!can_be_wrapped(args.below)) return nullptr;
  const Ref self = Ref::steal(tls_socket_type->tp_alloc(tls_socket_type, 0));
  if (!self) return nullptr;
  TLSSocket& socket = as_tls(self.get());
  new (&socket.stream) tls::Stream();
  new (&socket.handshake_deadline) Deadline();
  const bool over_tls = is_tls(args.below);
  socket.context = Py_NewRef(args.context);
  socket.server_hostname = Py_NewRef(args.server_hostname);
  socket.handshake_ns = args.handshake_ns;
  socket.server_side = args.server_side;
  socket.ragged_eof_is_end = args.ragged_eof_is_end;
  socket.small_reads = true;
  if (over_tls) {
    socket.timeout_ns = as_tls(args.below).timeout_ns;
    socket.below = Py_NewRef(args.below);
  } else {
    const Socket& plain = as_socket(args.below);
    if (plain.unread) {
      const std::string early(PyBytes_AS_STRING(plain.unread),
                              static_cast<std::size_t>(PyBytes_GET_SIZE(plain.unread)));
      args.received.insert(0, early);
    }
    socket.timeout_ns = plain.timeout_ns;
    socket.below = new_socket(net::Fd(), plain.family, plain.type, plain.proto);
    if (!socket.below) return nullptr;
  }
  auto stream = make_stream(socket, args);
  if (!stream) {
    if (PyErr_Occurred()) return nullptr;
    if (stream.error() == tls::TlsErrc::configuration && !args.server_side) {
      PyErr_Format(PyExc_ValueError,
                   "check_hostname requires server_hostname, a host name or an IP address, not %R",
                   args.server_hostname);
      return nullptr;
    }
    return raise_tls(stream.error(), stream.error().message());
  }
  if (over_tls) {
    as_tls(args.below).taken = true;
  } else if (!move_descriptor(as_socket(args.below), as_socket(socket.below))) {
    return nullptr;
  }
  socket.stream = std::move(*stream);
  return Py_NewRef(self.get());
}

// _tls_wrap(socket, native, context, server_side, server_hostname, session, received,
//           handshake_timeout, suppress_ragged_eofs) -> TLSSocket
PyObject* tls_wrap(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 9) {
    PyErr_SetString(PyExc_TypeError, "_tls_wrap() takes 9 arguments");
    return nullptr;
  }
  return or_no_memory([&]() -> PyObject* {
    WrapArguments all{};
    all.below = args[0];
    all.native = to_native_context(args[1]);
    all.context = args[2];
    all.server_hostname = args[4];
    all.session = args[5];
    const int server_side = PyObject_IsTrue(args[3]);
    const int ragged = PyObject_IsTrue(args[8]);
    Buffer received;
    double seconds = -1;
    if (!all.native || server_side < 0 || ragged < 0 || !received.read(args[6]) ||
        (args[7] != Py_None && !to_seconds(args[7], "handshake_timeout", seconds)))
      return nullptr;
    if (args[7] != Py_None && !(seconds > 0)) {
      PyErr_SetString(PyExc_ValueError, "handshake_timeout must be positive");
      return nullptr;
    }
    if (all.server_hostname != Py_None && !PyUnicode_Check(all.server_hostname)) {
      PyErr_Format(PyExc_TypeError, "server_hostname must be a str, not '%.100s'",
                   Py_TYPE(all.server_hostname)->tp_name);
      return nullptr;
    }
    if (all.session != Py_None && Py_TYPE(all.session) != session_type) {
      PyErr_Format(PyExc_TypeError, "session must be a TLSSession, not '%.100s'",
                   Py_TYPE(all.session)->tp_name);
      return nullptr;
    }
    all.server_side = server_side != 0;
    all.ragged_eof_is_end = ragged != 0;
    constexpr double kMost = 9.0e9;
    all.handshake_ns =
        seconds < 0 || seconds > kMost ? -1 : static_cast<std::int64_t>(seconds * 1e9) + 1;
    const auto bytes = received.bytes();
    all.received.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    ParkGuard guard;
    return wrap(all);
  });
}

// ---------------------------------------------------------------- for the TLS of the ssl module

// _take_over(socket) -> a socket that nobody else has, while the one that was given is closed; of a
// TLSSocket that one itself.
PyObject* take_over(PyObject*, PyObject* below) {
  if (!can_be_wrapped(below)) return nullptr;
  if (is_tls(below)) return Py_NewRef(below);
  Socket& from = as_socket(below);
  const Ref to = Ref::steal(new_socket(net::Fd(), from.family, from.type, from.proto));
  if (!to) return nullptr;
  as_socket(to.get()).timeout_ns = from.timeout_ns;
  PyObject* unread = Py_XNewRef(from.unread);
  as_socket(to.get()).unread = unread;
  ParkGuard guard;
  if (!move_descriptor(from, as_socket(to.get()))) return nullptr;
  return Py_NewRef(to.get());
}

// _without_parking(fn) -> fn(). What would have to park in it raises RuntimeError.
PyObject* without_parking(PyObject*, PyObject* callable) {
  const this_fiber::ForbidPark forbid;
  return PyObject_CallNoArgs(callable);
}

// ---------------------------------------------------------------- ends

void close_now(TLSSocket& socket) {
  // Whoever closes while an exception passes by has not said all: the peer must not take that for
  // the end.
  const Ref handled = Ref::steal(PyErr_GetHandledException());
  if (!handled) say_goodbye(socket);
  socket.stream.close();
}

PyObject* close(PyObject* self, PyObject*) {
  TLSSocket& socket = as_tls(self);
  if (socket.taken) Py_RETURN_NONE;
  socket.close_pending = true;
  if (socket.io_refs <= 0) close_now(socket);
  Py_RETURN_NONE;
}

// A file made by makefile() was closed.
PyObject* decref_socketios(PyObject* self, PyObject*) {
  TLSSocket& socket = as_tls(self);
  if (socket.io_refs > 0) --socket.io_refs;
  if (socket.io_refs == 0 && socket.close_pending && !socket.taken) close_now(socket);
  Py_RETURN_NONE;
}

PyObject* do_handshake(PyObject* self, PyObject*) {
  TLSSocket& socket = as_tls(self);
  if (!check_open(socket)) return nullptr;
  ParkGuard guard;
  const InStream in(socket);
  if (!establish(socket, socket.deadline())) return nullptr;
  Py_RETURN_NONE;
}

// The socket below for the program, with what was read from it too early.
PyObject* give_back(TLSSocket& socket, tls::Stream::Released released) {
  const Ref below = Ref::steal(std::exchange(socket.below, nullptr));
  if (is_tls(below.get())) {
    as_tls(below.get()).taken = false;
    as_tls(below.get()).timeout_ns = socket.timeout_ns;
  } else {
    as_socket(below.get()).timeout_ns = socket.timeout_ns;
  }
  if (!released.received.empty()) {
    // Nothing of TLS may be read twice, so what is below has to be plain.
    if (is_tls(below.get())) {
      PyErr_Format(PyExc_ValueError, "the peer sent %zu bytes of something else after its end",
                   released.received.size());
      return nullptr;
    }
    as_socket(below.get()).unread = PyBytes_FromStringAndSize(
        released.received.data(), static_cast<Py_ssize_t>(released.received.size()));
    if (!as_socket(below.get()).unread) return nullptr;
  }
  return Py_NewRef(below.get());
}

PyObject* unwrap_method(PyObject* self, PyObject*) {
  TLSSocket& socket = as_tls(self);
  if (!check_open(socket)) return nullptr;
  ParkGuard guard;
  {
    const InStream in(socket);
    const auto done = socket.stream.shutdown(socket.deadline());
    if (!done) return raise_io(socket, done.error());
  }
  if (socket.users != 0) return raise(errno_code(EBUSY));
  return or_no_memory([&] { return give_back(socket, socket.stream.release()); });
}

// How the two directions end: ours by TLS, the peer's by the socket.
PyObject* shutdown(PyObject* self, PyObject* value) {
  TLSSocket& socket = as_tls(self);
  int how;
  if (!to_int(value, "how", how) || !check_open(socket)) return nullptr;
  if (how != SHUT_RD && how != SHUT_WR && how != SHUT_RDWR) return raise(errno_code(EINVAL));
  ParkGuard guard;
  const InStream in(socket);
  if (how != SHUT_RD) {
    const auto done = socket.stream.shutdown_write(socket.deadline());
    if (!done) return raise_io(socket, done.error());
  }
  if (how == SHUT_WR) Py_RETURN_NONE;
  PyObject* bottom = bottom_of(socket);
  const auto done = as_socket(bottom).fd.shutdown(how);
  if (!done) return raise(done.error());
  Py_RETURN_NONE;
}

}  // namespace

bool check_open(const TLSSocket& socket) {
  if (!socket.taken && socket.below && socket.stream.below()) return true;
  raise(make_error_code(Errc::closed));
  return false;
}

PyObject* raise_io(TLSSocket& socket, std::error_code error) {
  if (error == make_error_code(Errc::timed_out) && !socket.blocking())
    return raise_wants(socket.stream.blocked_on());
  if (PyObject* bottom = bottom_of(socket); bottom && as_socket(bottom).served)
    error = served_failed(as_socket(bottom), error);
  if (error.category() != tls::tls_category()) return raise(error);
  return or_no_memory([&] { return raise_tls(error, socket.stream.explain(error)); });
}

bool establish(TLSSocket& socket, Deadline deadline) {
  if (socket.stream.established()) return true;
  if (!socket.handshake_begun) {
    socket.handshake_begun = true;
    if (socket.handshake_ns >= 0)
      socket.handshake_deadline = Deadline::after(std::chrono::nanoseconds(socket.handshake_ns));
  }
  const Deadline until = Deadline::earlier(deadline, socket.handshake_deadline);
  const auto done = socket.stream.handshake(until);
  if (done) return true;
  if (socket.raised) {
    raise_again(std::exchange(socket.raised, nullptr));
  } else if (done.error() == make_error_code(Errc::timed_out) &&
             socket.handshake_deadline.passed() && !scope_has_ended()) {
    socket.stream.close();
    PyErr_SetString(PyExc_TimeoutError, "the TLS handshake timed out");
  } else {
    raise_io(socket, done.error());
  }
  return false;
}

void say_goodbye(TLSSocket& socket) noexcept {
  if (!socket.stream.established()) return;
  const Shield shield;
  ParkGuard guard;
  (void)socket.stream.shutdown_write(Deadline::now());
  if (socket.below && is_tls(socket.below)) say_goodbye(as_tls(socket.below));
}

PyMethodDef tls_connection_methods[] = {
    method("close", &close, METH_NOARGS,
           "close($self, /)\n--\n\n"
           "Close. Tells the peer that all was said (close_notify), without waiting, unless an\n"
           "exception is being handled: then the peer sees that it was cut off. Idempotent."),
    method("_decref_socketios", &decref_socketios, METH_NOARGS, nullptr),
    method("do_handshake", &do_handshake, METH_NOARGS,
           "do_handshake($self, /)\n--\n\n"
           "Make the handshake now; else the first read or write does.\n\n"
           "A server's is bounded in any case, see Context.wrap_socket()."),
    method("unwrap", &unwrap_method, METH_NOARGS,
           "unwrap($self, /)\n--\n\n"
           "End TLS on both sides; return the socket, on which plain data may follow.\n\n"
           "Data that the peer still sends is an ssl.SSLError."),
    method("shutdown", &shutdown, METH_O,
           "shutdown($self, how, /)\n--\n\n"
           "SHUT_WR tells the peer that all was said, and reading goes on. The other ways end the\n"
           "connection's reading side, too."),
    {},
};

PyMethodDef tls_functions[] = {
    method("_take_over", &take_over, METH_O, nullptr),
    method("_without_parking", &without_parking, METH_O, nullptr),
    method("_tls_wrap", &tls_wrap, METH_FASTCALL, nullptr),
    {},
};

}  // namespace runloom::python
