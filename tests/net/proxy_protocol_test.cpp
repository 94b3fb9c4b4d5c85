#include "runloom/net/proxy_protocol.hpp"

#include <gtest/gtest.h>

#include "crc32c.hpp"
#include "runloom/net/buffered.hpp"
#include "runloom/net/unix_stream.hpp"
#include "support/net_test.hpp"
#include "support/unix_test.hpp"

namespace runloom::net {
namespace {

using namespace std::chrono_literals;
using namespace std::string_literals;

Address at(const char* text) {
  return Address::parse(text).value();
}

// What a parser makes of the text: in one piece, byte by byte, and cut at every place.
struct Parsed {
  ProxyHeader header{};
  std::string tlvs{};
  std::size_t taken = 0;
  bool done = false;
  std::error_code error{};
};
Parsed parse_pieces(std::string_view text, std::size_t first, std::size_t then) {
  ProxyParser parser;
  Parsed out;
  std::size_t size = first;
  while (!text.empty() && !parser.done()) {
    const auto piece = text.substr(0, size);
    const auto taken = parser.feed(bytes(piece));
    if (!taken) {
      out.error = taken.error();
      EXPECT_EQ(parser.feed(bytes("x")).error(), out.error);  // and ever again
      EXPECT_FALSE(parser.done());
      return out;
    }
    EXPECT_TRUE(*taken == piece.size() || parser.done());
    out.taken += *taken;
    text.remove_prefix(*taken);
    size = then;
  }
  out.done = parser.done();
  out.header = parser.header();
  out.tlvs = parser.tlvs();
  return out;
}
Parsed parse(std::string_view text) {
  Parsed whole = parse_pieces(text, text.size(), text.size());
  for (std::size_t cut = 1; cut < text.size(); ++cut) {
    const Parsed two = parse_pieces(text, cut, text.size());
    EXPECT_EQ(two.error, whole.error) << cut;
    EXPECT_EQ(two.taken, whole.error ? two.taken : whole.taken) << cut;
    EXPECT_EQ(two.header.source, whole.header.source) << cut;
    EXPECT_EQ(two.done, whole.done) << cut;
  }
  const Parsed single = parse_pieces(text, 1, 1);
  EXPECT_EQ(single.error, whole.error);
  EXPECT_EQ(single.taken, whole.error ? single.taken : whole.taken);
  EXPECT_EQ(single.tlvs, whole.tlvs);
  return whole;
}

// ---------------------------------------------------------------- version 1

TEST(ProxyProtocol, Version1) {
  const auto four = parse("PROXY TCP4 192.0.2.1 198.51.100.7 56324 443\r\nGET /");
  EXPECT_TRUE(four.done);
  EXPECT_EQ(four.taken, 45u);
  EXPECT_EQ(four.header.version, 1);
  EXPECT_TRUE(four.header.has_addresses);
  EXPECT_EQ(four.header.source, at("192.0.2.1:56324"));
  EXPECT_EQ(four.header.destination, at("198.51.100.7:443"));
  const auto six = parse("PROXY TCP6 2001:db8::1 ::1 0 65535\r\n");
  EXPECT_TRUE(six.done);
  EXPECT_EQ(six.header.source, at("[2001:db8::1]:0"));
  EXPECT_EQ(six.header.destination, at("[::1]:65535"));
  // The longest there is.
  const auto unknown = parse(
      "PROXY UNKNOWN ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff "
      "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n");
  EXPECT_TRUE(unknown.done);
  EXPECT_EQ(unknown.taken, ProxyParser::kMostLine);
  EXPECT_FALSE(unknown.header.has_addresses);
  EXPECT_TRUE(parse("PROXY UNKNOWN\r\n").done);
  EXPECT_FALSE(parse("PROXY UNKNOWN\r\n").header.local);
}

TEST(ProxyProtocol, Version1RefusesWhatIsNone) {
  for (const std::string_view line :
       {"PROXY TCP4 192.0.2.1 198.51.100.7 56324 443\n", "PROXY TCP4 192.0.2.1 198.51.100.7 1\r\n",
        "PROXY TCP4 192.0.2.1 198.51.100.7 1 2 3\r\n", "PROXY TCP4  192.0.2.1 198.51.100.7 1 2\r\n",
        "PROXY TCP4 192.0.2.1 198.51.100.7 1 2 \r\n", "PROXY TCP4 192.0.2.1 198.51.100.7 01 2\r\n",
        "PROXY TCP4 192.0.2.1 198.51.100.7 65536 2\r\n", "PROXY TCP4 192.0.2.1 ::1 1 2\r\n",
        "PROXY TCP6 192.0.2.1 198.51.100.7 1 2\r\n", "PROXY TCP6 fe80::1%lo ::1 1 2\r\n",
        "PROXY TCP4 192.0.2 198.51.100.7 1 2\r\n", "PROXY TCP4 192.0.2.1 198.51.100.7 -1 2\r\n",
        "PROXY TCP5 192.0.2.1 198.51.100.7 1 2\r\n", "PROXY tcp4 192.0.2.1 198.51.100.7 1 2\r\n",
        "PROXY \r\n", "PROXY\tTCP4\r\n", "PROXY TCP4 192.0.2.1 198.51.100.7 1 2\rx\n",
        "PROXY TCP4\r\n"}) {
    const auto parsed = parse(line);
    EXPECT_EQ(parsed.error, std::errc::protocol_error) << line;
  }
  EXPECT_EQ(parse("PROXY TCP4 " + std::string(200, '1')).error, ProxyErrc::bad_line);
  EXPECT_EQ(parse("PROXY UNKNOWN " + std::string(92, 'x') + "\r\n").error, ProxyErrc::bad_line);
  EXPECT_EQ(parse("POST / HTTP/1.0").error, ProxyErrc::no_header);
  EXPECT_EQ(parse("GET / HTTP/1.0").error, ProxyErrc::no_header);
  // Found out at the first byte that is wrong, before there are more.
  EXPECT_EQ(parse("G").error, ProxyErrc::no_header);
  EXPECT_EQ(parse("PRI").error, ProxyErrc::no_header);
}

// ---------------------------------------------------------------- version 2

const std::string kSignature("\r\n\r\n\0\r\nQUIT\n", 12);

std::string v2(int version_command, int family, std::string_view block) {
  std::string out = kSignature;
  out.push_back(static_cast<char>(version_command));
  out.push_back(static_cast<char>(family));
  out.push_back(static_cast<char>(block.size() >> 8));
  out.push_back(static_cast<char>(block.size()));
  return out.append(block);
}
const std::string kIPv4Block("\xc0\x00\x02\x01\xc6\x33\x64\x07\xdc\x04\x01\xbb", 12);

TEST(ProxyProtocol, Version2) {
  const auto four = parse(v2(0x21, 0x11, kIPv4Block) + "next");
  EXPECT_TRUE(four.done);
  EXPECT_EQ(four.taken, 28u);
  EXPECT_EQ(four.header.version, 2);
  EXPECT_EQ(four.header.source, at("192.0.2.1:56324"));
  EXPECT_EQ(four.header.destination, at("198.51.100.7:443"));
  EXPECT_EQ(four.tlvs, "");
  const auto six = parse(proxy_v2(at("[2001:db8::1]:5"), at("[::1]:443")));
  EXPECT_EQ(six.header.source, at("[2001:db8::1]:5"));
  const auto local =
      parse(proxy_v2(at("unix:/run/client"), Address::from_unix_abstract("a\0b"s).value()));
  EXPECT_EQ(local.header.source, at("unix:/run/client"));
  EXPECT_EQ(local.header.destination, Address::from_unix_abstract("a\0b"s).value());
  const auto unnamed = parse(proxy_v2(Address::unix_unnamed(), at("unix:/run/server")));
  EXPECT_EQ(unnamed.header.source, Address::unix_unnamed());
}

TEST(ProxyProtocol, Version2WithoutAddresses) {
  // LOCAL: whatever stands behind it is skipped, its family included.
  for (const auto& header : {proxy_v2_local(), v2(0x20, 0x00, ""), v2(0x20, 0x11, kIPv4Block),
                             v2(0x20, 0x11, "\xff\xff\xff"s), v2(0x20, 0x21, "")}) {
    const auto parsed = parse(header + "x");
    EXPECT_TRUE(parsed.done);
    EXPECT_TRUE(parsed.header.local);
    EXPECT_FALSE(parsed.header.has_addresses);
    EXPECT_EQ(parsed.taken, header.size());
  }
  const auto unspec = parse(v2(0x21, 0x00, "whatever"));
  EXPECT_TRUE(unspec.done);
  EXPECT_FALSE(unspec.header.local);
  EXPECT_FALSE(unspec.header.has_addresses);
}

TEST(ProxyProtocol, Version2RefusesWhatIsNone) {
  EXPECT_EQ(parse(v2(0x11, 0x11, kIPv4Block)).error, ProxyErrc::bad_version);
  EXPECT_EQ(parse(v2(0x22, 0x11, kIPv4Block)).error, ProxyErrc::bad_version);
  EXPECT_EQ(parse(v2(0x21, 0x41, kIPv4Block)).error, ProxyErrc::bad_family);
  EXPECT_EQ(parse(v2(0x21, 0x13, kIPv4Block)).error, ProxyErrc::bad_family);
  EXPECT_EQ(parse(v2(0x21, 0x11, kIPv4Block.substr(1))).error, ProxyErrc::bad_length);
  EXPECT_EQ(parse(v2(0x21, 0x21, std::string(35, 'x'))).error, ProxyErrc::bad_length);
  EXPECT_EQ(parse(v2(0x21, 0x31, std::string(215, 'x'))).error, ProxyErrc::bad_length);
  EXPECT_EQ(parse(v2(0x21, 0x11, std::string(2049, '\0'))).error, ProxyErrc::too_long);
  EXPECT_EQ(parse(v2(0x20, 0x00, std::string(65535, '\0'))).error, ProxyErrc::too_long);
  EXPECT_EQ(parse("\r\n\r\n\0\r\nQUIX"s).error, ProxyErrc::no_header);
  EXPECT_EQ(parse("\r\n\r\nX"s).error, ProxyErrc::no_header);
}

TEST(ProxyProtocol, Extensions) {
  const std::vector<ProxyTlv> sent{{0x01, "h2"}, {0x02, "example.org"}, {0x04, ""}, {0xe0, "own"}};
  for (const bool checksum : {false, true}) {
    const auto parsed = parse(proxy_v2(at("192.0.2.1:1"), at("192.0.2.2:2"), sent, checksum));
    ASSERT_TRUE(parsed.done);
    ProxyTlvs tlvs(parsed.tlvs);
    ProxyTlv tlv;
    if (checksum) {
      ASSERT_TRUE(tlvs.next(tlv));
      EXPECT_EQ(tlv.type, 0x03);
    }
    for (const ProxyTlv& each : sent) {
      ASSERT_TRUE(tlvs.next(tlv));
      EXPECT_EQ(tlv.type, each.type);
      EXPECT_EQ(tlv.value, each.value);
    }
    EXPECT_FALSE(tlvs.next(tlv));
  }
  // The most that a header may hold.
  EXPECT_TRUE(parse(v2(0x21, 0x11, kIPv4Block + "\x04\x07\xf1"s + std::string(2033, 'x'))).done);
}

TEST(ProxyProtocol, ExtensionsThatDontFit) {
  for (const auto& tlvs :
       {"\x01"s, "\x01\x00"s, "\x01\x00\x02x"s, "\x01\xff\xff"s, "\x01\x00\x01xy"s,
        "\x20\x00\x04"
        "abcd"s,
        "\x03\x00\x03"
        "abc"s})
    EXPECT_EQ(parse(v2(0x21, 0x11, kIPv4Block + tlvs)).error, ProxyErrc::bad_tlv) << tlvs.size();
}

TEST(ProxyProtocol, AChecksumIsChecked) {
  std::string good = proxy_v2(at("192.0.2.1:1"), at("192.0.2.2:2"), {}, true);
  EXPECT_TRUE(parse(good).done);
  for (std::size_t i = 16; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    if (i == 28) continue;  // the type: without one that says so there is no checksum
    EXPECT_TRUE(parse(bad).error) << i;
  }
}

// RFC 3720, B.4.
TEST(ProxyProtocol, Crc32cAsPublished) {
  Crc32c zeros, counted;
  for (int i = 0; i < 32; ++i) {
    zeros.add(0);
    counted.add(static_cast<std::uint8_t>(i));
  }
  EXPECT_EQ(zeros.value(), 0x8a9136aau);
  EXPECT_EQ(counted.value(), 0x46dd794eu);
}

// ---------------------------------------------------------------- writing

TEST(ProxyProtocol, WritesVersion1) {
  EXPECT_EQ(proxy_v1(at("192.0.2.1:56324"), at("198.51.100.7:443")),
            "PROXY TCP4 192.0.2.1 198.51.100.7 56324 443\r\n");
  EXPECT_EQ(proxy_v1(at("[2001:db8::1]:1"), at("[::1]:2")), "PROXY TCP6 2001:db8::1 ::1 1 2\r\n");
  EXPECT_EQ(proxy_v1(at("unix:/run/x"), at("[::1]:2")), "PROXY UNKNOWN\r\n");
  // What a listener for both kinds has is IPv4 on both sides, or has to become IPv6.
  EXPECT_EQ(proxy_v1(at("[::ffff:192.0.2.1]:1"), at("192.0.2.2:2")),
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n");
  EXPECT_EQ(proxy_v1(at("192.0.2.1:1"), at("[2001:db8::1]:2")),
            "PROXY TCP6 ::ffff:192.0.2.1 2001:db8::1 1 2\r\n");
}

TEST(ProxyProtocol, WritesVersion2) {
  EXPECT_EQ(proxy_v2(at("192.0.2.1:56324"), at("198.51.100.7:443")), v2(0x21, 0x11, kIPv4Block));
  EXPECT_EQ(proxy_v2_local(), v2(0x20, 0x00, ""));
  EXPECT_EQ(proxy_v2(at("unix:/run/x"), at("[::1]:2")), v2(0x21, 0x00, ""));
  // What would not fit is left out.
  const std::string big(40'000, 'x');
  const std::vector<ProxyTlv> too_much{{1, big}, {2, big}, {3, "x"}};
  EXPECT_EQ(proxy_v2(at("192.0.2.1:1"), at("192.0.2.2:2"), too_much).size(),
            28u + 3 + 40'000 + 3 + 1);
}

// ---------------------------------------------------------------- off a connection

NET_TEST(ProxyProtocol, LeavesTheNextProtocolInTheSocket) {
  for (const std::string& header :
       {proxy_v1(at("192.0.2.1:1"), at("192.0.2.2:2")),
        proxy_v2(at("192.0.2.1:1"), at("192.0.2.2:2"),
                 std::vector<ProxyTlv>{{0xe0, std::string(1000, 't')}})}) {
    // Every place where a segment may end: a few of the long one's.
    for (std::size_t cut = 0; cut <= header.size() + 5; cut += header.size() > 200 ? 97 : 1) {
      test::TcpPair pair;
      const std::string all = header + "hello";
      auto writer = spawn([&] {
        EXPECT_TRUE(pair.client.write_all(bytes(std::string_view(all).substr(0, cut))));
        this_fiber::yield();
        EXPECT_TRUE(pair.client.write_all(bytes(std::string_view(all).substr(cut))));
      });
      ProxyParser parser;
      ASSERT_TRUE(read_proxy_header(pair.server.fd(), parser, {}));
      EXPECT_EQ(parser.header().source, at("192.0.2.1:1"));
      std::string rest(5, '\0');
      EXPECT_EQ(pair.server.read_full(test::writable(rest)).value(), 5u);
      EXPECT_EQ(rest, "hello");
      EXPECT_TRUE(writer.join());
    }
  }
}

NET_TEST(ProxyProtocol, ReadsOffAUnixSocketAndAReader) {
  const std::string header = proxy_v2(at("192.0.2.1:1"), at("192.0.2.2:2"));
  test::UnixPair local;
  ASSERT_TRUE(local.one.write_all(bytes(header + "x")));
  ProxyParser first;
  ASSERT_TRUE(read_proxy_header(local.two.fd(), first, {}));
  EXPECT_EQ(test::read_text(local.two).value(), "x");
  BufferedReader reader(local.two);
  ASSERT_TRUE(local.one.write_all(bytes(header + "hello")));
  ProxyParser second;
  ASSERT_TRUE(read_proxy_header(reader, second, {}));
  EXPECT_EQ(reader.peek(5).value(), "hello");
  ASSERT_TRUE(local.one.shutdown_write());
  reader.consume(5);
  ProxyParser third;
  EXPECT_EQ(read_proxy_header(reader, third, {}).error(), ProxyErrc::ended);
}

NET_TEST(ProxyProtocol, EndsAndDeadlines) {
  test::TcpPair pair;
  ASSERT_TRUE(pair.client.write_all(bytes("PROXY TCP4 ")));
  ProxyParser slow;
  EXPECT_EQ(read_proxy_header(pair.server.fd(), slow, Deadline::after(2ms)).error(),
            Errc::timed_out);
  ASSERT_TRUE(pair.client.shutdown_write());
  ProxyParser cut;
  EXPECT_EQ(read_proxy_header(pair.server.fd(), cut, {}).error(), ProxyErrc::ended);
  // What can't be a header stays in the socket.
  test::TcpPair other;
  ASSERT_TRUE(other.client.write_all(bytes("GET /")));
  ProxyParser none;
  EXPECT_EQ(read_proxy_header(other.server.fd(), none, {}).error(), ProxyErrc::no_header);
  EXPECT_EQ(test::read_text(other.server).value(), "GET /");
}

}  // namespace
}  // namespace runloom::net
