#include "runloom/net/unix_datagram.hpp"

#include "socket_option.hpp"

namespace runloom::net {

Result<UnixDatagram> UnixDatagram::open() {
  RUNLOOM_TRY(Fd fd, open_socket(AF_UNIX, SOCK_DGRAM, 0, FdKind::datagram));
  return UnixDatagram(std::move(fd));
}

Result<UnixDatagram> UnixDatagram::bind(const Address& address, const BindOptions& options,
                                        Deadline deadline) {
  RUNLOOM_TRY(Fd fd, open_socket(AF_UNIX, SOCK_DGRAM, 0, FdKind::datagram));
  RUNLOOM_TRY(BoundPath path, BoundPath::bind(fd.number(), address, options, deadline));
  return UnixDatagram(std::move(fd), std::move(path));
}

Result<std::pair<UnixDatagram, UnixDatagram>> UnixDatagram::pair() {
  RUNLOOM_TRY(auto ends, open_pair(SOCK_DGRAM, FdKind::datagram));
  return std::pair(UnixDatagram(std::move(ends.first)), UnixDatagram(std::move(ends.second)));
}

Result<UnixDatagram> UnixDatagram::adopt(int fd) {
  if (auto ok = check_socket(fd, SOCK_DGRAM, false); !ok) return Unexpected{ok.error()};
  RUNLOOM_TRY(Fd owned, Fd::adopt(fd));
  return UnixDatagram(std::move(owned));
}

Result<void> UnixDatagram::connect(const Address& peer) {
  if (!peer.is_unix()) return fail_errno(EAFNOSUPPORT);
  const Fd::Use use(fd_);
  if (!use) return fail(Errc::closed);
  if (::connect(use.number(), peer.data(), peer.size()) != 0) return fail(last_errno());
  return {};
}

Result<void> UnixDatagram::send_fds(std::span<const std::byte> data, std::span<const int> fds,
                                    Deadline deadline) {
  const auto sent = send_message(fd_, data, fds, nullptr, deadline);
  if (!sent) return Unexpected{sent.error()};
  return {};
}

Result<void> UnixDatagram::send_fds_to(std::span<const std::byte> data, std::span<const int> fds,
                                       const Address& peer, Deadline deadline) {
  if (!peer.is_unix()) return fail_errno(EAFNOSUPPORT);
  const auto sent = send_message(fd_, data, fds, &peer, deadline);
  if (!sent) return Unexpected{sent.error()};
  return {};
}

Result<UnixMessage> UnixDatagram::recv_fds(std::span<std::byte> buffer, std::size_t most_fds,
                                           Deadline deadline) {
  return receive_message(fd_, buffer, most_fds, true, deadline);
}

Result<Address> UnixDatagram::local_address() const {
  return address_of(fd_, &::getsockname);
}

}  // namespace runloom::net
