// TLS sockets: receive and send.
#include "core/park.hpp"
#include "net/buffer.hpp"
#include "net/recv_bytes.hpp"
#include "net/served.hpp"
#include "support/args.hpp"
#include "support/errors.hpp"
#include "support/types.hpp"
#include "tls/errors.hpp"
#include "tls/socket.hpp"

namespace runloom::python {
namespace {

bool no_flags(const char* function, PyObject* value) {
  int flags;
  if (!value) return true;
  if (!to_int(value, "flags", flags)) return false;
  if (flags != 0)
    PyErr_Format(PyExc_ValueError, "non-zero flags not allowed in calls to %s() on a TLSSocket",
                 function);
  return flags == 0;
}

bool check_size(Py_ssize_t size, const char* function) {
  if (size < 0) PyErr_Format(PyExc_ValueError, "negative buffersize in %s", function);
  return size >= 0;
}

bool check_args(const char* function, Py_ssize_t count, Py_ssize_t least, Py_ssize_t most) {
  if (count >= least && count <= most) return true;
  PyErr_Format(PyExc_TypeError, "%s() takes from %zd to %zd arguments (%zd given)", function, least,
               most, count);
  return false;
}

// What a read came to when it failed; a ragged end may be none.
bool is_end(const TLSSocket& socket, std::error_code error) noexcept {
  return socket.ragged_eof_is_end && error == tls::TlsErrc::unexpected_eof;
}

void plaintext_came(TLSSocket& socket) noexcept {
  if (PyObject* bottom = bottom_of(socket)) bytes_came(as_socket(bottom));
}

PyObject* receive(TLSSocket& socket, Py_ssize_t size) {
  if (!check_open(socket)) return nullptr;
  if (size == 0) return PyBytes_FromStringAndSize(nullptr, 0);
  const Deadline deadline = socket.deadline();
  RecvBytes buffer(static_cast<std::size_t>(size), socket.small_reads);
  ParkGuard guard;
  const InStream in(socket);
  if (!establish(socket, deadline)) return nullptr;
  const auto count = socket.stream.read_late(buffer, deadline);
  if (count && *count != 0) [[likely]] {
    plaintext_came(socket);
    return buffer.release();
  }
  if (PyErr_Occurred()) return nullptr;
  if (count || is_end(socket, count.error())) return PyBytes_FromStringAndSize(nullptr, 0);
  return raise_io(socket, count.error());
}

PyObject* receive_into(TLSSocket& socket, PyObject* buffer, Py_ssize_t size) {
  Buffer memory;
  if (!check_open(socket) || !memory.write(buffer)) return nullptr;
  auto bytes = memory.bytes();
  if (static_cast<std::size_t>(size) > bytes.size()) {
    PyErr_SetString(PyExc_ValueError, "buffer too small for requested bytes");
    return nullptr;
  }
  if (size != 0) bytes = bytes.first(static_cast<std::size_t>(size));
  if (bytes.empty()) return PyLong_FromLong(0);
  const Deadline deadline = socket.deadline();
  ParkGuard guard;
  const InStream in(socket);
  if (!establish(socket, deadline)) return nullptr;
  const auto count = socket.stream.read_some(bytes, deadline);
  if (count) {
    if (*count != 0) plaintext_came(socket);
    return PyLong_FromSize_t(*count);
  }
  if (is_end(socket, count.error())) return PyLong_FromLong(0);
  return raise_io(socket, count.error());
}

// ---------------------------------------------------------------- methods

PyObject* recv(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  Py_ssize_t size;
  if (!check_args("recv", count, 1, 2) || !to_size(args[0], "bufsize", size) ||
      !check_size(size, "recv") || !no_flags("recv", count > 1 ? args[1] : nullptr))
    return nullptr;
  return receive(as_tls(self), size);
}

PyObject* recv_into(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const parameters[] = {"buffer", "nbytes", "flags"};
  static const Signature signature{"recv_into", parameters, 3, 1, 3};
  PyObject* value[3];
  Py_ssize_t size = 0;
  if (!parse(signature, args, count, names, value) ||
      (is_given(value[1]) && !to_size(value[1], "nbytes", size)) ||
      !check_size(size, "recv_into") || !no_flags("recv_into", value[2]))
    return nullptr;
  return receive_into(as_tls(self), value[0], size);
}

PyObject* read(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const parameters[] = {"len", "buffer"};
  static const Signature signature{"read", parameters, 2, 0, 2};
  PyObject* value[2];
  Py_ssize_t size = 1024;
  if (!parse(signature, args, count, names, value) ||
      (value[0] && !to_size(value[0], "len", size)) || !check_size(size, "read"))
    return nullptr;
  if (is_given(value[1])) return receive_into(as_tls(self), value[1], size);
  return receive(as_tls(self), size);
}

PyObject* send_record(PyObject* self, PyObject* data) {
  TLSSocket& socket = as_tls(self);
  Buffer memory;
  if (!check_open(socket) || !memory.read(data)) return nullptr;
  const Deadline deadline = socket.deadline();
  ParkGuard guard;
  const InStream in(socket);
  if (!establish(socket, deadline)) return nullptr;
  const auto count = socket.stream.write_some(memory.bytes(), deadline);
  return count ? PyLong_FromSize_t(*count) : raise_io(socket, count.error());
}

PyObject* send(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (!check_args("send", count, 1, 2) || !no_flags("send", count > 1 ? args[1] : nullptr))
    return nullptr;
  return send_record(self, args[0]);
}

PyObject* sendall(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  TLSSocket& socket = as_tls(self);
  Buffer memory;
  if (!check_args("sendall", count, 1, 2) || !no_flags("sendall", count > 1 ? args[1] : nullptr) ||
      !check_open(socket) || !memory.read(args[0]))
    return nullptr;
  const Deadline deadline = socket.deadline();
  ParkGuard guard;
  const InStream in(socket);
  if (!establish(socket, deadline)) return nullptr;
  const auto sent = socket.stream.write_all(memory.bytes(), deadline);
  if (!sent) return raise_io(socket, sent.error());
  Py_RETURN_NONE;
}

}  // namespace

PyMethodDef tls_transfer_methods[] = {
    method("recv", &recv, METH_FASTCALL,
           "recv($self, bufsize, flags=0, /)\n--\n\n"
           "Receive up to bufsize bytes; b'' is the end that the peer has said.\n\n"
           "An end that it has not said is ssl.SSLEOFError: what came may be a part only."),
    fast_method("recv_into", &recv_into,
                "recv_into($self, /, buffer, nbytes=0, flags=0)\n--\n\n"
                "Receive into a buffer, up to nbytes (0: its size); return how many bytes."),
    fast_method("read", &read,
                "read($self, /, len=1024, buffer=None)\n--\n\n"
                "As recv(len), or as recv_into(buffer, len) when there is a buffer."),
    method("send", &send, METH_FASTCALL,
           "send($self, data, flags=0, /)\n--\n\n"
           "Send up to a record of 16 KiB; return how many bytes were taken."),
    method("sendall", &sendall, METH_FASTCALL,
           "sendall($self, data, flags=0, /)\n--\n\n"
           "Send all of the data. The socket's timeout bounds the whole call.\n\n"
           "When it ends in the middle by a timeout or a cancel, later sends fail (EPIPE)."),
    method("write", &send_record, METH_O, "write($self, data, /)\n--\n\nAs send(data)."),
    {},
};

}  // namespace runloom::python
