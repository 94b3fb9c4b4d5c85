// Datagrams, as UdpEndpoint receives and sends them. Plain values; nothing here parks.
#pragma once

#include <cstddef>
#include <span>

#include "runloom/net/address.hpp"

namespace runloom::net {

// Memory of the caller, and the datagram that was received into it.
//
// Where the kernel coalesces (UdpOptions::coalesce_received) it may hold a run of datagrams of one
// sender, back to back: all `segment_size` bytes long but the last, which may be shorter.
struct Datagram {
  std::span<std::byte> buffer{};  // set by the caller
  std::size_t size = 0;           // bytes of it that were received; 0 is an empty datagram, no end
  // Bytes that were sent. Where that is more than `size`, the buffer was too small and the rest is
  // lost.
  std::size_t full_size = 0;
  std::size_t segment_size = 0;  // 0: one datagram
  Address peer{};                // who sent it
  // With UdpOptions::destination, else no address and 0: where it was sent to, perhaps a group or a
  // broadcast address; the address of ours to answer from, none where the kernel doesn't say; the
  // number of the interface that it came in by. The ports are 0.
  Address destination{};
  Address local{};
  unsigned interface = 0;

  bool truncated() const noexcept { return full_size > size; }
  std::span<std::byte> data() const noexcept { return buffer.first(size); }

  // How many datagrams it holds, and each of them.
  std::size_t segments() const noexcept {
    if (segment_size == 0 || size == 0) return 1;
    return (size + segment_size - 1) / segment_size;
  }
  std::span<std::byte> segment(std::size_t index) const noexcept {
    if (segment_size == 0) return data();
    const auto rest = data().subspan(index * segment_size);
    return rest.size() < segment_size ? rest : rest.first(segment_size);
  }
};

// A datagram to be sent.
struct OutDatagram {
  std::span<const std::byte> data{};
  Address peer{};  // no address: the endpoint's peer
  // Which of our addresses to send it from (its port doesn't count), and by which interface. No
  // address and 0: the kernel's choice.
  Address local{};
  unsigned interface = 0;
};

// What the running kernel has, found out once.
struct UdpFeatures {
  bool segmentation = false;  // UDP_SEGMENT, Linux 4.18: one call, many datagrams
  bool coalescing = false;    // UDP_GRO, Linux 5.0: many datagrams in one buffer
};
UdpFeatures udp_features() noexcept;

}  // namespace runloom::net
