#include "runloom/net/address.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/ipv6.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string>
#include <unordered_set>

namespace runloom::net {
namespace {

using namespace std::string_literals;

std::string round_trip(std::string_view text) {
  std::string problem;
  const auto address = Address::parse(text, &problem);
  return address ? address->to_string() : "refused: " + problem;
}

TEST(Address, ParsesWhatItPrints) {
  for (const char* text : {"127.0.0.1:80", "0.0.0.0:0", "255.255.255.255:65535", "[::1]:80",
                           "[::]:0", "[2001:db8::7]:443", "[::ffff:10.0.0.1]:1", "[::1%lo]:80",
                           "[fe80::1%lo]:80", "unix:/run/x.sock", "unix:relative", "unix:@name"})
    EXPECT_EQ(round_trip(text), text);
  // The canonical form of an IPv6 address.
  EXPECT_EQ(round_trip("[2001:0DB8:0:0:0:0:0:7]:443"), "[2001:db8::7]:443");
  EXPECT_EQ(round_trip("[fe80::1%4000000000]:80"), "[fe80::1%4000000000]:80");
}

TEST(Address, PartsOfAnIpv4Address) {
  const Address a = *Address::parse("127.0.0.1:8080");
  EXPECT_EQ(a.family(), AF_INET);
  EXPECT_EQ(a.size(), sizeof(sockaddr_in));
  EXPECT_EQ(a.ip(), "127.0.0.1");
  EXPECT_EQ(a.port(), 8080);
  EXPECT_EQ(a.scope_id(), 0u);
  EXPECT_TRUE(a.is_ip() && a.is_ipv4() && a.is_loopback());
  EXPECT_FALSE(a.is_ipv6() || a.is_unix() || a.is_any() || a.is_link_local());
  sockaddr_in raw{};
  std::memcpy(&raw, a.data(), a.size());
  EXPECT_EQ(ntohs(raw.sin_port), 8080);
  EXPECT_EQ(ntohl(raw.sin_addr.s_addr), 0x7f000001u);
}

TEST(Address, T40ScopeIsKeptByNameAndByNumber) {
  const unsigned lo = ::if_nametoindex("lo");
  ASSERT_NE(lo, 0u);
  const Address by_name = *Address::parse("[fe80::1%lo]:80");
  const Address by_number = *Address::parse("[fe80::1%" + std::to_string(lo) + "]:80");
  EXPECT_EQ(by_name.scope_id(), lo);
  EXPECT_EQ(by_name, by_number);
  EXPECT_EQ(by_number.to_string(), "[fe80::1%lo]:80");
  EXPECT_EQ(by_name.ip(), "fe80::1");
  EXPECT_TRUE(by_name.is_link_local());
  EXPECT_EQ(by_name.with_port(81).scope_id(), lo);
  EXPECT_EQ(*Address::from_ip("fe80::1%lo", 80), by_name);
  EXPECT_EQ(*Address::from_sockaddr(by_name.data(), by_name.size()), by_name);
  EXPECT_FALSE(by_name == *Address::parse("[fe80::1]:80"));
  // From a 4-tuple, as Python has it.
  in6_addr ip{};
  ip.s6_addr[0] = 0xfe;
  ip.s6_addr[1] = 0x80;
  ip.s6_addr[15] = 1;
  const Address tuple = Address::from_ipv6(ip, 80, lo, htonl(7));
  EXPECT_EQ(tuple.flow_info(), htonl(7));
  EXPECT_EQ(Address::from_ipv6(ip, 80, lo), by_name);
}

// In a network namespace with a link-local address on lo: bind by the interface's name, connect by
// what the kernel reports. Returns what failed, empty for nothing, "skip" without namespaces.
std::string connect_through_scope() {
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return "skip";
  const int control = ::socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (control < 0) return "skip";
  ifreq up{};
  std::strcpy(up.ifr_name, "lo");
  up.ifr_flags = IFF_UP;
  if (::ioctl(control, SIOCSIFFLAGS, &up) != 0) return "skip";
  in6_ifreq request{};
  request.ifr6_addr =
      reinterpret_cast<const sockaddr_in6*>(Address::from_ip("fe80::7", 0)->data())->sin6_addr;
  request.ifr6_prefixlen = 64;
  request.ifr6_ifindex = static_cast<int>(::if_nametoindex("lo"));
  if (::ioctl(control, SIOCSIFADDR, &request) != 0) return "skip";

  const int listener = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const Address wanted = *Address::parse("[fe80::7%lo]:0");
  // The kernel makes a new address usable a little later, from a work queue.
  int bound_result = -1;
  for (int i = 0; i < 5000 && bound_result != 0; ++i) {
    if (i > 0) ::usleep(1000);
    bound_result = ::bind(listener, wanted.data(), wanted.size());
    if (bound_result != 0 && errno != EADDRNOTAVAIL) break;
  }
  if (bound_result != 0) return "bind: "s + strerror(errno);
  if (::listen(listener, 1) != 0) return "listen: "s + strerror(errno);
  sockaddr_storage raw{};
  socklen_t size = sizeof raw;
  if (::getsockname(listener, reinterpret_cast<sockaddr*>(&raw), &size) != 0) return "getsockname";
  const Address bound = *Address::from_sockaddr(reinterpret_cast<sockaddr*>(&raw), size);
  if (bound != wanted.with_port(bound.port())) return "bound to " + bound.to_string();

  const Address again = *Address::parse(bound.to_string());
  const int client = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (::connect(client, again.data(), again.size()) != 0) return "connect: "s + strerror(errno);
  return {};
}

TEST(Address, T40ScopeSurvivesTheKernel) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const std::string failure = connect_through_scope();
    const ssize_t written = ::write(ends[1], failure.data(), failure.size());
    ::_exit(written == static_cast<ssize_t>(failure.size()) ? 0 : 1);
  }
  ::close(ends[1]);
  std::array<char, 256> text{};
  const ssize_t got = ::read(ends[0], text.data(), text.size() - 1);
  ::close(ends[0]);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  ASSERT_GE(got, 0);
  if (std::string_view(text.data()) == "skip") GTEST_SKIP() << "no network namespace to be had";
  EXPECT_STREQ(text.data(), "");
}

