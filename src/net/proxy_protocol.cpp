// How headers are read off a connection, and written.
#include "runloom/net/proxy_protocol.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "crc32c.hpp"
#include "runloom/net/buffered.hpp"
#include "runloom/net/network.hpp"

namespace runloom::net {

// Looks at what is there, finds out how much of it is the header's, and takes that. So nothing of
// the next protocol ever leaves the socket, and no stream has to be put in front of it. All that
// was looked at is taken unless the header ends in it, so the next look waits for new bytes.
Result<void> read_proxy_header(const Fd& socket, ProxyParser& parser, Deadline deadline) {
  std::array<std::byte, 256> piece;
  while (!parser.done()) {
    RUNLOOM_TRY(const std::size_t there, socket.recv(piece, MSG_PEEK, deadline));
    if (there == 0) return fail(ProxyErrc::ended);
    RUNLOOM_TRY(std::size_t left, parser.feed(std::span(piece).first(there)));
    while (left > 0) {
      RUNLOOM_TRY(const std::size_t taken, socket.recv(std::span(piece).first(left), 0, deadline));
      if (taken == 0) return fail(ProxyErrc::ended);
      left -= taken;
    }
    if (!parser.done() && deadline.passed()) return fail(Errc::timed_out);
  }
  return {};
}

Result<void> read_proxy_header(BufferedReader& reader, ProxyParser& parser, Deadline deadline) {
  while (!parser.done()) {
    const auto there = reader.peek(1, deadline);
    if (!there)
      return there.error() == ReadErrc::end_of_stream ? fail(ProxyErrc::ended)
                                                      : Unexpected{there.error()};
    RUNLOOM_TRY(const std::size_t taken, parser.feed(std::as_bytes(std::span(*there))));
    reader.consume(taken);
    if (!parser.done() && deadline.passed()) return fail(Errc::timed_out);
  }
  return {};
}

namespace {

// The two addresses as one family: 4 or 16 bytes each, or 0.
struct Pair {
  Pair(const Address& from, const Address& to) noexcept : source(from), destination(to) {
    if (source.size == 0 || destination.size == 0) return;
    size = std::max(source.size, destination.size);
    if (size == 16) {
      widen(source);
      widen(destination);
    }
  }
  static void widen(IpBytes& ip) noexcept {
    if (ip.size != 4) return;
    std::copy_n(ip.bytes.begin(), 4, ip.bytes.begin() + 12);
    std::fill_n(ip.bytes.begin(), 10, std::uint8_t{0});
    ip.bytes[10] = ip.bytes[11] = 0xff;
    ip.size = 16;
  }
  IpBytes source, destination;
  int size = 0;
};

std::string text_of(const IpBytes& ip) {
  in_addr ipv4;
  in6_addr ipv6;
  std::memcpy(&ipv4, ip.bytes.data(), sizeof ipv4);
  std::memcpy(&ipv6, ip.bytes.data(), sizeof ipv6);
  return ip.size == 4 ? Address::from_ipv4(ipv4, 0).ip() : Address::from_ipv6(ipv6, 0).ip();
}

void put16(std::string& out, std::size_t value) {
  out.push_back(static_cast<char>(value >> 8));
  out.push_back(static_cast<char>(value));
}

std::string begin_v2(int command, int family) {
  std::string out("\r\n\r\n\0\r\nQUIT\n", 12);
  out.push_back(static_cast<char>(0x20 | command));
  out.push_back(static_cast<char>(family == 0 ? 0 : family << 4 | 1));  // 1: a stream
  put16(out, 0);
  return out;
}

void put_unix(std::string& out, const Address& address) {
  const std::string_view name = address.unix_name();
  out.append(name);
  out.append(108 - name.size(), '\0');
}

}  // namespace

std::string proxy_v1(const Address& source, const Address& destination) {
  const Pair pair(source, destination);
  if (pair.size == 0) return "PROXY UNKNOWN\r\n";
  std::string out = pair.size == 4 ? "PROXY TCP4 " : "PROXY TCP6 ";
  out.append(text_of(pair.source)).append(" ").append(text_of(pair.destination)).append(" ");
  out.append(std::to_string(source.port())).append(" ");
  out.append(std::to_string(destination.port())).append("\r\n");
  return out;
}

std::string proxy_v2(const Address& source, const Address& destination,
                     std::span<const ProxyTlv> tlvs, bool checksum) {
  const Pair pair(source, destination);
  const bool local = source.is_unix() && destination.is_unix();
  std::string out = begin_v2(1, pair.size == 4 ? 1 : pair.size == 16 ? 2 : local ? 3 : 0);
  if (pair.size != 0) {
    for (const IpBytes* ip : {&pair.source, &pair.destination})
      out.append(reinterpret_cast<const char*>(ip->bytes.data()),
                 static_cast<std::size_t>(pair.size));
    put16(out, source.port());
    put16(out, destination.port());
  } else if (local) {
    put_unix(out, source);
    put_unix(out, destination);
  }
  constexpr std::size_t kRoom = 16 + 65535;
  std::size_t sum_at = 0;
  if (checksum) {
    out.push_back(0x03);
    put16(out, 4);
    sum_at = out.size();
    out.append(4, '\0');
  }
  for (const ProxyTlv& tlv : tlvs) {
    if (kRoom - out.size() < 3 || kRoom - out.size() - 3 < tlv.value.size()) continue;
    out.push_back(static_cast<char>(tlv.type));
    put16(out, tlv.value.size());
    out.append(tlv.value);
  }
  const std::size_t length = out.size() - 16;
  out[14] = static_cast<char>(length >> 8);
  out[15] = static_cast<char>(length);
  if (checksum) {
    Crc32c sum;
    for (const char c : out)
      sum.add(static_cast<std::uint8_t>(c));
    for (std::size_t i = 0; i < 4; ++i)
      out[sum_at + i] = static_cast<char>(sum.value() >> (24 - 8 * i));
  }
  return out;
}

std::string proxy_v2_local() {
  return begin_v2(0, 0);
}

}  // namespace runloom::net
