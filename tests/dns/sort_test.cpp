#include "sort.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "lookup.hpp"
#include "numeric.hpp"

namespace runloom::dns {
namespace {

IpAddress ip(const char* text) {
  if (const auto v4 = parse_ipv4(text)) return IpAddress::ipv4(*v4);
  return IpAddress::ipv6(*parse_ipv6(text));
}

// A destination that is reached from `source`, an address of interface 1 unless said otherwise.
Destination to(const char* address, const char* source = nullptr, LocalAddress local = {}) {
  Destination out;
  out.address = ip(address);
  if (!source) return out;
  out.reachable = true;
  const IpAddress from = ip(source);
  out.source = from.family == AF_INET ? mapped(from).bytes : from.bytes;
  if (local.interface == 0) local.interface = 1;
  out.local = local;
  return out;
}

const GaiConf kDefaults = parse_gai_conf("");

// a before b, whichever is compared with which.
void expect_before(const Destination& a, const Destination& b) {
  EXPECT_LT(compare(a, b, kDefaults), 0);
  EXPECT_GT(compare(b, a, kDefaults), 0);
}

TEST(DnsSort, RulesInTheirOrder) {
  // 1: reachable.
  expect_before(to("192.0.2.1", "192.0.2.9"), to("2001:db8::1"));
  // 2: scopes that match.
  expect_before(to("192.0.2.1", "198.51.100.7"), to("2001:db8::1", "fe80::1"));
  // 3: no deprecated source.
  expect_before(to("2001:db8::1", "2001:db8::9"),
                to("2001:db8::1", "2001:db8::8", {.deprecated = true}));
  // 4: a home address.
  expect_before(to("2001:db8::1", "2001:db8::8", {.home = true}), to("2001:db8::1", "2001:db8::9"));
  // 5: labels that match.
  expect_before(to("2002:c633:6401::1", "2002:c633:6401::2"),
                to("2001:db8::1", "2002:c633:6401::2"));
  // 6: precedence: IPv6 before IPv4, native before 6to4.
  expect_before(to("2001:db8::1", "2001:db8::2"), to("192.0.2.1", "198.51.100.7"));
  expect_before(to("2001:db8::1", "2001:db8::2"), to("2002:c633:6401::1", "2002:c633:6401::2"));
  // 7: no tunnel.
  expect_before(to("2001:db8::1", "2001:db8::2"),
                to("2001:db8::1", "2001:db8::3", {.interface = 2, .native = false}));
  // 8: the smaller scope.
  expect_before(to("fe80::1", "fe80::2"), to("2001:db8::1", "2001:db8::2"));
  // 9: the longer prefix.
  expect_before(to("2001:db8:1::1", "2001:db8:1::2"), to("2001:db8:3ffe::1", "2001:db8:1::2"));
  expect_before(to("192.0.2.8", "192.0.2.9", {.prefix = 24}),
                to("198.51.100.1", "192.0.2.9", {.prefix = 24}));
  // 10: as they came.
  EXPECT_EQ(compare(to("198.51.100.1", "192.0.2.9", {.prefix = 24}),
                    to("203.0.113.1", "192.0.2.9", {.prefix = 24}), kDefaults),
            0);
  EXPECT_EQ(compare(to("2001:db8::1"), to("2001:db8::2"), kDefaults), 0);
}

TEST(DnsSort, TheLoopbackIsReached) {
  std::vector<Destination> destinations{to("127.0.0.1"), to("127.0.0.2")};
  LocalAddresses local(*local_addresses());
  local.has_ipv6 = true;  // else nothing is known of a source, as in glibc
  find_sources(destinations, local);
  for (const Destination& destination : destinations) {
    EXPECT_TRUE(destination.reachable);
    EXPECT_EQ(destination.local.prefix, 8u);
  }
}

TEST(DnsLocalAddresses, TheLoopbackIsKnown) {
  const auto local = local_addresses();
  const LocalAddress* loopback = local->find(mapped(ip("127.0.0.1")).bytes);
  ASSERT_NE(loopback, nullptr);
  EXPECT_EQ(loopback->prefix, 8u);
  EXPECT_TRUE(loopback->native);
  EXPECT_EQ(local->find(mapped(ip("203.0.113.77")).bytes), nullptr);
  EXPECT_EQ(local_addresses(), local) << "nothing has changed";
}

}  // namespace
}  // namespace runloom::dns