struct Refusal {
  const char* text;
  AddressErrc error;
  const char* named;  // what the problem must quote
};

TEST(Address, RefusesEverythingElseAndNamesIt) {
  const Refusal refusals[] = {
      {"", AddressErrc::no_port, ""},
      {"127.0.0.1", AddressErrc::no_port, "127.0.0.1"},
      {"127.0.0.1:", AddressErrc::no_port, "127.0.0.1:"},
      {"[::1]", AddressErrc::no_port, "[::1]"},
      {"[::1]:", AddressErrc::no_port, "[::1]:"},
      {":80", AddressErrc::bad_ip, ":80"},
      {"localhost:80", AddressErrc::bad_ip, "localhost"},
      {"127.1:80", AddressErrc::bad_ip, "127.1"},
      {"0x7f.0.0.1:80", AddressErrc::bad_ip, "0x7f.0.0.1"},
      {"127.0.0.01:80", AddressErrc::bad_ip, "127.0.0.01"},
      {"127.0.0.256:80", AddressErrc::bad_ip, "127.0.0.256"},
      {" 127.0.0.1:80", AddressErrc::bad_ip, " 127.0.0.1"},
      {"[12345::1]:80", AddressErrc::bad_ip, "12345::1"},
      {"[::1", AddressErrc::bad_brackets, "[::1"},
      {"::1:80", AddressErrc::bad_brackets, "::1:80"},
      {"[127.0.0.1]:80", AddressErrc::bad_brackets, "127.0.0.1"},
      {"[::1]80", AddressErrc::bad_brackets, "80"},
      {"127.0.0.1:+80", AddressErrc::bad_port, "+80"},
      {"127.0.0.1:-1", AddressErrc::bad_port, "-1"},
      {"127.0.0.1: 80", AddressErrc::bad_port, " 80"},
      {"127.0.0.1:80 ", AddressErrc::bad_port, "80 "},
      {"127.0.0.1:65536", AddressErrc::bad_port, "65536"},
      {"127.0.0.1:http", AddressErrc::bad_port, "http"},
      {"127.0.0.1%lo:80", AddressErrc::bad_scope, "lo"},
      {"[fe80::1%]:80", AddressErrc::bad_scope, ""},
      {"[fe80::1%no-such-if]:80", AddressErrc::bad_scope, "no-such-if"},
      {"[fe80::1%4294967296]:80", AddressErrc::bad_scope, "4294967296"},
      {"[fe80::1%-1]:80", AddressErrc::bad_scope, "-1"},
      {"unix:", AddressErrc::bad_path, ""},
      {"unix:@", AddressErrc::bad_path, ""},
  };
  for (const auto& refusal : refusals) {
    std::string problem;
    const auto address = Address::parse(refusal.text, &problem);
    ASSERT_FALSE(address) << refusal.text << " was taken for " << address->to_string();
    EXPECT_EQ(address.error(), refusal.error) << refusal.text << ": " << address.error().message();
    EXPECT_EQ(address.error(), std::errc::invalid_argument);
    EXPECT_NE(problem.find('"' + std::string(refusal.named) + '"'), std::string::npos) << problem;
    EXPECT_NE(problem.find(address.error().message()), std::string::npos) << problem;
  }
}

