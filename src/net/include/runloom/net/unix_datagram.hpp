// UnixDatagram: messages over a Unix socket. They arrive whole, in order, once, or the sender gets
// an error: a full receiver makes its senders wait.
//
// Any fiber and any OS thread may use it at the same time, close() included; only moving and
// destroying it need that nobody else uses the object. Destroying closes.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "runloom/net/address.hpp"
#include "runloom/net/bound_path.hpp"
#include "runloom/net/fd.hpp"
#include "runloom/net/unix_socket.hpp"

namespace runloom::net {

class UnixDatagram {
 public:
  UnixDatagram() = default;  // closed
  explicit UnixDatagram(Fd fd, BoundPath path = {}) noexcept
      : fd_(std::move(fd)), path_(std::move(path)) {}
  UnixDatagram(UnixDatagram&&) noexcept = default;
  UnixDatagram& operator=(UnixDatagram&& other) noexcept {
    if (this != &other) {
      path_ = std::move(other.path_);  // removes our file while the socket lives
      fd_ = std::move(other.fd_);
    }
    return *this;
  }

  // A socket without a name: it can send, and nobody can answer.
  static Result<UnixDatagram> open();
  // A socket with a name, see BoundPath::bind. An unnamed address lets the kernel choose one.
  static Result<UnixDatagram> bind(const Address& address, const BindOptions& options = {},
                                   Deadline deadline = {});
  // Two that are connected to each other. Doesn't park.
  static Result<std::pair<UnixDatagram, UnixDatagram>> pair();
  // Takes a Unix datagram socket over, see Fd::adopt. EPROTOTYPE for anything else.
  static Result<UnixDatagram> adopt(int fd);

  // False once it was closed.
  explicit operator bool() const noexcept { return static_cast<bool>(fd_); }
  const Fd& fd() const noexcept { return fd_; }

  // From now on send() goes to `peer`, and only `peer` may send to us. Doesn't park. ENOENT,
  // ECONNREFUSED (nobody is bound there), EACCES, EPERM when `peer` talks to somebody else only.
  Result<void> connect(const Address& peer);

  // Sends one datagram, with descriptors (kMostFds at most, which stay the caller's) if there are
  // any. Parks while the receiver has no room. Fails with ENOTCONN; with ECONNREFUSED and ENOENT
  // when the receiver is gone; with EMSGSIZE when it is longer than the send buffer.
  Result<void> send(std::span<const std::byte> data, Deadline deadline = {}) {
    return send_fds(data, {}, deadline);
  }
  Result<void> send_fds(std::span<const std::byte> data, std::span<const int> fds,
                        Deadline deadline = {});
  // To a peer by name.
  Result<void> send_to(std::span<const std::byte> data, const Address& peer,
                       Deadline deadline = {}) {
    return send_fds_to(data, {}, peer, deadline);
  }
  Result<void> send_fds_to(std::span<const std::byte> data, std::span<const int> fds,
                           const Address& peer, Deadline deadline = {});
  // Receives one datagram, which may be empty. What does not fit into the buffer is dropped, and
  // UnixMessage::truncated() tells. Parks.
  Result<UnixMessage> recv(std::span<std::byte> buffer, Deadline deadline = {}) {
    return recv_fds(buffer, 0, deadline);
  }
  // As recv, with up to `most_fds` descriptors.
  Result<UnixMessage> recv_fds(std::span<std::byte> buffer, std::size_t most_fds,
                               Deadline deadline = {});

  // The name it is bound to, unnamed when it is not. Doesn't park; fails with closed.
  Result<Address> local_address() const;
  // Of one half of a pair.
  Result<PeerCredentials> peer_credentials() const { return net::peer_credentials(fd_); }
  // Removes the file, ends every operation with Errc::closed. Idempotent, doesn't park.
  void close() noexcept {
    path_.remove();
    fd_.close();
  }

 private:
  Fd fd_;
  BoundPath path_;  // after fd_, so that the file goes first
};

}  // namespace runloom::net
