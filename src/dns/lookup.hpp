// Lookup of a name's addresses in the sources that nsswitch.conf names, as glibc's getaddrinfo does
// it, and of an address's name.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "hosts_file.hpp"
#include "impl.hpp"
#include "runloom/sched/deadline.hpp"
#include "runloom/sched/result.hpp"

namespace runloom::dns {

struct Found {
  std::vector<IpAddress> addresses;
  std::string canonical;
};

// Who can do with the addresses of one family, when the other's answer has not come `delay` later.
struct EarlyFound {
  std::chrono::nanoseconds delay{0};
  std::function<void(Found)> tell;  // at most once, on the calling fiber; must not park
};

struct NameLookup {
  std::string_view name;
  int family = AF_UNSPEC;
  int flags = 0;  // AI_V4MAPPED, AI_ALL
  const EarlyFound* early = nullptr;
};

// Fails with a DnsErrc, or the caller's own end. Parks.
Result<Found> lookup_name(Resolver::Impl& impl, const NameLookup& lookup, const Config& config,
                          Deadline deadline);
// The name of an address; not_found.
Result<std::string> lookup_address(Resolver::Impl& impl, const IpAddress& address,
                                   const Config& config, Deadline deadline);

// 1.0.0.127.in-addr.arpa, and so on.
std::string reverse_name(const IpAddress& address);
// A mapped IPv4 address.
IpAddress mapped(const IpAddress& ipv4) noexcept;

}  // namespace runloom::dns
