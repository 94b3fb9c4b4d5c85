#include "runloom/net/udp_endpoint.hpp"

#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "socket_option.hpp"
#include "udp_control.hpp"

namespace runloom::net {
namespace {

int level_of(int family) noexcept {
  return family == AF_INET ? IPPROTO_IP : IPPROTO_IPV6;
}

Result<int> get_option(int fd, int level, int name) noexcept {
  int value = 0;
  socklen_t size = sizeof value;
  if (::getsockopt(fd, level, name, &value, &size) != 0) return fail(last_errno());
  return value;
}

bool is_on(int fd, int level, int name) noexcept {
  return get_option(fd, level, name).value_or(0) != 0;
}

iovec memory(std::span<const std::byte> data) noexcept {
  return {const_cast<std::byte*>(data.data()), data.size()};
}

}  // namespace

UdpFeatures udp_features() noexcept {
  static const UdpFeatures features = [] {
    UdpFeatures found;
    const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return found;
    found.segmentation = get_option(fd, IPPROTO_UDP, kUdpSegment).has_value();
    found.coalescing = set_option(fd, IPPROTO_UDP, kUdpGro, 1).has_value();
    ::close(fd);
    return found;
  }();
  return features;
}

// ---------------------------------------------------------------- making one

Result<UdpEndpoint> UdpEndpoint::make(int family, const UdpOptions& options) {
  if (family != AF_INET && family != AF_INET6) return fail_errno(EAFNOSUPPORT);
  const bool ipv6 = family == AF_INET6;
  RUNLOOM_TRY(Fd fd, open_socket(family, SOCK_DGRAM, 0, FdKind::datagram));
  const int number = fd.number();
  if (auto ok = set_options(
          number, {{options.reuse_address, SOL_SOCKET, SO_REUSEADDR, 1},
                   {options.reuse_port, SOL_SOCKET, SO_REUSEPORT, 1},
                   {options.broadcast, SOL_SOCKET, SO_BROADCAST, 1},
                   {ipv6 && options.v6_only.has_value(), IPPROTO_IPV6, IPV6_V6ONLY,
                    options.v6_only.value_or(false) ? 1 : 0},
                   {options.send_buffer != 0, SOL_SOCKET, SO_SNDBUF, options.send_buffer},
                   {options.receive_buffer != 0, SOL_SOCKET, SO_RCVBUF, options.receive_buffer},
                   {options.destination && !ipv6, IPPROTO_IP, IP_PKTINFO, 1},
                   {options.destination && ipv6, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1}});
      !ok)
    return Unexpected{ok.error()};
  UdpEndpoint endpoint(std::move(fd), family);
  if (options.coalesce_received)
    endpoint.coalesces_ = set_option(number, IPPROTO_UDP, kUdpGro, 1).has_value();
  endpoint.tells_more_ = options.destination || endpoint.coalesces_;
  return endpoint;
}

Result<UdpEndpoint> UdpEndpoint::open(int family, const UdpOptions& options) {
  return make(family, options);
}

Result<UdpEndpoint> UdpEndpoint::bind(const Address& local, const UdpOptions& options) {
  RUNLOOM_TRY(UdpEndpoint endpoint, make(local.family(), options));
  if (::bind(endpoint.fd_.number(), local.data(), local.size()) != 0) return fail(last_errno());
  return endpoint;
}

Result<UdpEndpoint> UdpEndpoint::connect(const Address& peer, const UdpOptions& options) {
  RUNLOOM_TRY(UdpEndpoint endpoint, make(peer.family(), options));
  const int number = endpoint.fd_.number();
  const Address& local = options.local;
  if (local.family() != AF_UNSPEC && ::bind(number, local.data(), local.size()) != 0)
    return fail(last_errno());
  if (::connect(number, peer.data(), peer.size()) != 0) return fail(last_errno());
  endpoint.hears_errors_ = true;
  return endpoint;
}

Result<UdpEndpoint> UdpEndpoint::adopt(int fd) {
  RUNLOOM_TRY(const int family, get_option(fd, SOL_SOCKET, SO_DOMAIN));
  RUNLOOM_TRY(const int type, get_option(fd, SOL_SOCKET, SO_TYPE));
  RUNLOOM_TRY(const int protocol, get_option(fd, SOL_SOCKET, SO_PROTOCOL));
  if ((family != AF_INET && family != AF_INET6) || type != SOCK_DGRAM || protocol != IPPROTO_UDP)
    return fail_errno(EPROTOTYPE);
  RUNLOOM_TRY(Fd owned, Fd::adopt(fd));
  UdpEndpoint endpoint(std::move(owned), family);
  endpoint.coalesces_ = is_on(fd, IPPROTO_UDP, kUdpGro);
  endpoint.tells_more_ = endpoint.coalesces_ || is_on(fd, IPPROTO_IP, IP_PKTINFO) ||
                         (family == AF_INET6 && is_on(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO));
  endpoint.hears_errors_ = true;  // it may be connected, or have asked for them (IP_RECVERR)
  return endpoint;
}

// ---------------------------------------------------------------- one datagram

// MSG_TRUNC: the kernel returns the size that the datagram had.
Result<Datagram> UdpEndpoint::recv_from(std::span<std::byte> buffer, Deadline deadline) const {
  Datagram datagram{.buffer = buffer};
  ControlRoom room;
  iovec part = memory(buffer);
  msghdr message{};
  message.msg_name = datagram.peer.fill();
  message.msg_namelen = Address::kMostSize;
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (tells_more_) expect_control(message, room);
  RUNLOOM_TRY(datagram.full_size, fd_.recvmsg(message, MSG_TRUNC, deadline));
  datagram.size = std::min(datagram.full_size, buffer.size());
  datagram.peer.filled(message.msg_namelen);
  if (tells_more_) read_control(message, datagram);
  return datagram;
}

Result<std::size_t> UdpEndpoint::recv(std::span<std::byte> buffer, Deadline deadline,
                                      std::size_t* full_size) const {
  RUNLOOM_TRY(const std::size_t sent, fd_.recv(buffer, MSG_TRUNC, deadline));
  if (full_size) *full_size = sent;
  return std::min(sent, buffer.size());
}

Result<void> UdpEndpoint::send(const OutDatagram& datagram, Deadline deadline) const {
  if (datagram.local.family() != AF_UNSPEC && datagram.local.family() != family_)
    return fail_errno(EAFNOSUPPORT);
  ControlRoom room;
  iovec part = memory(datagram.data);
  msghdr message{};
  if (datagram.peer.size() != 0) {
    message.msg_name = const_cast<sockaddr*>(datagram.peer.data());
    message.msg_namelen = datagram.peer.size();
  }
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  write_control(message, room, family_, datagram.local, datagram.interface, 0);
  const auto sent = fd_.sendmsg(message, 0, deadline);
  if (!sent) return Unexpected{sent.error()};
  return {};
}

Result<void> UdpEndpoint::send_to(std::span<const std::byte> data, const Address& peer,
                                  Deadline deadline) const {
  return send({.data = data, .peer = peer}, deadline);
}

Result<void> UdpEndpoint::send(std::span<const std::byte> data, Deadline deadline) const {
  const auto sent = fd_.send(data, 0, deadline);
  if (!sent) return Unexpected{sent.error()};
  return {};
}

Result<void> UdpEndpoint::wait_readable(Deadline deadline) const {
  const auto ready = fd_.wait_ready(kRead, deadline);
  if (!ready) return Unexpected{ready.error()};
  return {};
}

// ---------------------------------------------------------------- addresses

Result<Address> UdpEndpoint::local_address() const {
  return address_of(fd_, &::getsockname);
}
Result<Address> UdpEndpoint::peer_address() const {
  return address_of(fd_, &::getpeername);
}

Result<void> UdpEndpoint::set_peer(const Address& peer) const {
  if (!peer.is_ip()) return fail_errno(EAFNOSUPPORT);  // AF_UNSPEC would disconnect
  const Fd::Use use(fd_);
  if (!use) return fail(Errc::closed);
  std::atomic_ref(hears_errors_).store(true, std::memory_order_relaxed);
  if (::connect(use.number(), peer.data(), peer.size()) != 0) return fail(last_errno());
  return {};
}

Result<void> UdpEndpoint::clear_peer() const {
  const Fd::Use use(fd_);
  if (!use) return fail(Errc::closed);
  sockaddr nobody{};
  nobody.sa_family = AF_UNSPEC;
  if (::connect(use.number(), &nobody, sizeof nobody) != 0) return fail(last_errno());
  return {};
}

// ---------------------------------------------------------------- options

Result<void> UdpEndpoint::set(int ipv4_name, int ipv6_name, int value) const {
  return set_option(fd_, level_of(family_), family_ == AF_INET ? ipv4_name : ipv6_name, value);
}

Result<void> UdpEndpoint::set_broadcast(bool on) const {
  return set_option(fd_, SOL_SOCKET, SO_BROADCAST, on ? 1 : 0);
}
Result<void> UdpEndpoint::set_send_buffer(int bytes) const {
  return set_option(fd_, SOL_SOCKET, SO_SNDBUF, bytes);
}
Result<void> UdpEndpoint::set_receive_buffer(int bytes) const {
  return set_option(fd_, SOL_SOCKET, SO_RCVBUF, bytes);
}
Result<void> UdpEndpoint::set_hop_limit(int hops) const {
  return set(IP_TTL, IPV6_UNICAST_HOPS, hops);
}
Result<void> UdpEndpoint::set_traffic_class(int value) const {
  return set(IP_TOS, IPV6_TCLASS, value);
}

// The calls that are the same for both families, of RFC 3678.
Result<void> UdpEndpoint::membership(int name, const Address& group, unsigned interface) const {
  const Fd::Use use(fd_);
  if (!use) return fail(Errc::closed);
  if (group.family() != family_) return fail_errno(EAFNOSUPPORT);
  group_req request{};
  request.gr_interface = interface != 0 ? interface : group.scope_id();
  std::memcpy(&request.gr_group, group.data(), group.size());
  if (::setsockopt(use.number(), level_of(family_), name, &request, sizeof request) != 0)
    return fail(last_errno());
  return {};
}
Result<void> UdpEndpoint::join_group(const Address& group, unsigned interface) const {
  return membership(MCAST_JOIN_GROUP, group, interface);
}
Result<void> UdpEndpoint::leave_group(const Address& group, unsigned interface) const {
  return membership(MCAST_LEAVE_GROUP, group, interface);
}

Result<void> UdpEndpoint::set_multicast_interface(unsigned interface) const {
  if (family_ != AF_INET)
    return set_option(fd_, IPPROTO_IPV6, IPV6_MULTICAST_IF, static_cast<int>(interface));
  const Fd::Use use(fd_);
  if (!use) return fail(Errc::closed);
  ip_mreqn request{};
  request.imr_ifindex = static_cast<int>(interface);
  if (::setsockopt(use.number(), IPPROTO_IP, IP_MULTICAST_IF, &request, sizeof request) != 0)
    return fail(last_errno());
  return {};
}
Result<void> UdpEndpoint::set_multicast_hop_limit(int hops) const {
  return set(IP_MULTICAST_TTL, IPV6_MULTICAST_HOPS, hops);
}
Result<void> UdpEndpoint::set_multicast_loop(bool on) const {
  return set(IP_MULTICAST_LOOP, IPV6_MULTICAST_LOOP, on ? 1 : 0);
}

}  // namespace runloom::net
