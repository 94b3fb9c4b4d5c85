// The addresses of this machine's interfaces, by rtnetlink(7): which families it has
// (AI_ADDRCONFIG), and what sorting wants to know of a source address. No parking.
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace runloom::dns {

struct LocalAddress {
  in6_addr ip{};  // an IPv4 address mapped
  unsigned prefix = 0;
  std::uint32_t interface = 0;
  bool deprecated = false;
  bool home = false;
  bool native = true;  // the interface is no tunnel of IPv6 over something else
};

struct LocalAddresses {
  std::vector<LocalAddress> all;
  bool has_ipv4 = false;  // beyond 127.0.0.1
  bool has_ipv6 = false;  // beyond ::1
  const LocalAddress* find(const in6_addr& ip) const noexcept;
};

// Kept for the process until the kernel tells of a change. Where rtnetlink is forbidden both
// families count as there.
std::shared_ptr<const LocalAddresses> local_addresses();

}  // namespace runloom::dns
