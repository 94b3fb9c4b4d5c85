// The control messages of UDP: what is told of a datagram besides its bytes and its peer.
#pragma once

#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#include <cstddef>

#include "runloom/net/datagram.hpp"

namespace runloom::net {

// The C library's headers may be older than the kernel.
inline constexpr int kUdpSegment = 103;  // UDP_SEGMENT
inline constexpr int kUdpGro = 104;      // UDP_GRO

// Room for all of one datagram's: the packet information of either family, and a segment size.
struct alignas(cmsghdr) ControlRoom {
  std::byte bytes[CMSG_SPACE(sizeof(in6_pktinfo)) + CMSG_SPACE(sizeof(int))];
};

// For a receive: lets the kernel tell, and reads what it told.
inline void expect_control(msghdr& message, ControlRoom& room) noexcept {
  message.msg_control = room.bytes;
  message.msg_controllen = sizeof room.bytes;
}
void read_control(const msghdr& message, Datagram& datagram) noexcept;
// Undoes what an earlier receive had told.
inline void forget_control(Datagram& datagram) noexcept {
  datagram.segment_size = 0;
  datagram.interface = 0;
  datagram.destination.filled(0);
  datagram.local.filled(0);
}

// For a send of an endpoint of `family`: from where, by which interface, and in segments of which
// size (0: it is one datagram). Writes nothing where there is nothing to say.
void write_control(msghdr& message, ControlRoom& room, int family, const Address& local,
                   unsigned interface, std::size_t segment_size) noexcept;

}  // namespace runloom::net
