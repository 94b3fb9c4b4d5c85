// The PROXY protocol, versions 1 and 2: what a proxy says in front of a connection about who the
// client is. As proxy-protocol.txt of HAProxy (2.9) has it.
//
// A receiver has to know beforehand that a header comes, and to trust who sends it. Server does
// all of this by ServerOptions::proxy; this is for who reads or writes headers without it.
// Only what reads a socket parks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

#include "runloom/net/address.hpp"
#include "runloom/net/fd.hpp"
#include "runloom/sched/deadline.hpp"
#include "runloom/sched/result.hpp"

namespace runloom::net {

class BufferedReader;

// Why bytes are no header. All compare equal to std::errc::protocol_error.
enum class ProxyErrc {
  no_header = 1,  // they begin otherwise
  ended,          // the stream ended before the header was whole
  bad_line,       // version 1: an unknown protocol, an address or port that is none, no end
  bad_version,    // version 2: another version or command
  bad_family,     // an address family or transport that the protocol has not
  bad_length,     // fewer bytes than the addresses need
  too_long,       // more bytes than ProxyParser::kMostBytes
  bad_tlv,        // an extension that ends behind the header, or is too short for its type
  bad_checksum,   // the checksum that the header carries is not its own
};
const std::error_category& proxy_category() noexcept;
inline std::error_code make_error_code(ProxyErrc e) noexcept {
  return {static_cast<int>(e), proxy_category()};
}

// An extension of version 2. The types are PP2_TYPE_* of the specification: 0x01 ALPN, 0x02
// authority (SNI), 0x05 unique id, 0x20 what is known of the client's TLS, ...
struct ProxyTlv {
  std::uint8_t type = 0;
  std::string_view value{};
};

// Walks over extensions as ProxyParser::tlvs() and ConnectionInfo::tlvs have them.
class ProxyTlvs {
 public:
  explicit ProxyTlvs(std::string_view raw) noexcept : rest_(raw) {}
  // False: there is none any more.
  bool next(ProxyTlv& tlv) noexcept;

 private:
  std::string_view rest_;
};

struct ProxyHeader {
  int version = 0;
  // Whether it tells of a client. If not (the proxy speaks for itself, LOCAL, or doesn't know,
  // UNKNOWN and UNSPEC) the addresses are unspecified, and the socket's own ones count.
  bool has_addresses = false;
  bool local = false;  // LOCAL: such as a health check
  Address source{};
  Address destination{};
};

// Takes a header byte by byte, or in pieces of any size. It allocates nothing.
class ProxyParser {
 public:
  static constexpr std::size_t kMostLine = 107;         // of version 1, with its "\r\n"
  static constexpr std::size_t kMostBytes = 16 + 2048;  // of version 2

  // Takes the bytes that belong to the header, and returns how many those were: the rest is the
  // next protocol's. Fails at the first byte that can't be right, and then ever again.
  Result<std::size_t> feed(std::span<const std::byte> data) noexcept;
  // The header is whole.
  bool done() const noexcept { return done_; }
  // Once it is done.
  const ProxyHeader& header() const noexcept { return header_; }
  // What follows the addresses, checked; empty where there are none. Valid as long as the parser.
  std::string_view tlvs() const noexcept;

 private:
  Result<bool> take(std::uint8_t byte) noexcept;
  Result<void> begin_block() noexcept;
  Result<void> finish_line() noexcept;
  Result<void> finish_block() noexcept;
  Result<void> check_tlvs() const noexcept;

  std::array<std::uint8_t, kMostBytes> bytes_;
  std::size_t size_ = 0;
  std::size_t whole_ = 0;  // of version 2, once its length is known
  std::size_t tlvs_at_ = 0;
  ProxyHeader header_;
  bool done_ = false;
  std::error_code failed_;
};

// Reads a header off the front of a connection and not one byte more: what follows is left in the
// socket. `parser` is a new one and has the answer. Parks until the header is whole. Fails with
// ProxyErrc, and as Fd::recv does.
Result<void> read_proxy_header(const Fd& socket, ProxyParser& parser, Deadline deadline);
// Likewise out of a reader, for a stream that is no socket: what follows is unread there.
Result<void> read_proxy_header(BufferedReader& reader, ProxyParser& parser, Deadline deadline);

// A header of version 1 that tells of a client. Two addresses that are not both of IP are UNKNOWN.
std::string proxy_v1(const Address& source, const Address& destination);
// A header of version 2, with extensions and, if wanted, a checksum. Two addresses of different
// kinds are UNSPEC. All that fits into 65,535 bytes; what is beyond is left out.
std::string proxy_v2(const Address& source, const Address& destination,
                     std::span<const ProxyTlv> tlvs = {}, bool checksum = false);
// A header of version 2 by which a proxy speaks for itself.
std::string proxy_v2_local();

}  // namespace runloom::net

template <>
struct std::is_error_code_enum<runloom::net::ProxyErrc> : std::true_type {};
