// TLSSocket: runloom.tls.TLSSocket. TLS over a socket (or over another TLSSocket), with the
// interface of ssl.SSLSocket; what blocks there parks the fiber here, and blocks an OS thread
// outside of fibers.
//
// The stream below is a private Socket whose descriptor was taken from the one that was wrapped, so
// that nobody else can read from it. TLS in TLS keeps the lower TLSSocket, which is `taken` and
// closed for its owner until unwrap() gives it back.
//
// All members but `stream` are guarded by the GIL.
#pragma once

#include <Python.h>

#include <cstdint>

#include "runloom/sched/deadline.hpp"
#include "runloom/tls/stream.hpp"
#include "support/ref.hpp"

namespace runloom::python {

struct TLSSocket {
  PyObject_HEAD PyObject* weakrefs;
  tls::Stream stream;
  PyObject* below;            // Socket or TLSSocket; null once unwrapped
  PyObject* context;          // runloom.tls.Context
  PyObject* server_hostname;  // str or None
  PyObject* raised;           // what the SNI callback raised, for the fiber that asked it
  std::int64_t timeout_ns;    // negative: none; 0: non-blocking
  std::int64_t handshake_ns;  // bounds the handshake from its first step; negative: none
  Deadline handshake_deadline;
  int users;           // calls that are in the stream now
  int io_refs;         // files made by makefile() that are open
  bool close_pending;  // close() was called while there were such files
  bool server_side;
  bool ragged_eof_is_end;
  bool handshake_begun;
  bool taken;  // by the TLSSocket above
  bool small_reads;

  PyObject* object() noexcept { return reinterpret_cast<PyObject*>(this); }
  bool blocking() const noexcept { return timeout_ns != 0; }
  Deadline deadline() const noexcept {
    if (timeout_ns < 0) return Deadline::never();
    return Deadline::after(std::chrono::nanoseconds(timeout_ns));
  }
};

extern PyTypeObject* tls_socket_type;

inline TLSSocket& as_tls(PyObject* object) noexcept {
  return *reinterpret_cast<TLSSocket*>(object);
}
inline bool is_tls(PyObject* object) noexcept {
  return PyObject_TypeCheck(object, tls_socket_type);
}

// A call in the stream, for as long as it lives: the stream stays where it is meanwhile.
class InStream {
 public:
  explicit InStream(TLSSocket& socket) noexcept : socket_(socket) { ++socket.users; }
  ~InStream() { --socket_.users; }
  InStream(const InStream&) = delete;
  InStream& operator=(const InStream&) = delete;

 private:
  TLSSocket& socket_;
};

// False with an exception set: it was closed, unwrapped, or belongs to a TLSSocket above.
bool check_open(const TLSSocket& socket);
// Raises what ended an operation of the socket. Returns null.
PyObject* raise_io(TLSSocket& socket, std::error_code error);
// Makes the handshake if nobody has. False with an exception set. The caller is InStream.
bool establish(TLSSocket& socket, Deadline deadline);
// Says that all was said, if that can be done without waiting.
void say_goodbye(TLSSocket& socket) noexcept;

// The descriptor's socket, however deep; null once unwrapped.
PyObject* bottom_of(TLSSocket& socket) noexcept;

// A stream over `below`, a Socket or TLSSocket, which it keeps. Used under the GIL.
std::unique_ptr<net::Stream> stream_over(PyObject* below);

// The methods, by theme; each table ends with an empty row.
extern PyMethodDef tls_transfer_methods[];
extern PyMethodDef tls_connection_methods[];
extern PyMethodDef tls_info_methods[];
extern PyGetSetDef tls_properties[];
// _tls_wrap, which makes the instances.
extern PyMethodDef tls_functions[];

bool add_tls_socket_type(PyObject* module);

}  // namespace runloom::python
