// The addresses of this machine's interfaces, by rtnetlink(7): which families it has
// (AI_ADDRCONFIG), and what sorting wants to know of a source address. And which source address the
// kernel takes for a destination, once that was asked. No parking.
#pragma once

#include <netinet/in.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

#include "hosts_file.hpp"

namespace runloom::dns {

struct LocalAddress {
  in6_addr ip{};  // an IPv4 address mapped
  unsigned prefix = 0;
  std::uint32_t interface = 0;
  bool deprecated = false;
  bool home = false;
  bool native = true;  // the interface is no tunnel of IPv6 over something else
};

// Which source address the kernel takes for a destination; none: there is no way to it. Any thread.
class Sources {
 public:
  Sources() = default;
  // A copy knows nothing.
  Sources(const Sources&) {}
  Sources& operator=(const Sources&) = delete;

  struct Source {
    bool reachable = false;
    in6_addr ip{};  // an IPv4 address mapped
  };
  std::optional<Source> find(const IpAddress& destination) const;
  void add(const IpAddress& destination, const Source& source);

 private:
  using Key = std::tuple<int, std::uint32_t, std::array<std::uint8_t, 16>>;
  static Key key_of(const IpAddress& destination) noexcept;
  mutable std::mutex mutex_;
  std::map<Key, Source> known_;  // guarded by mutex_
};

struct LocalAddresses {
  std::vector<LocalAddress> all;
  bool has_ipv4 = false;  // beyond 127.0.0.1
  bool has_ipv6 = false;  // beyond ::1
  const LocalAddress* find(const in6_addr& ip) const noexcept;
  mutable Sources sources;  // until an address or a route changes
};

// Kept for the process until the kernel tells of a change of addresses, interfaces, routes or
// rules, which every call looks for. Where rtnetlink is forbidden both families count as there.
std::shared_ptr<const LocalAddresses> local_addresses();

}  // namespace runloom::dns
