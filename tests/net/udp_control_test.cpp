#include "udp_control.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>

namespace runloom::test {
namespace {

using net::Address;
using net::ControlRoom;
using net::Datagram;

// What a send writes, as a kernel that turned it around would tell it to a receive.
struct Written {
  Written(int family, const Address& local, unsigned interface, std::size_t segment_size) {
    net::write_control(message, room, family, local, interface, segment_size);
  }
  cmsghdr* find(int level, int type) {
    for (cmsghdr* each = CMSG_FIRSTHDR(&message); each; each = CMSG_NXTHDR(&message, each))
      if (each->cmsg_level == level && each->cmsg_type == type) return each;
    return nullptr;
  }
  msghdr message{};
  ControlRoom room;
};

TEST(UdpControl, SaysNothingWhereThereIsNothingToSay) {
  for (const int family : {AF_INET, AF_INET6}) {
    const Written written(family, Address(), 0, 0);
    EXPECT_EQ(written.message.msg_control, nullptr);
    EXPECT_EQ(written.message.msg_controllen, 0u);
  }
}

TEST(UdpControl, WritesSegmentSizeAndSource) {
  Written four(AF_INET, Address::loopback_ipv4(9), 3, 1200);
  EXPECT_LE(four.message.msg_controllen, sizeof four.room);
  auto* info = four.find(IPPROTO_IP, IP_PKTINFO);
  ASSERT_NE(info, nullptr);
  in_pktinfo ipv4;
  std::memcpy(&ipv4, CMSG_DATA(info), sizeof ipv4);
  EXPECT_EQ(ipv4.ipi_spec_dst.s_addr, htonl(INADDR_LOOPBACK));
  EXPECT_EQ(ipv4.ipi_ifindex, 3);
  auto* segment = four.find(IPPROTO_UDP, net::kUdpSegment);
  ASSERT_NE(segment, nullptr);
  EXPECT_EQ(segment->cmsg_len, CMSG_LEN(sizeof(std::uint16_t)));

  Written six(AF_INET6, Address::loopback_ipv6(9), 4, 1200);
  EXPECT_EQ(six.message.msg_controllen, CMSG_SPACE(sizeof(in6_pktinfo)) + CMSG_SPACE(2));
  EXPECT_NE(six.find(IPPROTO_IPV6, IPV6_PKTINFO), nullptr);
  EXPECT_NE(six.find(IPPROTO_UDP, net::kUdpSegment), nullptr);
}

TEST(UdpControl, ReadsWhatTheKernelTells) {
  Written six(AF_INET6, Address::from_ip("fe80::1", 0).value(), 7, 0);
  Datagram datagram;
  net::read_control(six.message, datagram);
  EXPECT_EQ(datagram.interface, 7u);
  EXPECT_EQ(datagram.local, datagram.destination);
  EXPECT_EQ(datagram.local.ip(), "fe80::1");
  EXPECT_EQ(datagram.local.scope_id(), 7u);  // a link-local address says of which link
  // A group is no address to answer from.
  net::forget_control(datagram);
  EXPECT_EQ(datagram.local.family(), AF_UNSPEC);
  Written group(AF_INET6, Address::from_ip("ff02::1", 0).value(), 7, 0);
  net::read_control(group.message, datagram);
  EXPECT_EQ(datagram.destination.ip(), "ff02::1");
  EXPECT_EQ(datagram.local.family(), AF_UNSPEC);
}

TEST(UdpControl, ReadsASegmentSizeAndPassesTheUnknownOver) {
  ControlRoom room;
  msghdr message{};
  net::expect_control(message, room);
  std::memset(room.bytes, 0, sizeof room.bytes);
  cmsghdr* first = CMSG_FIRSTHDR(&message);
  first->cmsg_level = SOL_SOCKET;
  first->cmsg_type = 12345;
  first->cmsg_len = CMSG_LEN(sizeof(int));
  cmsghdr* second = CMSG_NXTHDR(&message, first);
  ASSERT_NE(second, nullptr);
  second->cmsg_level = IPPROTO_UDP;
  second->cmsg_type = net::kUdpGro;
  second->cmsg_len = CMSG_LEN(sizeof(int));
  const int size = 1400;
  std::memcpy(CMSG_DATA(second), &size, sizeof size);
  Datagram datagram;
  net::read_control(message, datagram);
  EXPECT_EQ(datagram.segment_size, 1400u);
  EXPECT_EQ(datagram.interface, 0u);
}

}  // namespace
}  // namespace runloom::test
