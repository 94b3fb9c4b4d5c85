#include "runloom/net/network.hpp"

#include <gtest/gtest.h>

namespace runloom::net {
namespace {

Address ip(const char* text) {
  return Address::from_ip(text, 80).value();
}

TEST(Network, ContainsByPrefix) {
  const auto ten = Network::parse("10.0.0.0/8").value();
  EXPECT_TRUE(ten.contains(ip("10.255.1.2")));
  EXPECT_FALSE(ten.contains(ip("11.0.0.0")));
  const auto odd = Network::parse("192.0.2.128/25").value();
  EXPECT_TRUE(odd.contains(ip("192.0.2.128")));
  EXPECT_FALSE(odd.contains(ip("192.0.2.127")));
  const auto six = Network::parse("2001:db8::/33").value();
  EXPECT_TRUE(six.contains(ip("2001:db8:7fff::1")));
  EXPECT_FALSE(six.contains(ip("2001:db8:8000::1")));
  EXPECT_TRUE(Network::parse("0.0.0.0/0").value().contains(ip("203.0.113.9")));
  EXPECT_FALSE(Network::parse("0.0.0.0/0").value().contains(ip("::1")));
  EXPECT_TRUE(Network::parse("::/0").value().contains(ip("::1")));
}

TEST(Network, AnAddressIsANetworkOfItsOwn) {
  EXPECT_TRUE(Network::parse("192.0.2.7").value().contains(ip("192.0.2.7")));
  EXPECT_FALSE(Network::parse("192.0.2.7").value().contains(ip("192.0.2.6")));
  EXPECT_TRUE(Network::parse("::1").value().contains(ip("::1")));
}

TEST(Network, AMappedAddressIsIPv4) {
  EXPECT_TRUE(Network::parse("10.0.0.0/8").value().contains(ip("::ffff:10.1.2.3")));
  EXPECT_FALSE(Network::parse("::/0").value().contains(ip("::ffff:10.1.2.3")));
}

TEST(Network, UnixIsEveryUnixSocket) {
  const auto local = Network::parse("unix:").value();
  EXPECT_TRUE(local.contains(Address::unix_unnamed()));
  EXPECT_FALSE(local.contains(ip("127.0.0.1")));
  EXPECT_FALSE(Network::parse("0.0.0.0/0").value().contains(Address::unix_unnamed()));
  EXPECT_FALSE(local.contains(Address()));
}

TEST(Network, RefusesWhatIsNone) {
  for (const char* text :
       {"", "/", "10.0.0.0/", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/08", "10.0.0.0/+8",
        "10.0.0.0/8 ", "10.0.0.1/8", "::1/64", "2001:db8::/129", "example.org/8", "fe80::1%lo/64",
        "::ffff:10.0.0.0/104", "unix:/run/x", "10.0.0.0/8/8"}) {
    std::string problem;
    const auto network = Network::parse(text, &problem);
    EXPECT_EQ(network.error(), std::errc::invalid_argument) << text;
    EXPECT_NE(problem.find('"' + std::string(text) + '"'), std::string::npos) << problem;
  }
}

TEST(Network, ReadsBackWhatItSays) {
  for (const char* text : {"10.0.0.0/8", "192.0.2.7/32", "2001:db8::/33", "::/0", "unix:"})
    EXPECT_EQ(Network::parse(text).value().to_string(), text);
  EXPECT_EQ(Network::parse("::1").value(), Network::parse("::1/128").value());
}

}  // namespace
}  // namespace runloom::net
