#include "runloom/net/unix_stream.hpp"

#include "socket_option.hpp"

namespace runloom::net {

Result<UnixStream> UnixStream::connect(const Address& peer, Deadline deadline) {
  if (!peer.is_unix()) return fail_errno(EAFNOSUPPORT);
  RUNLOOM_TRY(Fd fd, open_socket(AF_UNIX, SOCK_STREAM, 0, FdKind::stream));
  if (auto ok = connect_unix(fd, peer.data(), peer.size(), deadline); !ok)
    return Unexpected{ok.error()};
  return UnixStream(std::move(fd));
}

Result<std::pair<UnixStream, UnixStream>> UnixStream::pair() {
  RUNLOOM_TRY(auto ends, open_pair(SOCK_STREAM, FdKind::stream));
  return std::pair(UnixStream(std::move(ends.first)), UnixStream(std::move(ends.second)));
}

Result<UnixStream> UnixStream::adopt(int fd) {
  if (auto ok = check_socket(fd, SOCK_STREAM, false); !ok) return Unexpected{ok.error()};
  RUNLOOM_TRY(Fd owned, Fd::adopt(fd));
  return UnixStream(std::move(owned));
}

// ---------------------------------------------------------------- transfers

Result<std::size_t> UnixStream::read_some(std::span<std::byte> buffer, Deadline deadline) {
  if (buffer.empty()) return std::size_t{0};
  return fd_.recv(buffer, 0, deadline);
}

Result<std::size_t> UnixStream::write_some(std::span<const std::byte> data, Deadline deadline) {
  if (data.empty()) return std::size_t{0};
  return fd_.send(data, 0, deadline);
}

Result<std::size_t> UnixStream::send_fds(std::span<const std::byte> data, std::span<const int> fds,
                                         Deadline deadline) {
  if (data.empty()) return fail(make_error_code(UnixErrc::no_byte));
  return send_message(fd_, data, fds, nullptr, deadline);
}

Result<UnixMessage> UnixStream::recv_fds(std::span<std::byte> buffer, std::size_t most_fds,
                                         Deadline deadline) {
  // With no room for a byte the kernel would wait for one and hand out the descriptors without it.
  if (buffer.empty()) return fail(make_error_code(UnixErrc::no_byte));
  return receive_message(fd_, buffer, most_fds, false, deadline);
}

Result<std::size_t> UnixStream::peek(std::span<std::byte> buffer, Deadline deadline) {
  if (buffer.empty()) return std::size_t{0};
  return fd_.recv(buffer, MSG_PEEK, deadline);
}

Result<void> UnixStream::wait_readable(Deadline deadline) {
  const auto ready = fd_.wait_ready(kRead, deadline);
  if (!ready) return Unexpected{ready.error()};
  return {};
}

Result<void> UnixStream::wait_writable(Deadline deadline) {
  const auto ready = fd_.wait_ready(kWrite, deadline);
  if (!ready) return Unexpected{ready.error()};
  return {};
}

Result<Address> UnixStream::local_address() const {
  return address_of(fd_, &::getsockname);
}
Result<Address> UnixStream::peer_address() const {
  return address_of(fd_, &::getpeername);
}

}  // namespace runloom::net
