// The C library's own resolver on the blocking pool, for RUNLOOM_DNS=system. The only calls of it.
#pragma once

#include "impl.hpp"

namespace runloom::dns {

Result<std::vector<AddressInfo>> system_getaddrinfo(Resolver::Impl& impl,
                                                    std::optional<std::string_view> host,
                                                    std::optional<std::string_view> service,
                                                    const Hints& hints, Deadline deadline);
Result<NameInfo> system_getnameinfo(Resolver::Impl& impl, const net::Address& address, int flags,
                                    Deadline deadline);

}  // namespace runloom::dns
