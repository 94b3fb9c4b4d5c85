// services(5), in memory: names of services to ports and back.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace runloom::dns {

class Services {
 public:
  Services() = default;
  static Services parse(std::string_view text);
  // The port in host byte order. Names and protocols ("tcp") are compared with case, as glibc does.
  std::optional<std::uint16_t> port(std::string_view name, std::string_view protocol) const;
  // The first name of the port; empty: it has none.
  std::string_view name(std::uint16_t port, std::string_view protocol) const;

 private:
  // The first line that names it counts.
  std::map<std::pair<std::string, std::string>, std::uint16_t, std::less<>> ports_;
  std::map<std::pair<std::uint16_t, std::string>, std::string> names_;
};

}  // namespace runloom::dns
