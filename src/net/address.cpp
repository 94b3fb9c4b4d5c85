#include "runloom/net/address.hpp"

#include <arpa/inet.h>
#include <net/if.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <limits>

namespace runloom::net {
namespace {

constexpr std::size_t kUnixHeader = offsetof(sockaddr_un, sun_path);
// One byte less than fits: a path is ended by a zero byte, and an abstract name begins with one.
constexpr std::size_t kMaxUnixName = sizeof(sockaddr_un::sun_path) - 1;
constexpr std::string_view kUnixPrefix = "unix:";

class AddressCategory final : public std::error_category {
 public:
  const char* name() const noexcept override { return "runloom.address"; }
  std::string message(int value) const override {
    switch (static_cast<AddressErrc>(value)) {
      case AddressErrc::bad_ip:
        return "not a numeric IPv4 or IPv6 address";
      case AddressErrc::bad_port:
        return "the port is no number from 0 to 65535";
      case AddressErrc::no_port:
        return "the port is missing";
      case AddressErrc::bad_brackets:
        return "an IPv6 address with a port is written [address]:port";
      case AddressErrc::bad_scope:
        return "the scope of the address is no interface of this machine";
      case AddressErrc::bad_path:
        return "a Unix socket's name is empty, or a path has a zero byte";
      case AddressErrc::long_path:
        return "a Unix socket's name has at most 107 bytes";
    }
    return "unknown address error";
  }
  std::error_condition default_error_condition(int value) const noexcept override {
    return std::make_error_condition(static_cast<AddressErrc>(value) == AddressErrc::long_path
                                         ? std::errc::filename_too_long
                                         : std::errc::invalid_argument);
  }
};

std::string quoted(std::string_view text) {
  std::string out(1, '"');
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      out += c;
    } else {
      constexpr std::string_view digits = "0123456789abcdef";
      out += "\\x";
      out += digits[byte >> 4];
      out += digits[byte & 15];
    }
  }
  out += '"';
  return out;
}

// The failure `error`, with `part` of `text` named as what is wrong.
Unexpected refuse(std::error_code error, std::string_view text, std::string_view part,
                  std::string* problem) {
  if (problem) {
    *problem = quoted(text);
    if (part != text) *problem += ": " + quoted(part);
    *problem += ": " + error.message();
  }
  return fail(error);
}

// A decimal number that fills the text: from_chars takes no sign for unsigned types and no space.
template <class T>
bool to_number(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// Zero-terminates for inet_pton and if_nametoindex; false when it can't be a whole text there.
template <std::size_t Size>
bool terminate(std::string_view text, std::array<char, Size>& out) {
  if (text.size() >= Size || text.find('\0') != std::string_view::npos) return false;
  std::copy(text.begin(), text.end(), out.begin());
  out[text.size()] = '\0';
  return true;
}

// Names come before numbers, as in getaddrinfo: an interface may be called "7", and to_string
// writes names.
Result<std::uint32_t> parse_scope(std::string_view scope) {
  std::array<char, IF_NAMESIZE> name{};
  int error = ENODEV;
  if (!scope.empty() && terminate(scope, name)) {
    if (const unsigned index = ::if_nametoindex(name.data())) return index;
    error = errno;
  }
  std::uint32_t number = 0;
  if (to_number(scope, number)) return number;
  // Out of descriptors or memory says nothing about the text.
  if (error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS)
    return fail_errno(error);
  return fail(make_error_code(AddressErrc::bad_scope));
}

Result<Address> parse_ip(std::string_view ip, std::uint16_t port, std::string_view whole,
                         std::string* problem) {
  const std::size_t percent = ip.find('%');
  const std::string_view number = ip.substr(0, percent);
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (!terminate(number, text)) return refuse(AddressErrc::bad_ip, whole, ip, problem);

  in_addr ipv4{};
  if (::inet_pton(AF_INET, text.data(), &ipv4) == 1) {
    if (percent != std::string_view::npos)
      return refuse(AddressErrc::bad_scope, whole, ip.substr(percent + 1), problem);
    return Address::from_ipv4(ipv4, port);
  }
  in6_addr ipv6{};
  if (::inet_pton(AF_INET6, text.data(), &ipv6) != 1)
    return refuse(AddressErrc::bad_ip, whole, ip, problem);
  std::uint32_t scope_id = 0;
  if (percent != std::string_view::npos) {
    const std::string_view scope = ip.substr(percent + 1);
    const auto parsed = parse_scope(scope);
    if (!parsed) return refuse(parsed.error(), whole, scope, problem);
    scope_id = *parsed;
  }
  return Address::from_ipv6(ipv6, port, scope_id);
}

bool v4_mapped_loopback(const in6_addr& ip) noexcept {
  return IN6_IS_ADDR_V4MAPPED(&ip) && ip.s6_addr[12] == 127;
}

}  // namespace

const std::error_category& address_category() noexcept {
  static const AddressCategory category;
  return category;
}

