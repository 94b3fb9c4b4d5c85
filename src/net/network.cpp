#include "runloom/net/network.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>

namespace runloom::net {

IpBytes::IpBytes(const Address& address) noexcept {
  constexpr std::array<std::uint8_t, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  if (address.is_ipv4()) {
    sockaddr_in ipv4;
    std::memcpy(&ipv4, address.data(), sizeof ipv4);
    std::memcpy(bytes.data(), &ipv4.sin_addr, 4);
    size = 4;
  } else if (address.is_ipv6()) {
    sockaddr_in6 ipv6;
    std::memcpy(&ipv6, address.data(), sizeof ipv6);
    std::memcpy(bytes.data(), &ipv6.sin6_addr, 16);
    size = 16;
    if (std::equal(kMapped.begin(), kMapped.end(), bytes.begin())) {
      std::copy(bytes.begin() + 12, bytes.end(), bytes.begin());
      std::fill(bytes.begin() + 4, bytes.end(), std::uint8_t{0});
      size = 4;
    }
  }
}

namespace {

// Whether the first `prefix` bits agree.
bool same_prefix(const std::array<std::uint8_t, 16>& a, const std::array<std::uint8_t, 16>& b,
                 int prefix) noexcept {
  const auto whole = static_cast<std::size_t>(prefix / 8);
  if (std::memcmp(a.data(), b.data(), whole) != 0) return false;
  const int rest = prefix % 8;
  return rest == 0 || ((a[whole] ^ b[whole]) >> (8 - rest)) == 0;
}

Unexpected refuse(std::string_view text, const char* why, std::string* problem) {
  if (problem) {
    problem->assign("network \"");
    for (const char c : text)
      problem->push_back(c >= 0x20 && c < 0x7f ? c : '?');
    problem->append("\": ").append(why);
  }
  return fail_errno(EINVAL);
}

}  // namespace

Result<Network> Network::parse(std::string_view text, std::string* problem) {
  Network out;
  if (text == "unix:") {
    out.family_ = AF_UNIX;
    return out;
  }
  const std::size_t slash = text.find('/');
  const std::string_view ip = text.substr(0, slash);
  const auto address = Address::from_ip(ip, 0);
  if (!address || ip.find('%') != std::string_view::npos)
    return refuse(text, "it does not begin with an IP address", problem);
  const IpBytes bytes(*address);
  // What is mapped is compared as IPv4, so a network of such addresses could never match.
  if (bytes.size == 4 && address->is_ipv6())
    return refuse(text, "an IPv4 network is written as such", problem);
  out.family_ = address->family();
  out.bytes_ = bytes.bytes;
  const int bits = bytes.size * 8;
  out.prefix_ = bits;
  if (slash != std::string_view::npos) {
    const std::string_view length = text.substr(slash + 1);
    const auto [end, error] =
        std::from_chars(length.data(), length.data() + length.size(), out.prefix_);
    const bool plain = !length.empty() && length[0] != '-' && (length[0] != '0' || length == "0");
    if (error != std::errc() || end != length.data() + length.size() || !plain ||
        out.prefix_ > bits)
      return refuse(text, "behind the slash stands no length that the address has", problem);
  }
  for (int bit = out.prefix_; bit < bits; ++bit)
    if ((out.bytes_[static_cast<std::size_t>(bit / 8)] >> (7 - bit % 8)) & 1)
      return refuse(text, "bits behind the prefix are set", problem);
  return out;
}

bool Network::contains(const Address& address) const noexcept {
  if (family_ == AF_UNIX) return address.is_unix();
  const IpBytes ip(address);
  if (ip.size != (family_ == AF_INET ? 4 : family_ == AF_INET6 ? 16 : -1)) return false;
  return same_prefix(ip.bytes, bytes_, prefix_);
}

std::string Network::to_string() const {
  if (family_ == AF_UNIX) return "unix:";
  in_addr ipv4{};
  in6_addr ipv6{};
  std::memcpy(&ipv4, bytes_.data(), sizeof ipv4);
  std::memcpy(&ipv6, bytes_.data(), sizeof ipv6);
  const Address address =
      family_ == AF_INET ? Address::from_ipv4(ipv4, 0) : Address::from_ipv6(ipv6, 0);
  return address.ip() + '/' + std::to_string(prefix_);
}

}  // namespace runloom::net
