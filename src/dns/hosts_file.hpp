// hosts(5), in memory and indexed, with the rules of glibc's "files" source.
#pragma once

#include <netinet/in.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace runloom::dns {

// An address as a source gives it.
struct IpAddress {
  int family = AF_UNSPEC;
  in6_addr bytes{};  // an IPv4 address in its first four
  std::uint32_t scope = 0;
  friend bool operator==(const IpAddress& a, const IpAddress& b) noexcept;
  static IpAddress ipv4(const in_addr& ip) noexcept;
  static IpAddress ipv6(const in6_addr& ip, std::uint32_t scope = 0) noexcept;
  in_addr as_ipv4() const noexcept;
};

class HostsFile {
 public:
  HostsFile() = default;
  // Any text gives something: lines that can't be read are passed over.
  static HostsFile parse(std::string_view text);

  struct Found {
    std::vector<IpAddress> addresses;  // in the order of the file; empty: the name isn't there
    std::string canonical;             // the first name of the first line
  };
  // `family` AF_UNSPEC: both. For AF_INET a line with ::1 counts as 127.0.0.1, and a mapped IPv4
  // address as that. `multi`: all lines count and not the first alone (host.conf(5)).
  Found find(std::string_view name, int family, bool multi) const;
  // The first name of the first line with the address; empty: there is none.
  std::string_view find(const IpAddress& address) const noexcept;
  std::size_t size() const noexcept { return lines_.size(); }

 private:
  struct Line {
    IpAddress address;
    std::string canonical;
  };
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const noexcept {
      return std::hash<std::string_view>()(text);
    }
  };
  std::vector<Line> lines_;
  // Of names in lower case, the lines in order.
  std::unordered_map<std::string, std::vector<std::uint32_t>, Hash, std::equal_to<>> by_name_;
};

}  // namespace runloom::dns
