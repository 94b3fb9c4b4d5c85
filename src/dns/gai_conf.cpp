#include "gai_conf.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <span>

#include "numeric.hpp"
#include "text.hpp"

namespace runloom::dns {
namespace {

struct Default {
  const char* prefix;
  unsigned bits;
  int value;
};
constexpr Default kLabels[] = {{"::1", 128, 0},       {"2002::", 16, 2}, {"::", 96, 3},
                               {"::ffff:0:0", 96, 4}, {"fec0::", 10, 5}, {"fc00::", 7, 6},
                               {"2001::", 32, 7},     {"::", 0, 1}};
constexpr Default kPrecedences[] = {
    {"::1", 128, 50}, {"2002::", 16, 30}, {"::", 96, 20}, {"::ffff:0:0", 96, 10}, {"::", 0, 40}};

std::vector<PrefixValue> table(std::span<const Default> defaults) {
  std::vector<PrefixValue> out;
  for (const Default& entry : defaults)
    out.push_back({*parse_ipv6(entry.prefix), entry.bits, entry.value});
  return out;
}

bool matches(const PrefixValue& entry, const in6_addr& ip) noexcept {
  unsigned bits = entry.bits;
  for (std::size_t i = 0; i < 16 && bits > 0; ++i) {
    const unsigned now = std::min(bits, 8u);
    const unsigned mask = 0xff00u >> now & 0xffu;
    if ((ip.s6_addr[i] & mask) != (entry.prefix.s6_addr[i] & mask)) return false;
    bits -= now;
  }
  return true;
}

int lookup(const std::vector<PrefixValue>& table, const in6_addr& ip) noexcept {
  for (const PrefixValue& entry : table)
    if (matches(entry, ip)) return entry.value;
  return 0;
}

template <class T>
std::optional<T> parse_number(std::string_view text) noexcept {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// "PREFIX[/BITS] VALUE".
std::optional<PrefixValue> parse_entry(std::string_view prefix, std::string_view value) {
  const std::size_t slash = prefix.find('/');
  const auto ip = parse_ipv6(prefix.substr(0, slash));
  const auto number = parse_number<int>(value);
  if (!ip || !number || *number < 0) return std::nullopt;
  unsigned bits = 128;
  if (slash != std::string_view::npos) {
    const auto given = parse_number<unsigned>(prefix.substr(slash + 1));
    if (!given || *given > 128) return std::nullopt;
    bits = *given;
  }
  return PrefixValue{*ip, bits, *number};
}

std::uint32_t mask_of(unsigned bits) noexcept {
  return bits == 0 ? 0 : 0xffff'ffffu << (32 - bits);
}

// "::ffff:NETWORK/BITS SCOPE": bits count from 96; or the IPv4 form.
std::optional<Ipv4Scope> parse_scope_entry(std::string_view prefix, std::string_view value) {
  const std::size_t slash = prefix.find('/');
  const auto scope = parse_number<int>(value);
  unsigned bits = 32;
  in_addr network;
  if (const auto ip = parse_ipv6(prefix.substr(0, slash))) {
    if (!IN6_IS_ADDR_V4MAPPED(&*ip)) return std::nullopt;
    std::copy_n(ip->s6_addr + 12, 4, reinterpret_cast<std::uint8_t*>(&network));
    if (slash != std::string_view::npos) {
      const auto given = parse_number<unsigned>(prefix.substr(slash + 1));
      if (!given || *given < 96 || *given > 128) return std::nullopt;
      bits = *given - 96;
    }
  } else if (const auto ip4 = parse_ipv4(prefix.substr(0, slash))) {
    network = *ip4;
    if (slash != std::string_view::npos) {
      const auto given = parse_number<unsigned>(prefix.substr(slash + 1));
      if (!given || *given > 32) return std::nullopt;
      bits = *given;
    }
  } else {
    return std::nullopt;
  }
  if (!scope || *scope < 0) return std::nullopt;
  return Ipv4Scope{ntohl(network.s_addr) & mask_of(bits), mask_of(bits), *scope};
}

void finish(std::vector<PrefixValue>& table, int rest) {
  std::stable_sort(table.begin(), table.end(),
                   [](const auto& a, const auto& b) { return a.bits > b.bits; });
  if (table.back().bits != 0) table.push_back({in6addr_any, 0, rest});
}

}  // namespace

int GaiConf::label(const in6_addr& ip) const noexcept {
  return lookup(labels, ip);
}

int GaiConf::precedence(const in6_addr& ip) const noexcept {
  return lookup(precedences, ip);
}

int GaiConf::ipv4_scope(const in_addr& ip) const noexcept {
  for (const Ipv4Scope& entry : ipv4_scopes)
    if ((ntohl(ip.s_addr) & entry.mask) == entry.network) return entry.scope;
  return 14;
}

GaiConf parse_gai_conf(std::string_view text) {
  GaiConf conf;
  std::string_view line;
  while (next_line(text, line)) {
    line = without_comment(line);
    const std::string_view keyword = next_word(line);
    const std::string_view prefix = next_word(line);
    const std::string_view value = next_word(line);
    if (keyword == "label" || keyword == "precedence") {
      auto& table = keyword == "label" ? conf.labels : conf.precedences;
      if (const auto entry = parse_entry(prefix, value)) table.push_back(*entry);
    } else if (keyword == "scopev4") {
      if (const auto entry = parse_scope_entry(prefix, value)) conf.ipv4_scopes.push_back(*entry);
    }
  }
  if (conf.labels.empty()) conf.labels = table(kLabels);
  if (conf.precedences.empty()) conf.precedences = table(kPrecedences);
  if (conf.ipv4_scopes.empty()) {
    conf.ipv4_scopes = {{0xa9fe'0000, mask_of(16), 2}, {0x7f00'0000, mask_of(8), 2}, {0, 0, 14}};
  }
  finish(conf.labels, 1);
  finish(conf.precedences, 40);
  std::stable_sort(conf.ipv4_scopes.begin(), conf.ipv4_scopes.end(),
                   [](const auto& a, const auto& b) { return a.mask > b.mask; });
  return conf;
}

}  // namespace runloom::dns
