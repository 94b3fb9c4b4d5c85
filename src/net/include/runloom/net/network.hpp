// Network: a set of peers by address, "10.0.0.0/8". A plain value; nothing here parks.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "runloom/net/address.hpp"
#include "runloom/sched/result.hpp"

namespace runloom::net {

class Network {
 public:
  // "10.0.0.0/8", "2001:db8::/32", a single address "192.0.2.7" or "::1", and "unix:" for every
  // peer over a Unix socket. The bits behind the prefix must be zero: a network that was meant to
  // be an address, or the other way round, is a mistake that opens a door. Fails with EINVAL;
  // `problem`, where given, gets a sentence that names the text at fault.
  static Result<Network> parse(std::string_view text, std::string* problem = nullptr);

  // Whether the address is one of it. An IPv4 address that is mapped into IPv6, as a listener for
  // both has it, is an IPv4 address. Ports and scopes don't count.
  bool contains(const Address& address) const noexcept;
  // As parse() reads it.
  std::string to_string() const;

  friend bool operator==(const Network& a, const Network& b) noexcept = default;

 private:
  int family_ = AF_UNSPEC;  // AF_UNIX: any
  int prefix_ = 0;          // bits
  std::array<std::uint8_t, 16> bytes_{};
};

// The bytes of an IP address, a mapped IPv4 address as IPv4. `size` 4 or 16; 0: no IP address.
struct IpBytes {
  explicit IpBytes(const Address& address) noexcept;
  std::array<std::uint8_t, 16> bytes{};
  int size = 0;
};

}  // namespace runloom::net
