#include "peer_limit.hpp"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace runloom::net {
namespace {

Address ip(const char* text) {
  return Address::from_ip(text, 80).value();
}

TEST(PeerLimit, CountsEachPeer) {
  PeerLimit limit(2, 64);
  PeerLimit::Ticket a, b, c, other;
  EXPECT_TRUE(limit.enter(ip("192.0.2.1"), a));
  EXPECT_TRUE(limit.enter(ip("192.0.2.1"), b));
  EXPECT_FALSE(limit.enter(ip("192.0.2.1"), c));
  EXPECT_TRUE(limit.enter(ip("192.0.2.2"), other));
  EXPECT_EQ(limit.peers(), 2u);
  a = {};
  EXPECT_TRUE(limit.enter(ip("192.0.2.1"), c));
  PeerLimit::Ticket moved = std::move(c);
  b = {};
  EXPECT_EQ(limit.peers(), 2u);
  moved = std::move(other);
  EXPECT_EQ(limit.peers(), 1u);
  moved = {};
  EXPECT_EQ(limit.peers(), 0u);
}

TEST(PeerLimit, APeerOfIPv6IsANetwork) {
  PeerLimit limit(1, 64);
  PeerLimit::Ticket a, b;
  EXPECT_TRUE(limit.enter(ip("2001:db8::1"), a));
  EXPECT_FALSE(limit.enter(ip("2001:db8::ffff:2"), b));
  EXPECT_TRUE(limit.enter(ip("2001:db8:0:1::1"), b));
  PeerLimit narrow(1, 128);
  PeerLimit::Ticket c, d;
  EXPECT_TRUE(narrow.enter(ip("2001:db8::1"), c));
  EXPECT_TRUE(narrow.enter(ip("2001:db8::2"), d));
}

TEST(PeerLimit, AMappedAddressIsTheIPv4Peer) {
  PeerLimit limit(1, 64);
  PeerLimit::Ticket a, b;
  EXPECT_TRUE(limit.enter(ip("192.0.2.1"), a));
  EXPECT_FALSE(limit.enter(ip("::ffff:192.0.2.1"), b));
}

TEST(PeerLimit, LetsOthersPass) {
  PeerLimit none(0, 64);
  PeerLimit limit(1, 64);
  PeerLimit::Ticket ticket;
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(none.enter(ip("192.0.2.1"), ticket));
    EXPECT_TRUE(limit.enter(Address::unix_unnamed(), ticket));
  }
  EXPECT_EQ(none.peers(), 0u);
}

TEST(PeerLimitRace, HoldsBetweenThreads) {
  PeerLimit limit(3, 64);
  std::atomic<int> inside{0};
  std::atomic<int> most{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 20'000; ++i) {
        PeerLimit::Ticket ticket;
        if (!limit.enter(ip("192.0.2.1"), ticket)) continue;
        const int now = ++inside;
        int seen = most.load();
        while (now > seen && !most.compare_exchange_weak(seen, now)) {
        }
        --inside;
      }
    });
  for (auto& thread : threads)
    thread.join();
  EXPECT_LE(most, 3);
  EXPECT_EQ(limit.peers(), 0u);
}

}  // namespace
}  // namespace runloom::net
