#include "udp_control.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace runloom::net {
namespace {

// CMSG_DATA need not be aligned for the type.
template <class T>
T load(const cmsghdr& header) noexcept {
  T value{};
  const std::size_t length = header.cmsg_len - CMSG_LEN(0);
  std::memcpy(&value, CMSG_DATA(&header), std::min(sizeof value, length));
  return value;
}

class Writer {
 public:
  Writer(msghdr& message, ControlRoom& room) noexcept : message_(message), room_(room) {
    message.msg_control = nullptr;
    message.msg_controllen = 0;
  }
  template <class T>
  void put(int level, int type, const T& value) noexcept {
    cmsghdr header{};
    header.cmsg_len = CMSG_LEN(sizeof value);
    header.cmsg_level = level;
    header.cmsg_type = type;
    std::byte* at = room_.bytes + message_.msg_controllen;
    std::memset(at, 0, CMSG_SPACE(sizeof value));
    std::memcpy(at, &header, sizeof header);
    std::memcpy(at + CMSG_LEN(0), &value, sizeof value);
    message_.msg_control = room_.bytes;
    message_.msg_controllen += CMSG_SPACE(sizeof value);
  }

 private:
  msghdr& message_;
  ControlRoom& room_;
};

const in6_addr& ipv6_of(const Address& address) noexcept {
  return reinterpret_cast<const sockaddr_in6*>(address.data())->sin6_addr;
}

void read_packet_info(const in6_pktinfo& info, Datagram& datagram) noexcept {
  const bool scoped =
      IN6_IS_ADDR_LINKLOCAL(&info.ipi6_addr) || IN6_IS_ADDR_MC_LINKLOCAL(&info.ipi6_addr);
  datagram.interface = info.ipi6_ifindex;
  datagram.destination = Address::from_ipv6(
      info.ipi6_addr, 0, scoped ? static_cast<std::uint32_t>(info.ipi6_ifindex) : 0);
  if (!IN6_IS_ADDR_MULTICAST(&info.ipi6_addr)) datagram.local = datagram.destination;
}

void read_packet_info(const in_pktinfo& info, Datagram& datagram) noexcept {
  datagram.interface = static_cast<unsigned>(info.ipi_ifindex);
  datagram.destination = Address::from_ipv4(info.ipi_addr, 0);
  if (info.ipi_spec_dst.s_addr != INADDR_ANY)
    datagram.local = Address::from_ipv4(info.ipi_spec_dst, 0);
}

}  // namespace

void read_control(const msghdr& message, Datagram& datagram) noexcept {
  // CMSG_NXTHDR takes the message by a pointer that is not const.
  auto* all = const_cast<msghdr*>(&message);
  for (cmsghdr* each = CMSG_FIRSTHDR(all); each; each = CMSG_NXTHDR(all, each)) {
    if (each->cmsg_level == IPPROTO_UDP && each->cmsg_type == kUdpGro) {
      const int size = load<int>(*each);
      datagram.segment_size = size > 0 ? static_cast<std::size_t>(size) : 0;
    } else if (each->cmsg_level == IPPROTO_IP && each->cmsg_type == IP_PKTINFO) {
      read_packet_info(load<in_pktinfo>(*each), datagram);
    } else if (each->cmsg_level == IPPROTO_IPV6 && each->cmsg_type == IPV6_PKTINFO) {
      read_packet_info(load<in6_pktinfo>(*each), datagram);
    }
  }
}

void write_control(msghdr& message, ControlRoom& room, int family, const Address& local,
                   unsigned interface, std::size_t segment_size) noexcept {
  Writer writer(message, room);
  if ((local.is_ip() || interface != 0) && family == AF_INET) {
    in_pktinfo info{};
    info.ipi_ifindex = static_cast<int>(interface);
    if (local.is_ipv4())
      info.ipi_spec_dst = reinterpret_cast<const sockaddr_in*>(local.data())->sin_addr;
    writer.put(IPPROTO_IP, IP_PKTINFO, info);
  } else if (local.is_ip() || interface != 0) {
    in6_pktinfo info{};
    info.ipi6_ifindex = interface;
    if (local.is_ipv6()) info.ipi6_addr = ipv6_of(local);
    writer.put(IPPROTO_IPV6, IPV6_PKTINFO, info);
  }
  if (segment_size != 0)
    writer.put(IPPROTO_UDP, kUdpSegment, static_cast<std::uint16_t>(segment_size));
}

}  // namespace runloom::net
