// gai.conf(5): the tables by which addresses are sorted.
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace runloom::dns {

struct PrefixValue {
  in6_addr prefix;
  unsigned bits;
  int value;
};
struct Ipv4Scope {
  std::uint32_t network;  // host byte order
  std::uint32_t mask;
  int scope;
};

struct GaiConf {
  // The longest prefixes first; each table ends with one that matches everything.
  std::vector<PrefixValue> labels;
  std::vector<PrefixValue> precedences;
  std::vector<Ipv4Scope> ipv4_scopes;

  int label(const in6_addr& ip) const noexcept;
  int precedence(const in6_addr& ip) const noexcept;
  int ipv4_scope(const in_addr& ip) const noexcept;
};

// A table of which the text names no entry is RFC 3484's, as glibc has it.
GaiConf parse_gai_conf(std::string_view text);

}  // namespace runloom::dns
