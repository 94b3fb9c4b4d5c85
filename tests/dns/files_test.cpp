// The files that say how names are resolved, each parser by itself.
#include <arpa/inet.h>
#include <gtest/gtest.h>

#include "gai_conf.hpp"
#include "hosts_file.hpp"
#include "nsswitch.hpp"
#include "numeric.hpp"
#include "resolv_conf.hpp"
#include "services.hpp"

namespace runloom::dns {
namespace {

using Texts = std::vector<std::string>;

Texts texts(const std::vector<net::Address>& addresses) {
  Texts out;
  for (const auto& address : addresses)
    out.push_back(address.to_string());
  return out;
}

TEST(DnsResolvConf, IsReadAsGlibcDoes) {
  auto conf = parse_resolv_conf(
      "# comment\n; comment\n"
      "nameserver 192.0.2.1\nnameserver\t2001:db8::1 trailing\n nameserver 192.0.2.9\n"
      "nameserver fe80::1%lo\nnameserver 192.0.2.4\nnameserver junk\n"
      "domain old.test\nsearch  a.test\tb.test \n"
      "options ndots:3 timeout:7 attempts:4 rotate use-vc edns0 unknown trust-ad no-aaaa\n");
  EXPECT_EQ(texts(conf.servers), (Texts{"192.0.2.1:53", "[2001:db8::1]:53", "[fe80::1%lo]:53"}));
  EXPECT_EQ(conf.search, (Texts{"a.test", "b.test"}));
  EXPECT_EQ(conf.ndots, 3);
  EXPECT_EQ(conf.timeout.count(), 7);
  EXPECT_EQ(conf.attempts, 4);
  EXPECT_TRUE(conf.rotate && conf.use_tcp && conf.edns && conf.trust_ad && conf.no_aaaa);
}

TEST(DnsResolvConf, ValuesAreCapped) {
  const auto conf = parse_resolv_conf("options ndots:99 timeout:99 attempts:99\n");
  EXPECT_EQ(conf.ndots, 15);
  EXPECT_EQ(conf.timeout.count(), 30);
  EXPECT_EQ(conf.attempts, 5);
  EXPECT_EQ(parse_resolv_conf("options timeout:0 attempts:-1\n").timeout.count(), 1);
}

TEST(DnsResolvConf, TheLastOfDomainAndSearchCounts) {
  EXPECT_EQ(parse_resolv_conf("search a b\ndomain c\n").search, Texts{"c"});
  EXPECT_EQ(parse_resolv_conf("domain c\nsearch a b\n").search, (Texts{"a", "b"}));
  EXPECT_EQ(parse_resolv_conf("search a b\nsearch\n").search, (Texts{"a", "b"}));
}

TEST(DnsResolvConf, WhatIsMissingIsFilledIn) {
  auto conf = parse_resolv_conf("");
  conf.finish(nullptr, nullptr, "host.home.test");
  EXPECT_EQ(texts(conf.servers), Texts{"127.0.0.1:53"});
  EXPECT_EQ(conf.search, Texts{"home.test"});
  auto other = parse_resolv_conf("search x.test\n");
  other.finish("ndots:4", "l1.test l2.test", "host.home.test");
  EXPECT_EQ(other.search, (Texts{"l1.test", "l2.test"}));
  EXPECT_EQ(other.ndots, 4);
}

TEST(DnsHostsFile, NamesAndAliasesAreFound) {
  const auto file = HostsFile::parse(
      "192.0.2.1 One one.test # not.this\n\n#192.0.2.2 two\njunk three\n192.0.2.4\n"
      "2001:db8::1 one\n192.0.2.5 one");
  const auto both = file.find("ONE", AF_UNSPEC, true);
  EXPECT_EQ(both.addresses.size(), 3u);
  EXPECT_EQ(both.canonical, "One");
  EXPECT_EQ(file.find("one", AF_UNSPEC, false).addresses.size(), 1u);
  EXPECT_EQ(file.find("one", AF_INET, true).addresses.size(), 2u);
  EXPECT_EQ(file.find("one", AF_INET6, true).addresses.size(), 1u);
  EXPECT_EQ(file.find("one.test", AF_INET6, true).addresses.size(), 0u);
  for (const char* name : {"two", "three", "not.this", ""})
    EXPECT_TRUE(file.find(name, AF_UNSPEC, true).addresses.empty()) << name;
  EXPECT_EQ(file.find(IpAddress::ipv4(*parse_ipv4("192.0.2.5"))), "one");
  EXPECT_EQ(file.find(IpAddress::ipv4(*parse_ipv4("192.0.2.6"))), "");
}

TEST(DnsHostsFile, Ipv6LinesCountForIpv4WhereGlibcLetsThem) {
  const auto file = HostsFile::parse("::1 six\n::ffff:192.0.2.1 mapped\n2001:db8::1 six\n");
  const auto six = file.find("six", AF_INET, true);
  ASSERT_EQ(six.addresses.size(), 1u);
  EXPECT_EQ(six.addresses[0].as_ipv4().s_addr, htonl(INADDR_LOOPBACK));
  ASSERT_EQ(file.find("mapped", AF_INET, true).addresses.size(), 1u);
}

TEST(DnsServices, PortsHaveNamesAndBack) {
  const auto services =
      Services::parse("http 80/tcp www # web\nntp 123/udp\nbad 99999/tcp\nworse x/tcp\nnone\n");
  EXPECT_EQ(services.port("http", "tcp"), 80);
  EXPECT_EQ(services.port("www", "tcp"), 80);
  EXPECT_FALSE(services.port("http", "udp"));
  EXPECT_FALSE(services.port("HTTP", "tcp"));
  EXPECT_FALSE(services.port("bad", "tcp"));
  EXPECT_EQ(services.name(80, "tcp"), "http");
  EXPECT_EQ(services.name(80, "udp"), "");
}

TEST(DnsNsswitch, SourcesHaveActions) {
  const auto sources =
      parse_nsswitch("passwd: files\n hosts : files[SUCCESS=continue] dns [!UNAVAIL=return] x\n");
  ASSERT_EQ(sources.size(), 3u);
  EXPECT_EQ(sources[0].kind, Source::Kind::files);
  EXPECT_FALSE(sources[0].ends_with(Status::success));
  EXPECT_EQ(sources[1].kind, Source::Kind::dns);
  EXPECT_TRUE(sources[1].ends_with(Status::not_found));
  EXPECT_FALSE(sources[1].ends_with(Status::unavailable));
  EXPECT_EQ(sources[2].kind, Source::Kind::other);
  EXPECT_EQ(sources[2].name, "x");
  for (const char* text : {"", "hosts:\n", "hosts: # files\n"})
    EXPECT_EQ(parse_nsswitch(text).size(), 2u) << text;
  parse_nsswitch("hosts: [ files [x\nhosts: files [");  // ends
  EXPECT_TRUE(parse_host_conf_multi("order hosts,bind\nmulti on\n"));
  EXPECT_FALSE(parse_host_conf_multi("# multi on\n"));
}

TEST(DnsGaiConf, TablesReplaceTheDefaults) {
  const auto defaults = parse_gai_conf("");
  EXPECT_EQ(defaults.precedence(in6addr_loopback), 50);
  EXPECT_EQ(defaults.precedence(*parse_ipv6("::ffff:192.0.2.1")), 10);
  EXPECT_EQ(defaults.label(*parse_ipv6("2001:db8::1")), 1);
  EXPECT_EQ(defaults.label(*parse_ipv6("2002::1")), 2);
  EXPECT_EQ(defaults.ipv4_scope({htonl(0x7f000001)}), 2);
  EXPECT_EQ(defaults.ipv4_scope({htonl(0xc0000201)}), 14);
  const auto conf = parse_gai_conf(
      "precedence ::ffff:0:0/96 100\nprecedence ::/0 40\nlabel junk/3 1\n"
      "scopev4 ::ffff:10.0.0.0/104 5\n");
  EXPECT_EQ(conf.precedence(*parse_ipv6("::ffff:192.0.2.1")), 100);
  EXPECT_EQ(conf.precedence(in6addr_loopback), 40);
  EXPECT_EQ(conf.label(in6addr_loopback), 0);
  EXPECT_EQ(conf.ipv4_scope({htonl(0x0a000001)}), 5);
}

// D12: the forms that inet_aton(3) knows, and nothing else.
TEST(DnsNumeric, D12LegacyForms) {
  for (const char* text :
       {"1.2.3.4", "127.1", "0x7f.1", "0177.0.0.1", "1.65535", "4294967295", "0", "0x0",
        "1.2.65535", "0xffffffff", "00", "1.2.3", "255.255.255.255", "0X7f000001"}) {
    in_addr expected;
    ASSERT_EQ(::inet_aton(text, &expected), 1) << text;
    const auto ip = parse_ipv4_legacy(text);
    ASSERT_TRUE(ip) << text;
    EXPECT_EQ(ip->s_addr, expected.s_addr) << text;
  }
  for (const char* text : {"", "a", "1.2.3.4.5", "256.1.1.1", "1.2.3.256", "1.", "1..2", " 1", "1 ",
                           "08", "0x", "0xg", "4294967296", "1.16777216", "-1", "+1", "1.2.3.4a"})
    EXPECT_FALSE(parse_ipv4_legacy(text)) << text;
}

TEST(DnsNumeric, Scopes) {
  const auto link = *parse_ipv6("fe80::1");
  EXPECT_EQ(parse_scope(link, "lo"), 1u);
  EXPECT_EQ(parse_scope(link, "7"), 7u);
  EXPECT_FALSE(parse_scope(link, "no-such-if"));
  EXPECT_FALSE(parse_scope(link, ""));
  EXPECT_FALSE(parse_scope(link, "4294967296"));
  EXPECT_FALSE(parse_scope(in6addr_loopback, "lo"));
  EXPECT_EQ(parse_scope(in6addr_loopback, "7"), 7u);
  EXPECT_FALSE(parse_ipv6("fe80::1%lo"));
  EXPECT_FALSE(parse_ipv6(std::string("::1\0", 4)));
}

}  // namespace
}  // namespace runloom::dns
