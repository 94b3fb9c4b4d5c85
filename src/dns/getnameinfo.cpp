// getnameinfo, as glibc 2.36's.
#include <net/if.h>
#include <netdb.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstring>

#include "impl.hpp"
#include "lookup.hpp"
#include "runloom/dns/error.hpp"
#include "system.hpp"

namespace runloom::dns {
namespace {

constexpr int kIdnFlags = 0x20 | 0x40 | 0x80;  // NI_IDN and the two that are no more
constexpr int kKnownFlags =
    NI_NUMERICHOST | NI_NUMERICSERV | NI_NOFQDN | NI_NAMEREQD | NI_DGRAM | kIdnFlags;

std::string numeric_host(const net::Address& address) {
  std::string text = address.ip();
  if (const std::uint32_t scope = address.scope_id(); scope != 0) {
    char name[IF_NAMESIZE];
    if (address.is_link_local() && ::if_indextoname(scope, name)) {
      text += std::string("%") + name;
    } else {
      text += '%' + std::to_string(scope);
    }
  }
  return text;
}

// NI_NOFQDN: what hosts of this machine's own domain are called at home.
std::string without_own_domain(std::string name) {
  char own[256] = {};
  if (::gethostname(own, sizeof own - 1) != 0) return name;
  const char* domain = std::strchr(own, '.');
  if (domain && domain[1] != 0 && name.ends_with(domain))
    name.resize(name.size() - std::strlen(domain));
  return name;
}

IpAddress to_ip(const net::Address& address) noexcept {
  if (address.is_ipv4())
    return IpAddress::ipv4(reinterpret_cast<const sockaddr_in*>(address.data())->sin_addr);
  return IpAddress::ipv6(reinterpret_cast<const sockaddr_in6*>(address.data())->sin6_addr);
}

Result<NameInfo> of_unix(const net::Address& address, int flags) {
  NameInfo out;
  utsname system;
  out.host = (flags & NI_NUMERICHOST) == 0 && ::uname(&system) == 0 ? system.nodename : "localhost";
  out.service = address.unix_name();
  return out;
}

Result<NameInfo> get(Resolver::Impl& impl, const net::Address& address, int flags,
                     Deadline deadline) {
  if ((flags & ~kKnownFlags) != 0) return fail(DnsErrc::bad_flags);
  if (address.is_unix()) return of_unix(address, flags);
  if (!address.is_ip()) return fail(DnsErrc::family);
  NameInfo out;
  const bool numeric = (flags & NI_NUMERICHOST) != 0;
  // An address to be a number, and yet to have a name.
  if (numeric && (flags & NI_NAMEREQD)) return fail(DnsErrc::not_found);
  if (numeric && (flags & NI_NUMERICSERV)) {
    impl.state().counters.numeric.add();
    return NameInfo{numeric_host(address), std::to_string(address.port())};
  }
  RUNLOOM_TRY(const auto config, impl.state().config.get(deadline));
  if (!numeric) {
    auto name = lookup_address(impl, to_ip(address), *config, deadline);
    if (name) {
      out.host = flags & NI_NOFQDN ? without_own_domain(*std::move(name)) : *std::move(name);
    } else if (name.error() != DnsErrc::not_found && name.error() != DnsErrc::no_data) {
      return Unexpected{name.error()};
    } else if (flags & NI_NAMEREQD) {
      return fail(DnsErrc::not_found);
    }
  }
  if (out.host.empty()) out.host = numeric_host(address);
  if ((flags & NI_NUMERICSERV) == 0)
    out.service = config->services.name(address.port(), flags & NI_DGRAM ? "udp" : "tcp");
  if (out.service.empty()) out.service = std::to_string(address.port());
  return out;
}

}  // namespace

Result<NameInfo> Resolver::getnameinfo(const net::Address& address, int flags, Deadline deadline) {
  Impl& impl = *impl_;
  impl.state().counters.lookups.add();
  auto found = impl.uses_system() ? system_getnameinfo(impl, address, flags, deadline)
                                  : get(impl, address, flags, deadline);
  if (!found) impl.state().counters.failed.add();
  return found;
}

}  // namespace runloom::dns