TEST(Address, AZeroByteDoesNotHideTheRest) {
  EXPECT_FALSE(Address::parse("127.0.0.1\0evil:80"s));
  EXPECT_FALSE(Address::from_ip("127.0.0.1\0"s, 80));
  EXPECT_FALSE(Address::from_ip("fe80::1%lo\0x"s, 80));
  EXPECT_FALSE(Address::parse("127.0.0.1:80\0"s));
  EXPECT_FALSE(Address::from_unix_path("/run/x\0y"s));
  std::string problem;
  EXPECT_FALSE(Address::from_ip("1\n2"s, 80, &problem));
  EXPECT_EQ(problem.find('\n'), std::string::npos) << problem;
}

TEST(Address, FromIpTakesNoPortAndNoBrackets) {
  EXPECT_EQ(Address::from_ip("::1", 80)->to_string(), "[::1]:80");
  EXPECT_EQ(Address::from_ip("127.0.0.1:80", 80).error(), AddressErrc::bad_ip);
  EXPECT_EQ(Address::from_ip("[::1]", 80).error(), AddressErrc::bad_ip);
  EXPECT_EQ(Address::from_ip("", 80).error(), AddressErrc::bad_ip);
  EXPECT_EQ(Address::from_ip(std::string(10'000, '1'), 80).error(), AddressErrc::bad_ip);
}

TEST(Address, WellKnownAddresses) {
  EXPECT_EQ(Address::any_ipv4(5).to_string(), "0.0.0.0:5");
  EXPECT_EQ(Address::any_ipv6(5).to_string(), "[::]:5");
  EXPECT_EQ(Address::loopback_ipv4(5).to_string(), "127.0.0.1:5");
  EXPECT_EQ(Address::loopback_ipv6(5).to_string(), "[::1]:5");
  EXPECT_TRUE(Address::any_ipv4().is_any() && Address::any_ipv6().is_any());
  EXPECT_TRUE(Address::loopback_ipv4().is_loopback() && Address::loopback_ipv6().is_loopback());
  EXPECT_TRUE(Address::from_ip("::ffff:127.0.0.1", 0)->is_loopback());
  EXPECT_FALSE(Address::from_ip("128.0.0.1", 0)->is_loopback());
  EXPECT_TRUE(Address::from_ip("ff02::1", 0)->is_link_local());
}

TEST(Address, EmptyAddress) {
  const Address none;
  EXPECT_EQ(none.family(), AF_UNSPEC);
  EXPECT_EQ(none.size(), 0u);
  EXPECT_EQ(none.to_string(), "unspecified");
  EXPECT_EQ(none.port(), 0);
  EXPECT_EQ(none.with_port(5), none);
  EXPECT_FALSE(none.is_any() || none.is_ip());
  EXPECT_EQ(none, Address());
  EXPECT_FALSE(none == Address::any_ipv4());
}

TEST(Address, UnixNames) {
  const std::string longest(107, 'p');
  EXPECT_EQ(Address::from_unix_path(longest)->unix_name(), longest);
  std::string problem;
  const auto too_long = Address::from_unix_path(longest + 'p', &problem);
  EXPECT_EQ(too_long.error(), AddressErrc::long_path);
  EXPECT_EQ(too_long.error(), std::errc::filename_too_long);
  EXPECT_NE(problem.find(longest), std::string::npos);
  EXPECT_EQ(Address::from_unix_abstract(longest)->size(), sizeof(sockaddr_un));
  EXPECT_EQ(Address::from_unix_abstract(longest + 'p').error(), AddressErrc::long_path);
  EXPECT_EQ(Address::from_unix_path("a\0b"s).error(), AddressErrc::bad_path);
  EXPECT_TRUE(Address::unix_unnamed().is_unix());
  EXPECT_TRUE(Address::unix_unnamed().unix_name().empty());
  EXPECT_EQ(Address::unix_unnamed().size(), sizeof(sa_family_t));
  EXPECT_EQ(Address::from_unix_abstract("a\0b"s)->unix_name(), "\0a\0b"s);
  EXPECT_EQ(Address::from_unix_abstract("a\0b"s)->to_string(), "unix:@a\\x00b");
  EXPECT_FALSE(*Address::from_unix_path("x") == *Address::from_unix_abstract("x"));
  // Abstract names are as long as their size says, so a trailing zero byte counts.
  EXPECT_FALSE(*Address::from_unix_abstract("x") == *Address::from_unix_abstract("x\0"s));
}

TEST(Address, UnixNamesFromTheKernel) {
  sockaddr_un raw{};
  raw.sun_family = AF_UNIX;
  const auto* any = reinterpret_cast<const sockaddr*>(&raw);
  const Address unnamed = *Address::from_sockaddr(any, sizeof raw.sun_family);
  EXPECT_EQ(unnamed.to_string(), "unix:");
  EXPECT_EQ(unnamed.unix_name(), "");
  // The same path, reported with its exact size, and with the whole structure's.
  std::strcpy(raw.sun_path, "/run/x");
  const Address whole = *Address::from_sockaddr(any, sizeof raw);
  EXPECT_EQ(whole, *Address::from_unix_path("/run/x"));
  EXPECT_EQ(whole.size(), Address::from_unix_path("/run/x")->size());
  // 108 bytes without a terminating zero: the kernel takes and reports such names.
  std::memset(raw.sun_path, 'q', sizeof raw.sun_path);
  EXPECT_EQ(Address::from_sockaddr(any, sizeof raw)->unix_name(), std::string(108, 'q'));
}

TEST(Address, FromSockaddrChecksTheSize) {
  const Address v4 = Address::loopback_ipv4(1);
  const Address v6 = Address::loopback_ipv6(1);
  EXPECT_EQ(Address::from_sockaddr(v4.data(), v4.size() - 1).error().value(), EINVAL);
  EXPECT_EQ(Address::from_sockaddr(v6.data(), v6.size() - 1).error().value(), EINVAL);
  EXPECT_EQ(Address::from_sockaddr(v4.data(), 1).error().value(), EINVAL);
  EXPECT_EQ(Address::from_sockaddr(nullptr, 0).error().value(), EINVAL);
  sockaddr_storage other{};
  other.ss_family = AF_NETLINK;
  EXPECT_EQ(
      Address::from_sockaddr(reinterpret_cast<sockaddr*>(&other), sizeof other).error().value(),
      EAFNOSUPPORT);
  // What lies in a sockaddr_in's padding does not count.
  sockaddr_in padded{};
  std::memcpy(&padded, v4.data(), v4.size());
  std::memset(padded.sin_zero, 0xff, sizeof padded.sin_zero);
  EXPECT_EQ(*Address::from_sockaddr(reinterpret_cast<sockaddr*>(&padded), sizeof padded), v4);
}

TEST(Address, HashFollowsEquality) {
  std::unordered_set<Address> set;
  for (const char* text :
       {"127.0.0.1:80", "127.0.0.1:81", "127.0.0.2:80", "[::1]:80", "[fe80::1%1]:80",
        "[fe80::1%2]:80", "[fe80::1]:80", "unix:a", "unix:@a", "unix:b"})
    EXPECT_TRUE(set.insert(*Address::parse(text)).second) << text;
  EXPECT_FALSE(set.insert(Address::loopback_ipv4(80)).second);
  EXPECT_FALSE(set.insert(*Address::from_unix_path("a")).second);
  EXPECT_TRUE(set.contains(Address::loopback_ipv6(80)));
}

}  // namespace
}  // namespace runloom::net
