// The parser. Version 1 is a line that ends with "\r\n" within 107 bytes; version 2 is 12 fixed
// bytes, a version and command, a family and transport, a length, and so many bytes more.
#include <algorithm>
#include <charconv>
#include <cstring>

#include "crc32c.hpp"
#include "runloom/net/proxy_protocol.hpp"

namespace runloom::net {
namespace {

constexpr std::string_view kLineStart = "PROXY ";
constexpr std::string_view kSignature{"\r\n\r\n\0\r\nQUIT\n", 12};
constexpr std::size_t kFixed = 16;  // of version 2
constexpr std::size_t kUnixName = 108;
constexpr std::uint8_t kTlvChecksum = 0x03;
constexpr std::uint8_t kTlvTls = 0x20;

class ProxyCategory final : public std::error_category {
 public:
  const char* name() const noexcept override { return "runloom.proxy"; }
  std::string message(int value) const override {
    switch (static_cast<ProxyErrc>(value)) {
      case ProxyErrc::no_header:
        return "the connection does not begin with a PROXY header";
      case ProxyErrc::ended:
        return "the connection ended before its PROXY header was whole";
      case ProxyErrc::bad_line:
        return "the line of a PROXY header is not as version 1 has it";
      case ProxyErrc::bad_version:
        return "a PROXY header of an unknown version or command";
      case ProxyErrc::bad_family:
        return "a PROXY header with an unknown address family or transport";
      case ProxyErrc::bad_length:
        return "a PROXY header is too short for its addresses";
      case ProxyErrc::too_long:
        return "a PROXY header is longer than it may be here";
      case ProxyErrc::bad_tlv:
        return "an extension of a PROXY header does not fit into it";
      case ProxyErrc::bad_checksum:
        return "the checksum of a PROXY header is wrong";
    }
    return "unknown error of the PROXY protocol";
  }
  std::error_condition default_error_condition(int) const noexcept override {
    return std::make_error_condition(std::errc::protocol_error);
  }
};

std::uint16_t get16(const std::uint8_t* at) noexcept {
  return static_cast<std::uint16_t>(at[0] << 8 | at[1]);
}

// The word up to the next space, which is taken too.
std::string_view word_of(std::string_view& line) noexcept {
  const std::size_t space = line.find(' ');
  const std::string_view word = line.substr(0, space);
  line.remove_prefix(space == std::string_view::npos ? line.size() : space + 1);
  return word;
}

Result<std::uint16_t> port_of(std::string_view text) noexcept {
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  const bool plain = text.size() == 1 || (!text.empty() && text[0] != '0');
  if (error != std::errc() || end != text.data() + text.size() || !plain)
    return fail(ProxyErrc::bad_line);
  return port;
}

Result<Address> address_of(std::string_view ip, std::string_view port, int family) {
  RUNLOOM_TRY(const std::uint16_t number, port_of(port));
  if (ip.find('%') != std::string_view::npos) return fail(ProxyErrc::bad_line);
  const auto address = Address::from_ip(ip, number);
  if (!address || address->family() != family) return fail(ProxyErrc::bad_line);
  return *address;
}

// A Unix name as 108 bytes: a path ends at its first zero byte, an abstract name at its last ones.
Result<Address> unix_address(const std::uint8_t* at) noexcept {
  std::string_view name(reinterpret_cast<const char*>(at), kUnixName);
  sockaddr_un raw{};
  raw.sun_family = AF_UNIX;
  if (name[0] == '\0') {
    const std::size_t last = name.find_last_not_of('\0');
    if (last == std::string_view::npos) return Address::unix_unnamed();
    name = name.substr(0, last + 1);
  } else {
    name = name.substr(0, std::min(name.find('\0'), kUnixName - 1));
  }
  std::memcpy(raw.sun_path, name.data(), name.size());
  const std::size_t zero = name[0] == '\0' ? 0 : 1;
  const auto size = offsetof(sockaddr_un, sun_path) + name.size() + zero;
  return Address::from_sockaddr(reinterpret_cast<const sockaddr*>(&raw),
                                static_cast<socklen_t>(size));
}

}  // namespace

const std::error_category& proxy_category() noexcept {
  static const ProxyCategory category;
  return category;
}

bool ProxyTlvs::next(ProxyTlv& tlv) noexcept {
  if (rest_.size() < 3) return false;
  const auto* at = reinterpret_cast<const std::uint8_t*>(rest_.data());
  const std::size_t size = get16(at + 1);
  if (rest_.size() - 3 < size) return false;
  tlv = {at[0], rest_.substr(3, size)};
  rest_.remove_prefix(3 + size);
  return true;
}

Result<std::size_t> ProxyParser::feed(std::span<const std::byte> data) noexcept {
  if (failed_) return Unexpected{failed_};
  for (std::size_t i = 0; i < data.size(); ++i) {
    if (done_) return i;
    const auto ended = take(static_cast<std::uint8_t>(data[i]));
    if (!ended) {
      failed_ = ended.error();
      return Unexpected{failed_};
    }
    done_ = *ended;
  }
  return data.size();
}

// One byte more. True: it was the last.
Result<bool> ProxyParser::take(std::uint8_t byte) noexcept {
  bytes_[size_++] = byte;
  if (bytes_[0] == static_cast<std::uint8_t>(kLineStart[0])) {
    if (size_ <= kLineStart.size()) {
      if (byte != static_cast<std::uint8_t>(kLineStart[size_ - 1]))
        return fail(ProxyErrc::no_header);
      return false;
    }
    if (byte == '\n') {
      if (auto ok = finish_line(); !ok) return Unexpected{ok.error()};
      return true;
    }
    if (size_ >= kMostLine || bytes_[size_ - 2] == '\r') return fail(ProxyErrc::bad_line);
    return false;
  }
  if (size_ <= kSignature.size()) {
    if (byte != static_cast<std::uint8_t>(kSignature[size_ - 1])) return fail(ProxyErrc::no_header);
    return false;
  }
  if (size_ < kFixed) return false;
  if (size_ == kFixed)
    if (auto ok = begin_block(); !ok) return Unexpected{ok.error()};
  if (size_ < whole_) return false;
  if (auto ok = finish_block(); !ok) return Unexpected{ok.error()};
  return true;
}

Result<void> ProxyParser::finish_line() noexcept {
  header_.version = 1;
  std::string_view line(reinterpret_cast<const char*>(bytes_.data()), size_);
  if (!line.ends_with("\r\n")) return fail(ProxyErrc::bad_line);
  line.remove_suffix(2);
  line.remove_prefix(kLineStart.size());
  const std::string_view protocol = word_of(line);
  if (protocol == "UNKNOWN") return {};  // whatever follows
  const int family = protocol == "TCP4" ? AF_INET : protocol == "TCP6" ? AF_INET6 : AF_UNSPEC;
  if (family == AF_UNSPEC) return fail(ProxyErrc::bad_line);
  if (std::count(line.begin(), line.end(), ' ') != 3) return fail(ProxyErrc::bad_line);
  const std::string_view source = word_of(line);
  const std::string_view destination = word_of(line);
  const std::string_view source_port = word_of(line);
  RUNLOOM_TRY(header_.source, address_of(source, source_port, family));
  RUNLOOM_TRY(header_.destination, address_of(destination, line, family));
  header_.has_addresses = true;
  return {};
}

// The length is known, and what of the rest can be wrong already.
Result<void> ProxyParser::begin_block() noexcept {
  const unsigned version = bytes_[12] >> 4, command = bytes_[12] & 15;
  const unsigned family = bytes_[13] >> 4, transport = bytes_[13] & 15;
  const std::size_t length = get16(&bytes_[14]);
  if (version != 2 || command > 1) return fail(ProxyErrc::bad_version);
  if (family > 3 || transport > 2) return fail(ProxyErrc::bad_family);
  if (length > kMostBytes - kFixed) return fail(ProxyErrc::too_long);
  constexpr std::array<std::size_t, 4> kAddresses{0, 12, 36, 2 * kUnixName};
  if (command == 1 && length < kAddresses[family]) return fail(ProxyErrc::bad_length);
  whole_ = kFixed + length;
  tlvs_at_ = kFixed + kAddresses[family];
  return {};
}

Result<void> ProxyParser::finish_block() noexcept {
  header_.version = 2;
  header_.local = (bytes_[12] & 15) == 0;
  const unsigned family = bytes_[13] >> 4;
  // Of such a header everything else is to be skipped, whatever it is.
  if (header_.local || family == 0) {
    tlvs_at_ = whole_;
    return {};
  }
  const std::uint8_t* at = &bytes_[kFixed];
  if (family == 1) {
    in_addr source, destination;
    std::memcpy(&source, at, 4);
    std::memcpy(&destination, at + 4, 4);
    header_.source = Address::from_ipv4(source, get16(at + 8));
    header_.destination = Address::from_ipv4(destination, get16(at + 10));
  } else if (family == 2) {
    in6_addr source, destination;
    std::memcpy(&source, at, 16);
    std::memcpy(&destination, at + 16, 16);
    header_.source = Address::from_ipv6(source, get16(at + 32));
    header_.destination = Address::from_ipv6(destination, get16(at + 34));
  } else {
    RUNLOOM_TRY(header_.source, unix_address(at));
    RUNLOOM_TRY(header_.destination, unix_address(at + kUnixName));
  }
  header_.has_addresses = true;
  return check_tlvs();
}

std::string_view ProxyParser::tlvs() const noexcept {
  if (!done_ || whole_ == 0) return {};
  return {reinterpret_cast<const char*>(&bytes_[0]) + tlvs_at_, whole_ - tlvs_at_};
}

Result<void> ProxyParser::check_tlvs() const noexcept {
  for (std::size_t at = tlvs_at_; at < whole_;) {
    if (whole_ - at < 3) return fail(ProxyErrc::bad_tlv);
    const std::size_t size = get16(&bytes_[at + 1]);
    const std::size_t value = at + 3;
    if (whole_ - value < size) return fail(ProxyErrc::bad_tlv);
    if (bytes_[at] == kTlvTls && size < 5) return fail(ProxyErrc::bad_tlv);
    if (bytes_[at] == kTlvChecksum) {
      if (size != 4) return fail(ProxyErrc::bad_tlv);
      Crc32c sum;  // with zeros in its own place
      for (std::size_t i = 0; i < whole_; ++i)
        sum.add(i >= value && i < value + 4 ? 0 : bytes_[i]);
      const std::uint32_t told =
          static_cast<std::uint32_t>(get16(&bytes_[value])) << 16 | get16(&bytes_[value + 2]);
      if (told != sum.value()) return fail(ProxyErrc::bad_checksum);
    }
    at = value + size;
  }
  return {};
}

}  // namespace runloom::net