Result<Address> Address::parse(std::string_view text, std::string* problem) {
  if (text.starts_with(kUnixPrefix)) {
    const std::string_view name = text.substr(kUnixPrefix.size());
    if (name.starts_with('@')) return from_unix_name(name.substr(1), true, problem);
    return from_unix_name(name, false, problem);
  }

  std::string_view ip;
  std::string_view rest;
  if (text.starts_with('[')) {
    const std::size_t bracket = text.find(']');
    if (bracket == std::string_view::npos)
      return refuse(AddressErrc::bad_brackets, text, text, problem);
    ip = text.substr(1, bracket - 1);
    rest = text.substr(bracket + 1);
    // Brackets are for what has colons of its own.
    if (ip.find(':') == std::string_view::npos)
      return refuse(AddressErrc::bad_brackets, text, ip, problem);
  } else {
    const std::size_t colon = text.find(':');
    if (colon != text.rfind(':')) return refuse(AddressErrc::bad_brackets, text, text, problem);
    ip = text.substr(0, colon);
    rest = colon == std::string_view::npos ? std::string_view() : text.substr(colon);
  }
  if (rest.empty() || rest == ":") return refuse(AddressErrc::no_port, text, text, problem);
  if (rest.front() != ':') return refuse(AddressErrc::bad_brackets, text, rest, problem);
  rest.remove_prefix(1);
  std::uint16_t port = 0;
  if (!to_number(rest, port)) return refuse(AddressErrc::bad_port, text, rest, problem);
  return parse_ip(ip, port, text, problem);
}

Result<Address> Address::from_ip(std::string_view ip, std::uint16_t port, std::string* problem) {
  return parse_ip(ip, port, ip, problem);
}

Address Address::from_ipv4(const in_addr& ip, std::uint16_t port) noexcept {
  Address out;
  out.storage_.ipv4.sin_family = AF_INET;
  out.storage_.ipv4.sin_port = htons(port);
  out.storage_.ipv4.sin_addr = ip;
  out.size_ = sizeof(sockaddr_in);
  return out;
}

Address Address::from_ipv6(const in6_addr& ip, std::uint16_t port, std::uint32_t scope_id,
                           std::uint32_t flow_info) noexcept {
  Address out;
  out.storage_.ipv6.sin6_family = AF_INET6;
  out.storage_.ipv6.sin6_port = htons(port);
  out.storage_.ipv6.sin6_flowinfo = flow_info;
  out.storage_.ipv6.sin6_addr = ip;
  out.storage_.ipv6.sin6_scope_id = scope_id;
  out.size_ = sizeof(sockaddr_in6);
  return out;
}

Result<Address> Address::from_unix_path(std::string_view path, std::string* problem) {
  return from_unix_name(path, false, problem);
}

Result<Address> Address::from_unix_abstract(std::string_view name, std::string* problem) {
  return from_unix_name(name, true, problem);
}

Result<Address> Address::from_unix_name(std::string_view name, bool abstract,
                                        std::string* problem) {
  const bool has_zero = !abstract && name.find('\0') != std::string_view::npos;
  if (name.empty() || has_zero) return refuse(AddressErrc::bad_path, name, name, problem);
  if (name.size() > kMaxUnixName) return refuse(AddressErrc::long_path, name, name, problem);
  Address out;
  out.storage_.local.sun_family = AF_UNIX;
  std::memcpy(out.storage_.local.sun_path + (abstract ? 1 : 0), name.data(), name.size());
  // Either way one zero byte belongs to it: in front of an abstract name, behind a path.
  out.size_ = static_cast<socklen_t>(kUnixHeader + name.size() + 1);
  return out;
}

Address Address::unix_unnamed() noexcept {
  Address out;
  out.storage_.local.sun_family = AF_UNIX;
  out.size_ = static_cast<socklen_t>(kUnixHeader);
  return out;
}

Result<Address> Address::from_sockaddr(const sockaddr* address, socklen_t size) noexcept {
  if (!address || size < sizeof(address->sa_family)) return fail_errno(EINVAL);
  // The caller's buffer may be a sockaddr_storage or plain bytes; copies are safe for both.
  sa_family_t family = AF_UNSPEC;
  std::memcpy(&family, reinterpret_cast<const char*>(address) + offsetof(sockaddr, sa_family),
              sizeof family);
  Address out;
  switch (family) {
    case AF_INET:
      if (size < sizeof(sockaddr_in)) return fail_errno(EINVAL);
      out.size_ = sizeof(sockaddr_in);
      std::memcpy(&out.storage_, address, offsetof(sockaddr_in, sin_zero));
      return out;
    case AF_INET6:
      if (size < sizeof(sockaddr_in6)) return fail_errno(EINVAL);
      out.size_ = sizeof(sockaddr_in6);
      std::memcpy(&out.storage_, address, sizeof(sockaddr_in6));
      return out;
    case AF_UNIX: {
      // A path that fills sun_path is reported with a size that counts the zero byte it has no room
      // for.
      if (size == sizeof(sockaddr_un) + 1) --size;
      if (size > sizeof(sockaddr_un)) return fail_errno(EINVAL);
      std::memcpy(&out.storage_, address, size);
      out.size_ = size;
      // Everything up to the first zero byte is a path; equal paths get equal sizes.
      const char* path = out.storage_.local.sun_path;
      const std::size_t room = size - kUnixHeader;
      if (room > 0 && path[0] != '\0') {
        const std::size_t length = ::strnlen(path, room);
        out.size_ = static_cast<socklen_t>(std::min(kUnixHeader + length + 1, sizeof(sockaddr_un)));
        std::memset(out.storage_.local.sun_path + length, 0,
                    sizeof(sockaddr_un::sun_path) - length);
      }
      return out;
    }
    default:
      return fail_errno(EAFNOSUPPORT);
  }
}

