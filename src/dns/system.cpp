#include "system.hpp"

#include <netdb.h>

#include "runloom/dns/error.hpp"
#include "runloom/sched/blocking.hpp"

namespace runloom::dns {
namespace {

std::error_code failure_of(int code, int err) noexcept {
  return code == EAI_SYSTEM ? errno_code(err) : from_eai(code);
}

}  // namespace

Result<std::vector<AddressInfo>> system_getaddrinfo(Resolver::Impl& impl,
                                                    std::optional<std::string_view> host,
                                                    std::optional<std::string_view> service,
                                                    const Hints& hints, Deadline deadline) {
  impl.state().counters.system_calls.add();
  for (const auto& text : {host, service})
    if (text && text->find('\0') != std::string_view::npos) return fail(DnsErrc::not_found);
  // Once begun the call is waited for, so it may use what stands here.
  const std::string host_text(host.value_or("")), service_text(service.value_or(""));
  addrinfo wanted{};
  wanted.ai_flags = hints.flags;
  wanted.ai_family = hints.family;
  wanted.ai_socktype = hints.socktype;
  wanted.ai_protocol = hints.protocol;
  return blocking(
      [&]() -> Result<std::vector<AddressInfo>> {
        addrinfo* list = nullptr;
        const int code = ::getaddrinfo(host ? host_text.c_str() : nullptr,
                                       service ? service_text.c_str() : nullptr, &wanted, &list);
        if (code != 0) return fail(failure_of(code, errno));
        std::vector<AddressInfo> out;
        for (const addrinfo* at = list; at; at = at->ai_next) {
          auto address = net::Address::from_sockaddr(at->ai_addr, at->ai_addrlen);
          if (!address) continue;
          out.push_back({at->ai_family, at->ai_socktype, at->ai_protocol, *address,
                         at->ai_canonname ? at->ai_canonname : ""});
        }
        ::freeaddrinfo(list);
        return out;
      },
      deadline);
}

Result<NameInfo> system_getnameinfo(Resolver::Impl& impl, const net::Address& address, int flags,
                                    Deadline deadline) {
  impl.state().counters.system_calls.add();
  return blocking(
      [&]() -> Result<NameInfo> {
        char host[NI_MAXHOST], service[NI_MAXSERV];
        const int code = ::getnameinfo(address.data(), address.size(), host, sizeof host, service,
                                       sizeof service, flags);
        if (code != 0) return fail(failure_of(code, errno));
        return NameInfo{host, service};
      },
      deadline);
}

}  // namespace runloom::dns
