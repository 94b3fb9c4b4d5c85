// dial: a connection to a host by name, by whichever of its addresses answers first.
//
// Happy eyeballs, RFC 8305: addresses are tried in the order of getaddrinfo with the families
// taking turns, the next one when an attempt has failed or `attempt_delay` has passed since the
// last began. The first that connects wins; the others are closed before dial returns. When the
// answer for one family has come and the other has not `resolution_delay` later, the addresses of
// the one are tried, and the other's join them when they come. An OS thread waits for both and
// tries one address after the other.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runloom/dns/resolver.hpp"
#include "runloom/net/options.hpp"
#include "runloom/net/tcp_stream.hpp"
#include "runloom/sched/deadline.hpp"
#include "runloom/sched/result.hpp"

namespace runloom::dns {

struct DialOptions {
  std::chrono::milliseconds attempt_delay{250};
  std::chrono::milliseconds resolution_delay{50};
  int family = AF_UNSPEC;         // AF_INET, AF_INET6: only such addresses
  std::size_t first_family = 1;   // addresses of the preferred family before the other's first
  net::ConnectOptions connect{};  // `local` limits the attempts to its family
  Resolver* resolver = nullptr;   // null: the process's
};

// What became of one address.
struct DialFailure {
  net::Address address;
  std::error_code error;
};

// "example.org:443", "192.0.2.1:80", "[::1]:80", "[fe80::1%eth0]:https". Parks; a cancel point. On
// failure with the first address's error, or why the name has none; EINVAL when `target` has no
// port. `problem`, where given, gets a sentence that names the host and every address that failed
// and why; `failures` the same as values.
Result<net::TcpStream> dial(std::string_view target, const DialOptions& options = {},
                            Deadline deadline = {}, std::string* problem = nullptr,
                            std::vector<DialFailure>* failures = nullptr);
// The same with the parts by themselves; the service is a number or a name ("https").
Result<net::TcpStream> dial_host(std::string_view host, std::string_view service,
                                 const DialOptions& options = {}, Deadline deadline = {},
                                 std::string* problem = nullptr,
                                 std::vector<DialFailure>* failures = nullptr);
// Happy eyeballs over addresses that are known, as they stand; the families take turns.
Result<net::TcpStream> dial_addresses(std::vector<net::Address> addresses,
                                      const DialOptions& options = {}, Deadline deadline = {},
                                      std::vector<DialFailure>* failures = nullptr);

// "host:service" in its parts, the brackets of an IPv6 address taken off. EINVAL.
struct HostAndService {
  std::string host;
  std::string service;
};
Result<HostAndService> split_target(std::string_view target);

}  // namespace runloom::dns
