// UnixStream: a connection over a Unix socket. As TcpStream, and it carries descriptors.
//
// Any fiber and any OS thread may use it at the same time, close() included; only moving and
// destroying it need that nobody else uses the object. Destroying closes.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "runloom/net/address.hpp"
#include "runloom/net/fd.hpp"
#include "runloom/net/stream.hpp"
#include "runloom/net/unix_socket.hpp"

namespace runloom::net {

class UnixStream final : public Stream {
 public:
  UnixStream() = default;  // closed
  explicit UnixStream(Fd fd) noexcept : fd_(std::move(fd)) {}
  UnixStream(UnixStream&&) noexcept = default;
  UnixStream& operator=(UnixStream&&) noexcept = default;

  // Parks, also while the listener's queue is full. Fails with the kernel's error: ENOENT,
  // ECONNREFUSED (nobody listens there), EACCES, EPROTOTYPE (no stream socket); EAFNOSUPPORT for an
  // address of another family.
  static Result<UnixStream> connect(const Address& peer, Deadline deadline = {});
  // Two ends of one connection. Doesn't park.
  static Result<std::pair<UnixStream, UnixStream>> pair();
  // Takes a Unix stream socket over, see Fd::adopt. EPROTOTYPE for anything else.
  static Result<UnixStream> adopt(int fd);

  // False once it was closed.
  explicit operator bool() const noexcept { return static_cast<bool>(fd_); }
  const Fd& fd() const noexcept { return fd_; }

  // --- Stream ---
  // A read ends behind a message that carried descriptors, though there may be more. The reads here
  // drop the descriptors of the bytes that they take; none is opened.
  Result<std::size_t> read_some(std::span<std::byte> buffer, Deadline deadline = {}) override;
  Result<std::size_t> read_late(RecvBuffer& buffer, Deadline deadline = {}) override {
    return fd_.recv_late(buffer, deadline);
  }
  Result<std::size_t> write_some(std::span<const std::byte> data, Deadline deadline = {}) override;
  Result<void> write_all(std::span<const std::byte> data, Deadline deadline = {},
                         std::size_t* bytes_written = nullptr) override {
    return fd_.send_all(data, deadline, bytes_written);
  }
  Result<void> writev_all(std::span<const iovec> buffers, Deadline deadline = {},
                          std::size_t* bytes_written = nullptr) override {
    return fd_.send_all(buffers, deadline, bytes_written);
  }
  Result<void> wait_readable(Deadline deadline = {}) override;
  Result<void> shutdown_write() override { return fd_.shutdown(SHUT_WR); }
  void close() noexcept override { fd_.close(); }

  // --- beyond Stream ---
  // Sends bytes, at least one, and descriptors with the first of them: up to kMostFds, which stay
  // the caller's (he may close them as soon as this returns). One transfer: returns how many bytes
  // went, and none without all descriptors. Parks. Fails with UnixErrc, with EBADF for a bad
  // descriptor, and with ETOOMANYREFS when more are on their way than RLIMIT_NOFILE allows.
  Result<std::size_t> send_fds(std::span<const std::byte> data, std::span<const int> fds,
                               Deadline deadline = {});
  // Reads bytes, and up to `most_fds` (kMostFds at most) descriptors that travel with them: those
  // of one message, which is the last that the bytes are of. Parks.
  Result<UnixMessage> recv_fds(std::span<std::byte> buffer, std::size_t most_fds,
                               Deadline deadline = {});
  // As read_some; the bytes stay unread, and their descriptors with them.
  Result<std::size_t> peek(std::span<std::byte> buffer, Deadline deadline = {});
  Result<void> wait_writable(Deadline deadline = {});
  // Sends part of a file whole, see Fd::send_file.
  Result<std::size_t> send_file(int file, off_t offset, std::size_t count, Deadline deadline = {},
                                std::size_t* bytes_sent = nullptr) {
    return fd_.send_file(file, offset, count, deadline, bytes_sent);
  }
  // shutdown(2). Doesn't park.
  Result<void> shutdown(int how) { return fd_.shutdown(how); }
  // The descriptor's owner, see TcpStream::take_fd.
  Fd take_fd() noexcept { return std::move(fd_); }
  // Gives the descriptor away, see TcpStream::detach.
  Result<int> detach() noexcept { return fd_.release(); }

  // These don't park. An end that was not bound has an unnamed address.
  Result<Address> local_address() const;
  Result<Address> peer_address() const;
  Result<PeerCredentials> peer_credentials() const { return net::peer_credentials(fd_); }

 private:
  Fd fd_;
};

}  // namespace runloom::net
