// Resolver: names to addresses and back without a thread: getaddrinfo(3) and getnameinfo(3) with
// glibc's results, their order and their errors, and queries for records.
//
// Any fiber and any OS thread may use a resolver at the same time. Calls that may ask a server or
// a file park (on an OS thread: block), are cancel points, and fail with Errc::cancelled or
// timed_out when the caller's own deadline passes; other waiters for the same question go on.
// Numeric addresses are answered without parking.
//
// Where glibc's answer differs, docs/dns.md says so. The environment counts as for glibc:
// RES_OPTIONS, LOCALDOMAIN.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runloom/dns/error.hpp"
#include "runloom/dns/options.hpp"
#include "runloom/dns/record.hpp"
#include "runloom/net/address.hpp"
#include "runloom/sched/deadline.hpp"
#include "runloom/sched/result.hpp"

namespace runloom::dns {

class Resolver {
 public:
  // Reads nothing yet.
  explicit Resolver(ResolverOptions options = {});
  // No call may be in progress.
  ~Resolver();
  Resolver(const Resolver&) = delete;
  Resolver& operator=(const Resolver&) = delete;

  // The process's resolver, made on first use with default options; never destroyed.
  static Resolver& process();

  // For who can begin with a part of the addresses (RFC 8305, 3): when the servers have given those
  // of one family, and `delay` later have not answered for the other, tell() gets them, at most
  // once, on the calling fiber. It must not park. An OS thread is never told.
  struct Early {
    std::chrono::nanoseconds delay{0};
    std::function<void(std::vector<AddressInfo>)> tell;
  };

  // getaddrinfo(3). A host of none is the null pointer: the loopback or, with AI_PASSIVE, any
  // address. A service is a name of the services file or a number. Fails with DnsErrc. `early` is
  // told before the result comes, which has all addresses.
  Result<std::vector<AddressInfo>> getaddrinfo(std::optional<std::string_view> host,
                                               std::optional<std::string_view> service,
                                               const Hints& hints = {}, Deadline deadline = {},
                                               const Early* early = nullptr);
  // getnameinfo(3); the flags are NI_ of <netdb.h>.
  Result<NameInfo> getnameinfo(const net::Address& address, int flags = 0, Deadline deadline = {});

  // The addresses to connect to a host by, in the order of preference, with this port. An IPv6
  // address may stand in brackets.
  Result<std::vector<net::Address>> resolve(std::string_view host, std::uint16_t port,
                                            Deadline deadline = {});

  // The records of a name, as a server has them: the name is taken as it is (a trailing dot changes
  // nothing), no file is looked at. An answer with aliases has them in front. DnsErrc::not_found,
  // no_data (nothing of the type), server_failure, refused, no_answer, unreachable, bad_answer,
  // malformed_name. The answer may be shared with other callers.
  Result<std::shared_ptr<const Answer>> query(std::string_view name, RecordType type,
                                              Deadline deadline = {});
  // Sends a question as it is and gives the answer as it came, whatever its rcode, with the id of
  // the question: for forwarders. The question has a header, exactly one question and at most an
  // EDNS record. bad_answer for what is no such question. Questions that only differ in their id
  // are asked once at a time. No cache.
  Result<std::vector<std::byte>> exchange(std::span<const std::byte> question,
                                          Deadline deadline = {});

  // Reads the files now, changed or not. Parks.
  Result<void> reload(Deadline deadline = {});
  // Any thread, parks never.
  ResolverStats stats() const;
  void clear_cache() noexcept;

  class Impl;

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace runloom::dns
