// Addresses as numbers, as glibc's getaddrinfo takes them: strict IPv6, and IPv4 in every form that
// inet_aton(3) knows ("127.1", "0x7f.1", "017700000001"), with nothing behind. No parking.
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <optional>
#include <string_view>

namespace runloom::dns {

std::optional<in_addr> parse_ipv4_legacy(std::string_view text) noexcept;
// Four decimal numbers, as inet_pton(3).
std::optional<in_addr> parse_ipv4(std::string_view text) noexcept;
// Without a scope.
std::optional<in6_addr> parse_ipv6(std::string_view text) noexcept;
// What stands behind the %: an interface's name, for link-local addresses only, or a number.
std::optional<std::uint32_t> parse_scope(const in6_addr& ip, std::string_view text) noexcept;

}  // namespace runloom::dns
