#include "numeric.hpp"

#include <arpa/inet.h>
#include <net/if.h>

#include <cstring>

namespace runloom::dns {
namespace {

// The text ends with a zero for the C library. Longer ones are no address.
struct CText {
  explicit CText(std::string_view text) noexcept {
    fits = text.size() < sizeof bytes && text.find('\0') == std::string_view::npos;
    if (!fits) return;
    std::memcpy(bytes, text.data(), text.size());
    bytes[text.size()] = 0;
  }
  char bytes[64];
  bool fits;
};

int digit(char c) noexcept {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return 99;
}

// A number as strtoul(3) with base 0 reads it, taken from the front; none: not a digit, or more
// than 32 bits.
std::optional<std::uint64_t> take_number(std::string_view& text) noexcept {
  if (text.empty() || digit(text[0]) > 9) return std::nullopt;
  int base = 10;
  if (text[0] == '0') {
    base = 8;
    if (text.size() > 2 && (text[1] == 'x' || text[1] == 'X') && digit(text[2]) < 16) {
      base = 16;
      text.remove_prefix(2);
    }
  }
  std::uint64_t value = 0;
  while (!text.empty() && digit(text[0]) < base) {
    value = value * static_cast<unsigned>(base) + static_cast<unsigned>(digit(text[0]));
    if (value > 0xffff'ffff) return std::nullopt;
    text.remove_prefix(1);
  }
  return value;
}

}  // namespace

std::optional<in_addr> parse_ipv4_legacy(std::string_view text) noexcept {
  if (text.empty() || digit(text[0]) > 9) return std::nullopt;  // almost every name
  std::uint32_t high = 0;
  for (int part = 0; part < 4; ++part) {
    const auto number = take_number(text);
    if (!number) return std::nullopt;
    if (text.empty()) {
      // The last part fills what is left.
      if (*number > 0xffff'ffffu >> (8 * part)) return std::nullopt;
      return in_addr{htonl(high | static_cast<std::uint32_t>(*number))};
    }
    if (text[0] != '.' || *number > 255) return std::nullopt;
    high |= static_cast<std::uint32_t>(*number) << (24 - 8 * part);
    text.remove_prefix(1);
  }
  return std::nullopt;
}

std::optional<in_addr> parse_ipv4(std::string_view text) noexcept {
  const CText c(text);
  in_addr ip;
  if (!c.fits || ::inet_pton(AF_INET, c.bytes, &ip) != 1) return std::nullopt;
  return ip;
}

std::optional<in6_addr> parse_ipv6(std::string_view text) noexcept {
  if (text.find(':') == std::string_view::npos) return std::nullopt;
  const CText c(text);
  in6_addr ip;
  if (!c.fits || ::inet_pton(AF_INET6, c.bytes, &ip) != 1) return std::nullopt;
  return ip;
}

std::optional<std::uint32_t> parse_scope(const in6_addr& ip, std::string_view text) noexcept {
  if (IN6_IS_ADDR_LINKLOCAL(&ip) || IN6_IS_ADDR_MC_LINKLOCAL(&ip)) {
    const CText c(text);
    if (c.fits)
      if (const unsigned index = ::if_nametoindex(c.bytes); index != 0) return index;
  }
  if (text.empty()) return std::nullopt;
  std::uint64_t number = 0;
  for (const char d : text) {
    if (d < '0' || d > '9') return std::nullopt;
    number = number * 10 + static_cast<unsigned>(d - '0');
    if (number > 0xffff'ffff) return std::nullopt;
  }
  return static_cast<std::uint32_t>(number);
}

}  // namespace runloom::dns
