// getaddrinfo: what glibc 2.36's does, in its order: arguments, service, numeric forms, the
// sources, sorting. Differences stand in docs/dns.md.
#include <netdb.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>

#include "impl.hpp"
#include "lookup.hpp"
#include "numeric.hpp"
#include "runloom/dns/error.hpp"
#include "sort.hpp"
#include "system.hpp"

namespace runloom::dns {
namespace {

constexpr int kIdn = 0x0040, kCanonIdn = 0x0080, kOldIdn = 0x0300;  // AI_IDN and its kin
constexpr int kKnownFlags = AI_PASSIVE | AI_CANONNAME | AI_NUMERICHOST | AI_V4MAPPED | AI_ALL |
                            AI_ADDRCONFIG | AI_NUMERICSERV | kIdn | kCanonIdn | kOldIdn;

struct Protocol {
  int socktype;
  int protocol;
  bool any_protocol;  // the caller's
  bool no_service;
  bool by_default;
  const char* name;  // in the services file
};
constexpr Protocol kProtocols[] = {
    {SOCK_STREAM, IPPROTO_TCP, false, false, true, "tcp"},
    {SOCK_DGRAM, IPPROTO_UDP, false, false, true, "udp"},
    {SOCK_DCCP, IPPROTO_DCCP, false, false, false, "dccp"},
    {SOCK_DGRAM, IPPROTO_UDPLITE, false, false, false, "udplite"},
    {SOCK_STREAM, IPPROTO_SCTP, false, false, false, "sctp"},
    {SOCK_SEQPACKET, IPPROTO_SCTP, false, false, false, "sctp"},
    {SOCK_RAW, 0, true, true, true, "raw"},
};

struct ServiceTuple {
  int socktype;
  int protocol;
  std::uint16_t port;
};
using ServiceTuples = std::vector<ServiceTuple>;

bool matches(const Protocol& known, const Hints& hints) noexcept {
  if (hints.socktype != 0 && hints.socktype != known.socktype) return false;
  return hints.protocol == 0 || known.any_protocol || hints.protocol == known.protocol;
}

// strtoul(3) on the whole text; false: it is a name. A negative number is one, too, as glibc has
// it, although AI_NUMERICSERV lets it pass.
bool is_number(const std::string& text, int& number) noexcept {
  char* end = nullptr;
  number = static_cast<int>(std::strtoul(text.c_str(), &end, 10));
  return end == text.c_str() + text.size();
}

// Without `services` only what needs no file: none when a file is needed.
std::optional<Result<ServiceTuples>> find_service(const std::optional<std::string>& service,
                                                  const Hints& hints, const Services* services) {
  int number = 0;
  if (service && !is_number(*service, number)) {
    if (hints.flags & AI_NUMERICSERV) return fail(DnsErrc::not_found);
    number = -1;
  }
  const bool chosen = hints.socktype != 0 || hints.protocol != 0;
  const Protocol* known = std::begin(kProtocols);
  if (chosen) {
    known = std::find_if(std::begin(kProtocols), std::end(kProtocols),
                         [&](const Protocol& p) { return matches(p, hints); });
    if (known == std::end(kProtocols))
      return fail(hints.socktype != 0 ? DnsErrc::socket_type : DnsErrc::service);
    if (service && known->no_service) return fail(DnsErrc::service);
  }
  const auto tuple = [&](const Protocol& p, std::uint16_t port) {
    return ServiceTuple{p.socktype, p.any_protocol ? hints.protocol : p.protocol, port};
  };
  ServiceTuples tuples;
  if (number >= 0) {
    const auto port = static_cast<std::uint16_t>(number);
    if (chosen) return ServiceTuples{tuple(*known, port)};
    for (const Protocol& p : kProtocols)
      if (p.by_default) tuples.push_back(tuple(p, port));
    return tuples;
  }
  if (!services) return std::nullopt;
  if (chosen) {
    const auto port = services->port(*service, known->name);
    if (!port) return fail(DnsErrc::service);
    return ServiceTuples{tuple(*known, *port)};
  }
  for (const Protocol& p : kProtocols) {
    if (p.no_service) continue;
    if (const auto port = services->port(*service, p.name)) tuples.push_back(tuple(p, *port));
  }
  if (tuples.empty()) return fail(DnsErrc::service);
  return tuples;
}

// A host that is a number. None: it is a name.
std::optional<Result<IpAddress>> parse_numeric(std::string_view host, const Hints& hints) {
  if (const auto ip = parse_ipv4_legacy(host)) {
    if (hints.family != AF_INET6) return IpAddress::ipv4(*ip);
    if (hints.flags & AI_V4MAPPED) return mapped(IpAddress::ipv4(*ip));
    return fail(DnsErrc::address_family);
  }
  const std::size_t percent = host.find('%');
  const auto ip = parse_ipv6(host.substr(0, percent));
  if (!ip) return std::nullopt;
  IpAddress address = IpAddress::ipv6(*ip);
  if (hints.family == AF_INET) {
    if (!IN6_IS_ADDR_V4MAPPED(&*ip)) return fail(DnsErrc::address_family);
    in_addr ipv4;
    std::copy_n(ip->s6_addr + 12, 4, reinterpret_cast<std::uint8_t*>(&ipv4));
    address = IpAddress::ipv4(ipv4);
  }
  if (percent != std::string_view::npos) {
    const auto scope = parse_scope(*ip, host.substr(percent + 1));
    if (!scope) return fail(DnsErrc::not_found);
    if (address.family == AF_INET6) address.scope = *scope;
  }
  return address;
}

std::vector<IpAddress> without_host(const Hints& hints) {
  const bool passive = (hints.flags & AI_PASSIVE) != 0;
  std::vector<IpAddress> out;
  if (hints.family != AF_INET)
    out.push_back(IpAddress::ipv6(passive ? in6addr_any : in6addr_loopback));
  if (hints.family != AF_INET6)
    out.push_back(IpAddress::ipv4({htonl(passive ? INADDR_ANY : INADDR_LOOPBACK)}));
  return out;
}

net::Address to_address(const IpAddress& ip, std::uint16_t port) noexcept {
  return ip.family == AF_INET ? net::Address::from_ipv4(ip.as_ipv4(), port)
                              : net::Address::from_ipv6(ip.bytes, port, ip.scope);
}

std::vector<AddressInfo> combine(const std::vector<IpAddress>& addresses,
                                 const ServiceTuples& services, std::string canonical) {
  std::vector<AddressInfo> out;
  out.reserve(addresses.size() * services.size());
  for (const IpAddress& address : addresses)
    for (const ServiceTuple& service : services)
      out.push_back({address.family, service.socktype, service.protocol,
                     to_address(address, service.port), std::string()});
  if (!out.empty()) out.front().canonical_name = std::move(canonical);
  return out;
}

// Checks the arguments, and narrows the family to what the machine has (AI_ADDRCONFIG).
Result<void> check(const std::optional<std::string>& host, Hints& hints) {
  if ((hints.flags & ~kKnownFlags) != 0) return fail(DnsErrc::bad_flags);
  if ((hints.flags & AI_CANONNAME) && !host) return fail(DnsErrc::bad_flags);
  if (hints.family != AF_UNSPEC && hints.family != AF_INET && hints.family != AF_INET6)
    return fail(DnsErrc::family);
  if ((hints.flags & AI_ADDRCONFIG) == 0) return {};
  const auto local = local_addresses();
  if (hints.family == AF_UNSPEC) {
    if (local->has_ipv4 != local->has_ipv6) hints.family = local->has_ipv4 ? AF_INET : AF_INET6;
  } else if (hints.family == AF_INET ? !local->has_ipv4 : !local->has_ipv6) {
    return fail(DnsErrc::not_found);
  }
  return {};
}

bool is_ascii(std::string_view text) noexcept {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= 0; });
}