Address Address::any_ipv4(std::uint16_t port) noexcept {
  return from_ipv4(in_addr{htonl(INADDR_ANY)}, port);
}

Address Address::any_ipv6(std::uint16_t port) noexcept {
  return from_ipv6(in6addr_any, port);
}

Address Address::loopback_ipv4(std::uint16_t port) noexcept {
  return from_ipv4(in_addr{htonl(INADDR_LOOPBACK)}, port);
}

Address Address::loopback_ipv6(std::uint16_t port) noexcept {
  return from_ipv6(in6addr_loopback, port);
}

bool Address::is_any() const noexcept {
  if (is_ipv4()) return storage_.ipv4.sin_addr.s_addr == htonl(INADDR_ANY);
  return is_ipv6() && IN6_IS_ADDR_UNSPECIFIED(&storage_.ipv6.sin6_addr);
}

bool Address::is_loopback() const noexcept {
  if (is_ipv4()) return (ntohl(storage_.ipv4.sin_addr.s_addr) >> 24) == 127;
  if (!is_ipv6()) return false;
  const in6_addr& ip = storage_.ipv6.sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&ip) || v4_mapped_loopback(ip);
}

bool Address::is_link_local() const noexcept {
  if (!is_ipv6()) return false;
  const in6_addr& ip = storage_.ipv6.sin6_addr;
  return IN6_IS_ADDR_LINKLOCAL(&ip) || IN6_IS_ADDR_MC_LINKLOCAL(&ip);
}

std::uint16_t Address::port() const noexcept {
  if (is_ipv4()) return ntohs(storage_.ipv4.sin_port);
  if (is_ipv6()) return ntohs(storage_.ipv6.sin6_port);
  return 0;
}

Address Address::with_port(std::uint16_t port) const noexcept {
  Address out = *this;
  if (is_ipv4()) out.storage_.ipv4.sin_port = htons(port);
  if (is_ipv6()) out.storage_.ipv6.sin6_port = htons(port);
  return out;
}

std::string Address::ip() const {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (is_ipv4()) ::inet_ntop(AF_INET, &storage_.ipv4.sin_addr, text.data(), text.size());
  if (is_ipv6()) ::inet_ntop(AF_INET6, &storage_.ipv6.sin6_addr, text.data(), text.size());
  return text.data();
}

std::string_view Address::unix_name() const noexcept {
  if (!is_unix() || size_ <= kUnixHeader) return {};
  const char* path = storage_.local.sun_path;
  const std::size_t room = size_ - kUnixHeader;
  return path[0] == '\0' ? std::string_view(path, room)
                         : std::string_view(path, ::strnlen(path, room));
}

std::string Address::to_string() const {
  if (is_ipv4()) return ip() + ':' + std::to_string(port());
  if (is_ipv6()) {
    std::string out = '[' + ip();
    if (const std::uint32_t scope = scope_id()) {
      std::array<char, IF_NAMESIZE> name{};
      out += '%';
      out += ::if_indextoname(scope, name.data()) ? name.data() : std::to_string(scope);
    }
    return out + "]:" + std::to_string(port());
  }
  if (is_unix()) {
    const std::string_view name = unix_name();
    if (!name.starts_with('\0')) return std::string(kUnixPrefix) + std::string(name);
    std::string text = quoted(name.substr(1));
    return std::string(kUnixPrefix) + '@' + text.substr(1, text.size() - 2);
  }
  return "unspecified";
}

bool operator==(const Address& a, const Address& b) noexcept {
  if (a.family() != b.family()) return false;
  if (a.is_unix()) return a.unix_name() == b.unix_name();
  // Every constructor leaves the padding zero.
  return std::memcmp(&a.storage_, &b.storage_, a.size_) == 0;
}

std::size_t Address::hash() const noexcept {
  const std::hash<std::string_view> hash;
  if (is_unix()) return hash(unix_name());
  return hash({reinterpret_cast<const char*>(&storage_), size_});
}

}  // namespace runloom::net
