// TcpListener: accepts TCP connections.
//
// Any number of fibers, on any hubs, and OS threads may accept from one listener: each connection
// wakes one of them, first come first served.
#pragma once

#include <chrono>
#include <cstddef>
#include <system_error>
#include <utility>

#include "runloom/net/address.hpp"
#include "runloom/net/fd.hpp"
#include "runloom/net/options.hpp"
#include "runloom/net/tcp_stream.hpp"

namespace runloom::net {

// True for the errors of accept that pass: no descriptor, buffer or memory for a connection.
bool is_shortage(std::error_code error) noexcept;

// How long to wait before the next accept after a shortage: 10 ms, doubling to half a second, so
// that a server neither spins nor sleeps long after the shortage is over.
class AcceptBackoff {
 public:
  std::chrono::milliseconds next() noexcept {
    const auto pause = pause_;
    pause_ = pause_ * 2 < kMost ? pause_ * 2 : kMost;
    return pause;
  }
  void reset() noexcept { pause_ = kLeast; }

 private:
  static constexpr std::chrono::milliseconds kLeast{10};
  static constexpr std::chrono::milliseconds kMost{500};
  std::chrono::milliseconds pause_{kLeast};
};

class TcpListener {
 public:
  TcpListener() = default;  // closed
  explicit TcpListener(Fd fd) noexcept : fd_(std::move(fd)) {}
  TcpListener(TcpListener&&) noexcept = default;
  TcpListener& operator=(TcpListener&&) noexcept = default;

  // Binds and listens. Doesn't park. Fails with the kernel's error: EADDRINUSE, EACCES, ...
  static Result<TcpListener> listen(const Address& address, const ListenOptions& options = {});

  // Takes a listening TCP socket over, such as one of listen_fds(). EPROTOTYPE for another kind of
  // socket, EINVAL when it does not listen.
  static Result<TcpListener> adopt(int fd);

  // False once it was closed.
  explicit operator bool() const noexcept { return static_cast<bool>(fd_); }
  const Fd& fd() const noexcept { return fd_; }

  // Parks until there is a connection. Fails with a shortage (see is_shortage; the connection
  // stays in the backlog), with Errc::closed, with EINVAL after shutdown(). What is wrong with one
  // connection only (it was reset before it was accepted) is passed over.
  Result<TcpStream> accept(Deadline deadline = {});
  // As accept; tells who it is.
  Result<TcpStream> accept_from(Address& peer, Deadline deadline = {});
  // As accept, but waits out shortages.
  Result<TcpStream> accept_retrying(Deadline deadline = {});

  // Where it listens: with the port that the kernel chose. As the next two it doesn't park, and
  // fails with closed.
  Result<Address> local_address() const;
  // Connections that may wait, as the kernel has it (it lowers ListenOptions::backlog to
  // net.core.somaxconn).
  Result<int> backlog() const;
  // Ends accepting: present and future accepts fail with EINVAL; the port stays taken.
  Result<void> shutdown() { return fd_.shutdown(SHUT_RD); }
  // Ends every accept with Errc::closed; returns when the port is free. Parks, but is no cancel
  // point. Idempotent.
  void close() noexcept { fd_.close_wait(); }

 private:
  Fd fd_;
};

}  // namespace runloom::net