// An argument as the C function gets it: a string without zero bytes.
Result<std::optional<std::string>> argument(std::optional<std::string_view> text) {
  if (!text || *text == "*") return std::optional<std::string>();
  if (text->find('\0') != std::string_view::npos) return fail(DnsErrc::not_found);
  return std::optional<std::string>(*text);
}

Result<std::vector<AddressInfo>> get(Resolver::Impl& impl, std::optional<std::string_view> host,
                                     std::optional<std::string_view> service, Hints hints,
                                     Deadline deadline, const Resolver::Early* early) {
  RUNLOOM_TRY(const auto name, argument(host));
  RUNLOOM_TRY(auto service_name, argument(service));
  if (!name && !service_name) return fail(DnsErrc::not_found);
  if (auto ok = check(name, hints); !ok) return Unexpected{ok.error()};
  if (service_name && service_name->empty()) service_name.reset();

  std::shared_ptr<const Config> config;
  auto tuples = find_service(service_name, hints, nullptr);
  if (!tuples) {
    RUNLOOM_TRY(config, impl.state().config.get(deadline));
    tuples = find_service(service_name, hints, &config->services);
  }
  if (!*tuples) return Unexpected{tuples->error()};

  const bool wants_canonical = (hints.flags & AI_CANONNAME) != 0;
  if (!name) {
    impl.state().counters.numeric.add();
    auto addresses = without_host(hints);
    if (addresses.size() > 1) {
      // Sorted as any others, so the machine's addresses and routes decide which is first.
      RUNLOOM_TRY(config, impl.state().config.get(deadline));
      sort_addresses(addresses, config->gai);
    }
    return combine(addresses, **tuples, {});
  }
  if (const auto numeric = parse_numeric(*name, hints)) {
    if (!*numeric) return Unexpected{numeric->error()};
    impl.state().counters.numeric.add();
    return combine({**numeric}, **tuples, wants_canonical ? *name : std::string());
  }
  if (hints.flags & AI_NUMERICHOST) return fail(DnsErrc::not_found);
  if ((hints.flags & kIdn) && !is_ascii(*name)) return fail(DnsErrc::bad_name);
  if (!config) {
    RUNLOOM_TRY(config, impl.state().config.get(deadline));
  }
  EarlyFound part;
  if (early) {
    part.delay = early->delay;
    part.tell = [&](Found found) {
      sort_addresses(found.addresses, config->gai);
      early->tell(combine(found.addresses, **tuples, {}));
    };
  }
  RUNLOOM_TRY(auto found,
              lookup_name(impl, {*name, hints.family, hints.flags, early ? &part : nullptr},
                          *config, deadline));
  sort_addresses(found.addresses, config->gai);
  return combine(found.addresses, **tuples,
                 wants_canonical ? std::move(found.canonical) : std::string());
}

}  // namespace

Result<std::vector<AddressInfo>> Resolver::getaddrinfo(std::optional<std::string_view> host,
                                                       std::optional<std::string_view> service,
                                                       const Hints& hints, Deadline deadline,
                                                       const Early* early) {
  Impl& impl = *impl_;
  impl.state().counters.lookups.add();
  auto found = impl.uses_system() ? system_getaddrinfo(impl, host, service, hints, deadline)
                                  : get(impl, host, service, hints, deadline, early);
  if (!found) impl.state().counters.failed.add();
  return found;
}

Result<std::vector<net::Address>> Resolver::resolve(std::string_view host, std::uint16_t port,
                                                    Deadline deadline) {
  if (host.size() > 1 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  RUNLOOM_TRY(const auto found,
              getaddrinfo(host, std::to_string(port), {.socktype = SOCK_STREAM}, deadline));
  std::vector<net::Address> out;
  out.reserve(found.size());
  for (const AddressInfo& info : found)
    out.push_back(info.address);
  return out;
}

}  // namespace runloom::dns
