#include "servers.hpp"

#include <gtest/gtest.h>

namespace runloom::dns {
namespace {

using namespace std::chrono_literals;
using Addresses = std::vector<net::Address>;

TEST(DnsServers, ASilentOneIsAskedLastForAWhile) {
  const auto a = net::Address::loopback_ipv4(1), b = net::Address::loopback_ipv4(2),
             c = net::Address::loopback_ipv4(3);
  const Addresses all{a, b, c};
  Servers servers(10ns);
  const auto first = servers.order(all, 0);
  EXPECT_EQ(first.servers, all);
  EXPECT_TRUE(servers.holds(first.version, 1'000'000));
  servers.silent(a, 0);
  EXPECT_FALSE(servers.holds(first.version, 0));
  const auto second = servers.order(all, 0);
  EXPECT_EQ(second.servers, (Addresses{b, c, a}));
  EXPECT_EQ(servers.dead(0), Addresses{a});
  EXPECT_TRUE(servers.holds(second.version, 9));
  EXPECT_FALSE(servers.holds(second.version, 10)) << "its time is over";
  EXPECT_EQ(servers.order(all, 10).servers, all);
  EXPECT_EQ(servers.dead(10), Addresses{});
}

TEST(DnsServers, AnAnswerBringsItBack) {
  const auto a = net::Address::loopback_ipv4(1), b = net::Address::loopback_ipv4(2);
  Servers servers(1h);
  servers.answered(a);  // nothing to do
  servers.silent(a, 0);
  servers.silent(b, 0);
  EXPECT_EQ(servers.order({a, b}, 1).servers, (Addresses{a, b})) << "none is better";
  servers.answered(b);
  EXPECT_EQ(servers.order({a, b}, 1).servers, (Addresses{b, a}));
}

}  // namespace
}  // namespace runloom::dns
