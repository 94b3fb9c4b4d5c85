// Address: where a socket is bound or connected, an IPv4, IPv6 or Unix address as the kernel has
// it. A plain value: copyable, comparable, hashable. Nothing here parks, and nothing resolves
// names; only numeric addresses are parsed.
//
// An IPv6 address keeps its scope (the interface that a link-local address belongs to) and its
// flow information through every conversion.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <system_error>

#include "runloom/sched/result.hpp"

namespace runloom::net {

// Why a text is no address. All compare equal to std::errc::invalid_argument, but for long_path,
// which is std::errc::filename_too_long (ENAMETOOLONG).
enum class AddressErrc {
  bad_ip = 1,    // neither a dotted quad nor an IPv6 address
  bad_port,      // not a decimal number from 0 to 65535
  no_port,       // the port is missing
  bad_brackets,  // an IPv6 address with a port is written [address]:port
  bad_scope,     // a scope on an IPv4 address, an unknown interface, or no 32-bit number
  bad_path,      // a Unix socket's name is empty, or a path holds a zero byte
  long_path,     // a Unix socket's name is longer than 107 bytes
};
const std::error_category& address_category() noexcept;
inline std::error_code make_error_code(AddressErrc e) noexcept {
  return {static_cast<int>(e), address_category()};
}

class Address {
 public:
  // No address: family() is AF_UNSPEC and size() 0.
  Address() noexcept { std::memset(&storage_, 0, sizeof storage_); }

  // "127.0.0.1:80", "[::1]:80", "[fe80::1%eth0]:80", "[fe80::1%2]:80", "unix:/run/x.sock",
  // "unix:@abstract". Strict: no spaces, no signs, no leading zeros in a dotted quad, no short
  // forms, no names. On failure `problem`, where given, gets a sentence that names the text at
  // fault.
  static Result<Address> parse(std::string_view text, std::string* problem = nullptr);
  // An IP address without port and brackets: "127.0.0.1", "::1", "fe80::1%eth0".
  static Result<Address> from_ip(std::string_view ip, std::uint16_t port,
                                 std::string* problem = nullptr);
  static Address from_ipv4(const in_addr& ip, std::uint16_t port) noexcept;
  static Address from_ipv6(const in6_addr& ip, std::uint16_t port, std::uint32_t scope_id = 0,
                           std::uint32_t flow_info = 0) noexcept;
  // A path of at most 107 bytes.
  static Result<Address> from_unix_path(std::string_view path, std::string* problem = nullptr);
  // A name in Linux's abstract namespace, of 1 to 107 bytes, zero bytes among them allowed.
  static Result<Address> from_unix_abstract(std::string_view name, std::string* problem = nullptr);
  // A Unix address without a name: what an end that was not bound has, and to bind to it lets the
  // kernel choose an abstract name (autobind).
  static Address unix_unnamed() noexcept;
  // What the kernel reported. Fails with EAFNOSUPPORT for other families and EINVAL for a size
  // that does not fit the family.
  static Result<Address> from_sockaddr(const sockaddr* address, socklen_t size) noexcept;

  // 0.0.0.0 and ::, which a listener takes for every local address.
  static Address any_ipv4(std::uint16_t port = 0) noexcept;
  static Address any_ipv6(std::uint16_t port = 0) noexcept;
  // 127.0.0.1 and ::1.
  static Address loopback_ipv4(std::uint16_t port = 0) noexcept;
  static Address loopback_ipv6(std::uint16_t port = 0) noexcept;

  // AF_INET, AF_INET6, AF_UNIX, or AF_UNSPEC.
  int family() const noexcept { return storage_.any.sa_family; }
  bool is_ipv4() const noexcept { return family() == AF_INET; }
  bool is_ipv6() const noexcept { return family() == AF_INET6; }
  bool is_ip() const noexcept { return is_ipv4() || is_ipv6(); }
  bool is_unix() const noexcept { return family() == AF_UNIX; }
  // 0.0.0.0 or ::.
  bool is_any() const noexcept;
  // In 127.0.0.0/8, ::1, or an IPv4 loopback mapped into IPv6.
  bool is_loopback() const noexcept;
  // IPv6 link-local (unicast or multicast): without a scope such an address can't be used.
  bool is_link_local() const noexcept;

  // Of IP addresses, in host byte order; 0 for others.
  std::uint16_t port() const noexcept;
  // The same IP address with another port; any other address unchanged.
  Address with_port(std::uint16_t port) const noexcept;
  // Of IPv6 addresses; 0 for others. The flow information is in network byte order, as the
  // kernel has it.
  std::uint32_t scope_id() const noexcept { return is_ipv6() ? storage_.ipv6.sin6_scope_id : 0; }
  std::uint32_t flow_info() const noexcept { return is_ipv6() ? storage_.ipv6.sin6_flowinfo : 0; }

  // The IP address without port and scope; empty for others.
  std::string ip() const;
  // The name of a Unix address; an abstract one begins with a zero byte. Empty when unnamed, and
  // for other families.
  std::string_view unix_name() const noexcept;
  // What parse() reads back: the scope is written as the interface's name where it has one, else
  // as its number. "unix:" for an unnamed Unix socket, "unspecified" for no address. Two kinds of
  // Unix names can't be read back: a path that begins with @, and an abstract name with bytes
  // that don't print, which are written \xNN.
  std::string to_string() const;

  // For system calls.
  const sockaddr* data() const noexcept { return &storage_.any; }
  socklen_t size() const noexcept { return size_; }
  // For system calls that report an address: they get kMostSize bytes at fill(), and filled() is
  // told how many they say it has, 0 for none.
  static constexpr socklen_t kMostSize = sizeof(sockaddr_un);
  sockaddr* fill() noexcept { return &storage_.any; }
  void filled(socklen_t size) noexcept {
    if (size < sizeof(sa_family_t)) storage_.any.sa_family = AF_UNSPEC;
    size_ = size < sizeof(sa_family_t) ? 0 : size;
  }

  // Every part counts: family, address, port, scope and flow information.
  friend bool operator==(const Address& a, const Address& b) noexcept;
  std::size_t hash() const noexcept;

 private:
  static Result<Address> from_unix_name(std::string_view name, bool abstract, std::string* problem);

  union Storage {
    sockaddr any;
    sockaddr_in ipv4;
    sockaddr_in6 ipv6;
    sockaddr_un local;
  } storage_;
  socklen_t size_ = 0;
};

}  // namespace runloom::net

template <>
struct std::is_error_code_enum<runloom::net::AddressErrc> : std::true_type {};
template <>
struct std::hash<runloom::net::Address> {
  std::size_t operator()(const runloom::net::Address& address) const noexcept {
    return address.hash();
  }
};
