// TcpStream: a TCP connection.
//
// Any fiber and any OS thread may use it at the same time, close() included; only moving and
// destroying it need that nobody else uses the object. Destroying closes.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>

#include "runloom/net/address.hpp"
#include "runloom/net/fd.hpp"
#include "runloom/net/options.hpp"
#include "runloom/net/stream.hpp"

namespace runloom::net {

class TcpStream final : public Stream {
 public:
  TcpStream() = default;  // closed
  explicit TcpStream(Fd fd) noexcept : fd_(std::move(fd)) {}
  TcpStream(TcpStream&&) noexcept = default;
  TcpStream& operator=(TcpStream&&) noexcept = default;

  // Parks. Fails with the kernel's error (ECONNREFUSED, ENETUNREACH, ...), each reported once;
  // with self_connect when the kernel gave the socket the port that it connects to.
  static Result<TcpStream> connect(const Address& peer, const ConnectOptions& options = {},
                                   Deadline deadline = {});
  // Takes a connected TCP socket over, see Fd::adopt. EPROTOTYPE for anything else.
  static Result<TcpStream> adopt(int fd);

  // False once it was closed.
  explicit operator bool() const noexcept { return static_cast<bool>(fd_); }
  const Fd& fd() const noexcept { return fd_; }

  // --- Stream ---
  Result<std::size_t> read_some(std::span<std::byte> buffer, Deadline deadline = {}) override;
  Result<std::size_t> read_late(RecvBuffer& buffer, Deadline deadline = {}) override {
    return fd_.recv_late(buffer, deadline);
  }
  Result<std::size_t> write_some(std::span<const std::byte> data, Deadline deadline = {}) override;
  Result<void> write_all(std::span<const std::byte> data, Deadline deadline = {},
                         std::size_t* bytes_written = nullptr) override;
  Result<void> writev_all(std::span<const iovec> buffers, Deadline deadline = {},
                          std::size_t* bytes_written = nullptr) override;
  Result<void> wait_readable(Deadline deadline = {}) override;
  Result<void> shutdown_write() override;
  void close() noexcept override { fd_.close(); }

  // --- beyond Stream ---
  // recv(2) and send(2) with flags (MSG_PEEK, MSG_WAITALL, MSG_DONTWAIT, MSG_OOB, MSG_MORE), see
  // Fd::recv.
  Result<std::size_t> recv(std::span<std::byte> buffer, int flags, Deadline deadline = {}) {
    return fd_.recv(buffer, flags, deadline);
  }
  Result<std::size_t> send(std::span<const std::byte> data, int flags, Deadline deadline = {}) {
    return fd_.send(data, flags, deadline);
  }
  // As read_some; the bytes stay unread.
  Result<std::size_t> peek(std::span<std::byte> buffer, Deadline deadline = {});
  Result<void> wait_writable(Deadline deadline = {});
  // Sends part of a file whole, see Fd::send_file.
  Result<std::size_t> send_file(int file, off_t offset, std::size_t count, Deadline deadline = {},
                                std::size_t* bytes_sent = nullptr) {
    return fd_.send_file(file, offset, count, deadline, bytes_sent);
  }
  // shutdown(2): SHUT_RD, SHUT_WR, SHUT_RDWR. Doesn't park. Readers then read the end of the
  // stream.
  Result<void> shutdown(int how) { return fd_.shutdown(how); }
  // Gives the descriptor away, in the mode it had when it was taken over (blocking, if we made
  // it). Ends operations in flight with Errc::closed and waits until they have left: parks, is no
  // cancel point. EBUSY where it may not park, see Fd::release.
  Result<int> detach() noexcept { return fd_.release(); }

  // Gives the descriptor to another net object, as it is; the stream is closed then. Needs that
  // nobody else uses it.
  Fd take_fd() noexcept { return std::move(fd_); }

  // These don't park. Fail with closed, peer_address() also with ENOTCONN when the peer has reset.
  Result<Address> local_address() const;
  Result<Address> peer_address() const;

  // --- options; they don't park, and fail with closed or the kernel's error ---
  Result<void> set_no_delay(bool on);
  // None: no probes.
  Result<void> set_keep_alive(const std::optional<KeepAlive>& options);
  // Zero: close() resets the connection. None: close() sends the rest in the background. A wait in
  // close() would stop the whole thread, so any other time is EINVAL; see lingering_close().
  Result<void> set_linger(std::optional<std::chrono::seconds> linger);
  Result<void> set_send_buffer(int bytes);
  Result<void> set_receive_buffer(int bytes);

 private:
  Fd fd_;
};

// Sets a fresh socket up. For authors of net types.
Result<void> apply_options(int fd, const TcpOptions& options);

}  // namespace runloom::net
