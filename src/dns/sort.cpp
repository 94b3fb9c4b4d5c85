#include "sort.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "lookup.hpp"
#include "runloom/net/address.hpp"
#include "runloom/net/owned_fd.hpp"

namespace runloom::dns {
namespace {

in6_addr as_ipv6(const IpAddress& address) noexcept {
  return address.family == AF_INET ? mapped(address).bytes : address.bytes;
}

// A mapped address that is asked for as IPv6 has the scope of any other, as glibc sees it.
int scope_of(const in6_addr& ip, int family, const GaiConf& conf) noexcept {
  if (family == AF_INET) {
    in_addr ipv4;
    std::memcpy(&ipv4, ip.s6_addr + 12, 4);
    return conf.ipv4_scope(ipv4);
  }
  if (IN6_IS_ADDR_MULTICAST(&ip)) return ip.s6_addr[1] & 0xf;
  if (IN6_IS_ADDR_LINKLOCAL(&ip) || IN6_IS_ADDR_LOOPBACK(&ip)) return 2;
  if (IN6_IS_ADDR_SITELOCAL(&ip)) return 5;
  return 14;
}

std::uint32_t word(const in6_addr& ip, int index) noexcept {
  std::uint32_t value;
  std::memcpy(&value, ip.s6_addr + 4 * index, 4);
  return ntohl(value);
}

// Rule 9 between IPv4 addresses: how long the common prefix is, but only within one subnet.
int common_ipv4(const Destination& d, const in6_addr& to) noexcept {
  const unsigned prefix = d.local.prefix;
  const std::uint32_t mask =
      prefix == 0 || prefix >= 32 ? 0xffff'ffffu : 0xffff'ffffu << (32 - prefix);
  const std::uint32_t a = word(d.source, 3), b = word(to, 3);
  return (a & mask) == (b & mask) ? std::countl_zero(a ^ b) : 0;
}

int by(bool a, bool b) noexcept {
  return a == b ? 0 : a ? -1 : 1;
}

net::Address to_address(const IpAddress& address) noexcept {
  return address.family == AF_INET ? net::Address::from_ipv4(address.as_ipv4(), 0)
                                   : net::Address::from_ipv6(address.bytes, 0, address.scope);
}

// `fd` is a socket of `family`, used for one destination after the other.
Sources::Source ask_kernel(net::OwnedFd& fd, int& family, const net::Address& to) {
  // A socket of IPv6 serves for IPv4 no more than for as long as nobody forbids it.
  if (family != to.family()) {
    fd.reset(::socket(to.family(), SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    family = to.family();
  } else if (fd) {
    sockaddr none{};
    none.sa_family = AF_UNSPEC;
    (void)::connect(fd.number(), &none, sizeof none);
  }
  net::Address from;
  socklen_t size = net::Address::kMostSize;
  if (!fd || ::connect(fd.number(), to.data(), to.size()) != 0 ||
      ::getsockname(fd.number(), from.fill(), &size) != 0)
    return {};
  from.filled(size);
  if (from.is_ipv4()) {
    const auto* ip = reinterpret_cast<const sockaddr_in*>(from.data());
    return {true, mapped(IpAddress::ipv4(ip->sin_addr)).bytes};
  }
  return {true, reinterpret_cast<const sockaddr_in6*>(from.data())->sin6_addr};
}

}  // namespace

void find_sources(std::vector<Destination>& destinations, const LocalAddresses& local) {
  net::OwnedFd fd;
  int family = AF_UNSPEC;
  for (Destination& destination : destinations) {
    auto source = local.sources.find(destination.address);
    if (!source) {
      source = ask_kernel(fd, family, to_address(destination.address));
      local.sources.add(destination.address, *source);
    }
    destination.reachable = source->reachable;
    destination.source = source->ip;
    // On a machine without IPv6 glibc forgets what it has learned of the addresses.
    if (!source->reachable || !local.has_ipv6) continue;
    if (const LocalAddress* known = local.find(destination.source)) destination.local = *known;
  }
}

int compare(const Destination& a, const Destination& b, const GaiConf& conf) noexcept {
  const in6_addr a_to = as_ipv6(a.address), b_to = as_ipv6(b.address);
  const int a_scope = scope_of(a_to, a.address.family, conf),
            b_scope = scope_of(b_to, b.address.family, conf);
  // Rule 1: what can be reached.
  if (const int order = by(a.reachable, b.reachable); order != 0) return order;
  if (a.reachable) {
    // Rule 2: a source of the same scope.
    if (const int order = by(a_scope == scope_of(a.source, a.address.family, conf),
                             b_scope == scope_of(b.source, b.address.family, conf));
        order != 0)
      return order;
    // Rule 3: no deprecated source. Rule 4: a home address.
    if (const int order = by(!a.local.deprecated, !b.local.deprecated); order != 0) return order;
    if (const int order = by(a.local.home, b.local.home); order != 0) return order;
    // Rule 5: a source with the same label.
    if (const int order =
            by(conf.label(a_to) == conf.label(a.source), conf.label(b_to) == conf.label(b.source));
        order != 0)
      return order;
  }
  // Rule 6: the higher precedence.
  if (const int order = conf.precedence(b_to) - conf.precedence(a_to); order != 0) return order;
  // Rule 7: no tunnel.
  if (a.reachable && a.local.interface != b.local.interface)
    if (const int order = by(a.local.native, b.local.native); order != 0) return order;
  // Rule 8: the smaller scope.
  if (a_scope != b_scope) return a_scope - b_scope;
  // Rule 9: the longer prefix in common with the source.
  if (!a.reachable || a.address.family != b.address.family) return 0;
  if (a.address.family == AF_INET) return common_ipv4(b, b_to) - common_ipv4(a, a_to);
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t a_differs = word(a_to, i) ^ word(a.source, i);
    const std::uint32_t b_differs = word(b_to, i) ^ word(b.source, i);
    if (a_differs != 0 || b_differs != 0)
      return std::countl_zero(b_differs) - std::countl_zero(a_differs);
  }
  return 0;  // rule 10
}

void sort_addresses(std::vector<IpAddress>& addresses, const GaiConf& conf) {
  if (addresses.size() < 2) return;
  std::vector<Destination> destinations;
  destinations.reserve(addresses.size());
  for (const IpAddress& address : addresses)
    destinations.push_back({.address = address});
  find_sources(destinations, *local_addresses());
  // Rule 5's answers differ by which two are compared (only reachable ones have a source), but rule
  // 1 has parted those from the others, so this is an order.
  std::stable_sort(destinations.begin(), destinations.end(),
                   [&](const auto& a, const auto& b) { return compare(a, b, conf) < 0; });
  for (std::size_t i = 0; i < addresses.size(); ++i)
    addresses[i] = destinations[i].address;
}

}  // namespace runloom::dns
