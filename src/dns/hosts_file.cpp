#include "hosts_file.hpp"

#include <cstring>

#include "message.hpp"
#include "numeric.hpp"
#include "text.hpp"

namespace runloom::dns {

bool operator==(const IpAddress& a, const IpAddress& b) noexcept {
  return a.family == b.family && a.scope == b.scope &&
         std::memcmp(&a.bytes, &b.bytes, sizeof a.bytes) == 0;
}

IpAddress IpAddress::ipv4(const in_addr& ip) noexcept {
  IpAddress out;
  out.family = AF_INET;
  std::memcpy(&out.bytes, &ip, sizeof ip);
  return out;
}

IpAddress IpAddress::ipv6(const in6_addr& ip, std::uint32_t scope) noexcept {
  IpAddress out;
  out.family = AF_INET6;
  out.bytes = ip;
  out.scope = scope;
  return out;
}

in_addr IpAddress::as_ipv4() const noexcept {
  in_addr ip;
  std::memcpy(&ip, &bytes, sizeof ip);
  return ip;
}

namespace {

// What an address of a line is for a lookup of IPv4 addresses; AF_UNSPEC: nothing.
IpAddress as_seen_by_ipv4(const IpAddress& address) noexcept {
  if (address.family == AF_INET) return address;
  if (IN6_IS_ADDR_V4MAPPED(&address.bytes)) {
    in_addr ip;
    std::memcpy(&ip, address.bytes.s6_addr + 12, sizeof ip);
    return IpAddress::ipv4(ip);
  }
  if (IN6_IS_ADDR_LOOPBACK(&address.bytes)) return IpAddress::ipv4({htonl(INADDR_LOOPBACK)});
  return {};
}

}  // namespace

HostsFile HostsFile::parse(std::string_view text) {
  HostsFile file;
  std::string_view line;
  while (next_line(text, line)) {
    line = line.substr(0, line.find('\0'));
    line = without_comment(line);
    const std::string_view address = next_word(line);
    if (address.empty()) continue;
    IpAddress parsed;
    if (const auto ip = parse_ipv4(address)) {
      parsed = IpAddress::ipv4(*ip);
    } else if (const auto ip6 = parse_ipv6(address)) {
      parsed = IpAddress::ipv6(*ip6);
    } else {
      continue;
    }
    const auto index = static_cast<std::uint32_t>(file.lines_.size());
    bool first = true;
    for (auto name = next_word(line); !name.empty(); name = next_word(line)) {
      if (first) file.lines_.push_back({parsed, std::string(name)});
      first = false;
      auto& lines = file.by_name_[lower(name)];
      if (lines.empty() || lines.back() != index) lines.push_back(index);
    }
  }
  return file;
}

HostsFile::Found HostsFile::find(std::string_view name, int family, bool multi) const {
  Found found;
  const auto it = by_name_.find(lower(name));
  if (it == by_name_.end()) return found;
  for (const std::uint32_t index : it->second) {
    const Line& line = lines_[index];
    IpAddress address = line.address;
    if (family == AF_INET) address = as_seen_by_ipv4(address);
    if (address.family == AF_UNSPEC || (family == AF_INET6 && address.family != AF_INET6)) continue;
    if (found.addresses.empty()) found.canonical = line.canonical;
    found.addresses.push_back(address);
    if (!multi) break;
  }
  return found;
}

std::string_view HostsFile::find(const IpAddress& address) const noexcept {
  for (const Line& line : lines_) {
    const IpAddress seen = address.family == AF_INET ? as_seen_by_ipv4(line.address) : line.address;
    if (seen.family == address.family &&
        std::memcmp(&seen.bytes, &address.bytes, sizeof seen.bytes) == 0)
      return line.canonical;
  }
  return {};
}

}  // namespace runloom::dns
