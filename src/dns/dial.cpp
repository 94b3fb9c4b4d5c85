// Happy eyeballs: one fiber an attempt, in a set that ends them all.
#include "runloom/dns/dial.hpp"

#include <algorithm>
#include <memory>
#include <optional>

#include "runloom/dns/error.hpp"
#include "runloom/sched/cancel.hpp"
#include "runloom/sched/channel.hpp"
#include "runloom/sched/fiber.hpp"
#include "runloom/sched/join_set.hpp"

namespace runloom::dns {
namespace {

// The families take turns, beginning with the first address's, of which `first` come before the
// other's first (RFC 8305, 4).
std::vector<net::Address> interleave(std::vector<net::Address> addresses, std::size_t first) {
  if (addresses.empty()) return addresses;
  const int preferred = addresses.front().family();
  std::vector<net::Address> theirs, others, out;
  for (const net::Address& address : addresses)
    (address.family() == preferred ? theirs : others).push_back(address);
  std::size_t a = 0, b = 0;
  const std::size_t ahead = std::max<std::size_t>(first, 1);
  while (a < theirs.size() || b < others.size()) {
    if (a < theirs.size() && (a < ahead || b >= others.size() || a - (ahead - 1) <= b)) {
      out.push_back(theirs[a++]);
    } else {
      out.push_back(others[b++]);
    }
  }
  return out;
}

struct Attempt {
  std::size_t index = 0;
  Result<net::TcpStream> stream{fail(Errc::cancelled)};
};

// One attempt after the other, on a thread: it has no fibers to try several at a time with.
Result<net::TcpStream> dial_in_turn(const std::vector<net::Address>& addresses,
                                    const DialOptions& options, Deadline deadline,
                                    std::vector<DialFailure>& failures) {
  for (const net::Address& address : addresses) {
    auto stream = net::TcpStream::connect(address, options.connect, deadline);
    if (stream) return stream;
    failures.push_back({address, stream.error()});
    if (auto ok = this_fiber::check_cancelled(); !ok) return Unexpected{ok.error()};
    if (deadline.passed()) return fail(Errc::timed_out);
  }
  return fail(failures.front().error);
}

// The attempts are children of a set, which cancels and awaits the losers when it goes. Each puts
// its outcome into a channel with room for all; what was connected and never taken is closed with
// it.
Result<net::TcpStream> dial_together(const std::vector<net::Address>& addresses,
                                     const DialOptions& options, Deadline deadline,
                                     std::vector<DialFailure>& failures) {
  Channel<std::unique_ptr<Attempt>> outcomes(addresses.size());
  JoinSet<> attempts;
  std::size_t begun = 0, ended = 0;
  Deadline next = Deadline::now();
  const auto begin = [&]() -> Result<void> {
    const std::size_t index = begun;
    auto started = attempts.spawn([&, index] {
      auto attempt = std::make_unique<Attempt>();
      attempt->index = index;
      attempt->stream = net::TcpStream::connect(addresses[index], options.connect, deadline);
      const Shield shield;  // there is room
      (void)outcomes.send(std::move(attempt));
    });
    if (!started) return started;
    ++begun;
    next = Deadline::after(options.attempt_delay);
    return {};
  };
  for (;;) {
    if (begun < addresses.size() && (begun == ended || next.passed())) {
      // Where no more fibers are to be had those that run may still connect.
      if (auto started = begin(); !started && begun == ended) return Unexpected{started.error()};
    }
    if (ended == addresses.size()) return fail(failures.front().error);
    const Deadline until = begun < addresses.size() ? Deadline::earlier(next, deadline) : deadline;
    auto outcome = outcomes.recv(until);
    if (!outcome) {
      if (outcome.error() != Errc::timed_out || deadline.passed() || until.is_never())
        return Unexpected{outcome.error()};
      if (auto ok = this_fiber::check_cancelled(); !ok) return Unexpected{ok.error()};
      continue;
    }
    ++ended;
    Attempt& attempt = **outcome;
    if (attempt.stream) return std::move(attempt.stream);
    failures.push_back({addresses[attempt.index], attempt.stream.error()});
    next = Deadline::now();
  }
}

std::string list_failures(std::string_view target, std::error_code error,
                          const std::vector<DialFailure>& failures) {
  std::string text(target);
  if (failures.empty()) return text + ": " + error.message();
  text += ": ";
  for (std::size_t i = 0; i < failures.size(); ++i)
    text +=
        (i == 0 ? "" : "; ") + failures[i].address.to_string() + ": " + failures[i].error.message();
  if (std::none_of(failures.begin(), failures.end(),
                   [&](const DialFailure& failure) { return failure.error == error; }))
    text += "; " + error.message();
  return text;
}

}  // namespace

Result<HostAndService> split_target(std::string_view target) {
  std::string_view host, service;
  if (target.starts_with('[')) {
    const std::size_t end = target.find(']');
    if (end == std::string_view::npos || !target.substr(end + 1).starts_with(':'))
      return fail_errno(EINVAL);
    host = target.substr(1, end - 1);
    service = target.substr(end + 2);
  } else {
    const std::size_t colon = target.rfind(':');
    if (colon == std::string_view::npos || target.find(':') != colon) return fail_errno(EINVAL);
    host = target.substr(0, colon);
    service = target.substr(colon + 1);
  }
  if (host.empty() || service.empty()) return fail_errno(EINVAL);
  return HostAndService{std::string(host), std::string(service)};
}

Result<net::TcpStream> dial_addresses(std::vector<net::Address> addresses,
                                      const DialOptions& options, Deadline deadline,
                                      std::vector<DialFailure>* failures) {
  if (const int family = options.connect.local.family(); family != AF_UNSPEC)
    std::erase_if(addresses, [family](const auto& address) { return address.family() != family; });
  if (addresses.empty()) return fail(DnsErrc::address_family);
  addresses = interleave(std::move(addresses), options.first_family);
  std::vector<DialFailure> own;
  std::vector<DialFailure>& failed = failures ? *failures : own;
  failed.clear();
  if (addresses.size() == 1 || !detail::on_fiber())
    return dial_in_turn(addresses, options, deadline, failed);
  return dial_together(addresses, options, deadline, failed);
}

Result<net::TcpStream> dial_host(std::string_view host, std::string_view service,
                                 const DialOptions& options, Deadline deadline,
                                 std::string* problem, std::vector<DialFailure>* failures) {
  Resolver& resolver = options.resolver ? *options.resolver : Resolver::process();
  std::vector<DialFailure> own;
  std::vector<DialFailure>& failed = failures ? *failures : own;
  failed.clear();
  auto stream = [&]() -> Result<net::TcpStream> {
    RUNLOOM_TRY(const auto found,
                resolver.getaddrinfo(
                    host, service, {.family = options.family, .socktype = SOCK_STREAM}, deadline));
    std::vector<net::Address> addresses;
    addresses.reserve(found.size());
    for (const AddressInfo& info : found)
      addresses.push_back(info.address);
    return dial_addresses(std::move(addresses), options, deadline, &failed);
  }();
  if (!stream && problem)
    *problem =
        list_failures(std::string(host) + ':' + std::string(service), stream.error(), failed);
  return stream;
}

Result<net::TcpStream> dial(std::string_view target, const DialOptions& options, Deadline deadline,
                            std::string* problem, std::vector<DialFailure>* failures) {
  const auto parts = split_target(target);
  if (!parts) {
    if (problem) *problem = std::string(target) + " is not HOST:PORT";
    return Unexpected{parts.error()};
  }
  return dial_host(parts->host, parts->service, options, deadline, problem, failures);
}

}  // namespace runloom::dns
