// nsswitch.conf(5), the line for hosts, and host.conf(5).
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace runloom::dns {

// How a source ended, in glibc's words.
enum class Status : unsigned char { success, not_found, unavailable, try_again };

struct Source {
  enum class Kind : unsigned char { files, dns, other };
  Kind kind = Kind::other;
  std::string name;
  // Whether the search ends with what the source said, by Status.
  std::array<bool, 4> ends{true, false, false, false};
  bool ends_with(Status status) const noexcept { return ends[static_cast<unsigned>(status)]; }
};

// The sources for hosts, in order; those of the default configuration when no line names any.
std::vector<Source> parse_nsswitch(std::string_view text);
// host.conf's `multi on`.
bool parse_host_conf_multi(std::string_view text);

}  // namespace runloom::dns
