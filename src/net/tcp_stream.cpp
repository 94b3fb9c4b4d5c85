#include "runloom/net/tcp_stream.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdint>

#include "socket_option.hpp"

namespace runloom::net {
namespace {

// What does not fit into an int is more than the kernel takes, and must not come out as less.
int whole_seconds(std::chrono::seconds time) noexcept {
  return static_cast<int>(std::clamp<std::int64_t>(time.count(), INT_MIN, INT_MAX));
}

Result<void> set_keep_alive_options(int fd, const std::optional<KeepAlive>& options) {
  if (!options) return set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 0);
  for (const auto& [level, name, value] :
       {std::array<int, 3>{IPPROTO_TCP, TCP_KEEPIDLE, whole_seconds(options->idle)},
        std::array<int, 3>{IPPROTO_TCP, TCP_KEEPINTVL, whole_seconds(options->interval)},
        std::array<int, 3>{IPPROTO_TCP, TCP_KEEPCNT, options->probes},
        std::array<int, 3>{SOL_SOCKET, SO_KEEPALIVE, 1}})
    if (auto ok = set_option(fd, level, name, value); !ok) return ok;
  return {};
}

}  // namespace

Result<void> apply_options(int fd, const TcpOptions& options) {
  if (options.no_delay)
    if (auto ok = set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1); !ok) return ok;
  if (options.keep_alive)
    if (auto ok = set_keep_alive_options(fd, options.keep_alive); !ok) return ok;
  if (options.send_buffer != 0)
    if (auto ok = set_option(fd, SOL_SOCKET, SO_SNDBUF, options.send_buffer); !ok) return ok;
  if (options.receive_buffer != 0)
    if (auto ok = set_option(fd, SOL_SOCKET, SO_RCVBUF, options.receive_buffer); !ok) return ok;
  return {};
}

Result<TcpStream> TcpStream::connect(const Address& peer, const ConnectOptions& options,
                                     Deadline deadline) {
  if (!peer.is_ip()) return fail_errno(EAFNOSUPPORT);
  RUNLOOM_TRY(Fd fd, open_socket(peer.family(), SOCK_STREAM, IPPROTO_TCP, FdKind::tcp));
  const int number = fd.number();
  if (auto ok = apply_options(number, options.tcp); !ok) return Unexpected{ok.error()};
  if (options.reuse_address)
    if (auto ok = set_option(number, SOL_SOCKET, SO_REUSEADDR, 1); !ok)
      return Unexpected{ok.error()};
  if (options.local.family() != AF_UNSPEC &&
      ::bind(number, options.local.data(), options.local.size()) != 0)
    return fail(last_errno());
  if (auto ok = fd.connect(peer.data(), peer.size(), deadline); !ok) return Unexpected{ok.error()};
  TcpStream stream(std::move(fd));
  // A connect to a port of the ephemeral range where nobody listens succeeds when the kernel picks
  // that very port: a client that retries until its server is up ends up talking to itself, and
  // has taken the server's port.
  const auto local = stream.local_address();
  if (local && *local == peer) {
    [[maybe_unused]] auto reset = stream.set_linger(std::chrono::seconds(0));
    return fail(Errc::self_connect);
  }
  return stream;
}

Result<TcpStream> TcpStream::adopt(int fd) {
  int domain = 0, type = 0, protocol = 0;
  socklen_t size = sizeof(int);
  if (::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0 ||
      ::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 ||
      ::getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) != 0)
    return fail(last_errno());
  if ((domain != AF_INET && domain != AF_INET6) || type != SOCK_STREAM || protocol != IPPROTO_TCP)
    return fail_errno(EPROTOTYPE);
  RUNLOOM_TRY(Fd owned, Fd::adopt(fd));
  return TcpStream(std::move(owned));
}

// ---------------------------------------------------------------- transfers

Result<std::size_t> TcpStream::read_some(std::span<std::byte> buffer, Deadline deadline) {
  if (buffer.empty()) return std::size_t{0};
  return fd_.recv(buffer, 0, deadline);
}

Result<std::size_t> TcpStream::write_some(std::span<const std::byte> data, Deadline deadline) {
  if (data.empty()) return std::size_t{0};
  return fd_.send(data, 0, deadline);
}

Result<void> TcpStream::write_all(std::span<const std::byte> data, Deadline deadline,
                                  std::size_t* bytes_written) {
  return fd_.send_all(data, deadline, bytes_written);
}

Result<void> TcpStream::writev_all(std::span<const iovec> buffers, Deadline deadline,
                                   std::size_t* bytes_written) {
  return fd_.send_all(buffers, deadline, bytes_written);
}

Result<std::size_t> TcpStream::peek(std::span<std::byte> buffer, Deadline deadline) {
  if (buffer.empty()) return std::size_t{0};
  return fd_.recv(buffer, MSG_PEEK, deadline);
}

Result<void> TcpStream::wait_readable(Deadline deadline) {
  const auto ready = fd_.wait_ready(kRead, deadline);
  if (!ready) return Unexpected{ready.error()};
  return {};
}

Result<void> TcpStream::wait_writable(Deadline deadline) {
  const auto ready = fd_.wait_ready(kWrite, deadline);
  if (!ready) return Unexpected{ready.error()};
  return {};
}

Result<void> TcpStream::shutdown_write() {
  return fd_.shutdown(SHUT_WR);
}

// ---------------------------------------------------------------- addresses and options

Result<Address> TcpStream::local_address() const {
  return address_of(fd_, &::getsockname);
}
Result<Address> TcpStream::peer_address() const {
  return address_of(fd_, &::getpeername);
}

Result<void> TcpStream::set_no_delay(bool on) {
  return set_option(fd_, IPPROTO_TCP, TCP_NODELAY, on ? 1 : 0);
}

Result<void> TcpStream::set_keep_alive(const std::optional<KeepAlive>& options) {
  const Fd::Use use(fd_);
  if (!use) return fail(Errc::closed);
  return set_keep_alive_options(use.number(), options);
}

Result<void> TcpStream::set_linger(std::optional<std::chrono::seconds> linger_time) {
  if (linger_time && linger_time->count() != 0) return fail_errno(EINVAL);
  const Fd::Use use(fd_);
  if (!use) return fail(Errc::closed);
  const linger value{linger_time ? 1 : 0, 0};
  if (::setsockopt(use.number(), SOL_SOCKET, SO_LINGER, &value, sizeof value) != 0)
    return fail(last_errno());
  return {};
}

Result<void> TcpStream::set_send_buffer(int bytes) {
  return set_option(fd_, SOL_SOCKET, SO_SNDBUF, bytes);
}
Result<void> TcpStream::set_receive_buffer(int bytes) {
  return set_option(fd_, SOL_SOCKET, SO_RCVBUF, bytes);
}

}  // namespace runloom::net
