// Happy eyeballs: one fiber an attempt and one for the lookup, in a set that ends them all.
#include "runloom/dns/dial.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "numeric.hpp"
#include "runloom/dns/error.hpp"
#include "runloom/sched/cancel.hpp"
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

// What has happened: an attempt ended, or a lookup gave addresses.
struct Event {
  enum class Kind : std::uint8_t { attempt, early, resolved };
  Kind kind = Kind::attempt;
  std::size_t index = 0;
  Result<net::TcpStream> stream{fail(Errc::cancelled)};
  Result<std::vector<net::Address>> addresses{std::vector<net::Address>()};
};

// The attempts and the lookup are children of a set, which cancels and awaits what still runs when
// it goes. What was connected and never taken is closed with it.
class Dialer {
 public:
  Dialer(const DialOptions& options, Deadline deadline, std::vector<DialFailure>& failures)
      : options_(options), deadline_(deadline), failures_(failures) {}

  // Starts to look them up. What is given must outlive the dialer.
  Result<void> resolve(Resolver& resolver, std::string_view host, std::string_view service);
  // Tries these, and what a lookup gives meanwhile.
  Result<net::TcpStream> run(std::vector<net::Address> addresses);

 private:
  Result<void> begin();
  void take_addresses(std::vector<net::Address> addresses);
  // The end, if the event is one.
  std::optional<net::TcpStream> handle(Event& event);

  const DialOptions& options_;
  const Deadline deadline_;
  std::vector<DialFailure>& failures_;
  std::vector<net::Address> addresses_;  // in front those that were begun
  std::size_t begun_ = 0, ended_ = 0;
  Deadline next_ = Deadline::now();
  bool resolving_ = false;
  std::error_code unresolved_;
  JoinSet<std::unique_ptr<Event>> events_;
};

std::vector<net::Address> addresses_of(const std::vector<AddressInfo>& found) {
  std::vector<net::Address> out;
  out.reserve(found.size());
  for (const AddressInfo& info : found)
    out.push_back(info.address);
  return out;
}

Result<void> Dialer::resolve(Resolver& resolver, std::string_view host, std::string_view service) {
  resolving_ = true;
  return events_.spawn([this, &resolver, host, service] {
    Resolver::Early early;
    early.delay = options_.resolution_delay;
    early.tell = [this](const std::vector<AddressInfo>& found) {
      auto event = std::make_unique<Event>();
      event->kind = Event::Kind::early;
      event->addresses = addresses_of(found);
      // Where no fiber is to be had the addresses come a little later.
      (void)events_.spawn([event = std::move(event)]() mutable { return std::move(event); });
    };
    const auto found =
        resolver.getaddrinfo(host, service, {.socktype = SOCK_STREAM}, deadline_, &early);
    auto event = std::make_unique<Event>();
    event->kind = Event::Kind::resolved;
    if (found) {
      event->addresses = addresses_of(*found);
    } else {
      event->addresses = Unexpected{found.error()};
    }
    return event;
  });
}

void Dialer::take_addresses(std::vector<net::Address> addresses) {
  addresses_.resize(begun_);
  for (const net::Address& address : interleave(std::move(addresses), options_.first_family)) {
    const auto tried = addresses_.begin() + static_cast<std::ptrdiff_t>(begun_);
    if (std::find(addresses_.begin(), tried, address) == tried) addresses_.push_back(address);
  }
}

Result<void> Dialer::begin() {
  auto started = events_.spawn([this, index = begun_, address = addresses_[begun_]] {
    auto event = std::make_unique<Event>();
    event->index = index;
    event->stream = net::TcpStream::connect(address, options_.connect, deadline_);
    return event;
  });
  if (!started) return started;
  ++begun_;
  next_ = Deadline::after(options_.attempt_delay);
  return {};
}

std::optional<net::TcpStream> Dialer::handle(Event& event) {
  if (event.kind == Event::Kind::attempt) {
    ++ended_;
    if (event.stream) return std::move(*event.stream);
    failures_.push_back({addresses_[event.index], event.stream.error()});
    next_ = Deadline::now();
    return std::nullopt;
  }
  // A part that is seen after the whole has nothing new.
  if (!resolving_) return std::nullopt;
  if (event.kind == Event::Kind::resolved) resolving_ = false;
  if (event.addresses) {
    take_addresses(*std::move(event.addresses));
  } else {
    unresolved_ = event.addresses.error();
  }
  return std::nullopt;
}

Result<net::TcpStream> Dialer::run(std::vector<net::Address> addresses) {
  addresses_ = std::move(addresses);
  for (;;) {
    if (begun_ < addresses_.size() && (begun_ == ended_ || next_.passed())) {
      // Where no more fibers are to be had those that run may still connect.
      if (auto started = begin(); !started && begun_ == ended_) return Unexpected{started.error()};
    }
    if (ended_ == addresses_.size() && !resolving_)
      return fail(failures_.empty() ? unresolved_ : failures_.front().error);
    const Deadline until =
        begun_ < addresses_.size() ? Deadline::earlier(next_, deadline_) : deadline_;
    auto event = events_.next(until);
    if (!event) {
      if (event.error() != Errc::timed_out || deadline_.passed() || until.is_never())
        return Unexpected{event.error()};
      if (auto ok = this_fiber::check_cancelled(); !ok) return Unexpected{ok.error()};
      continue;
    }
    if (!*event) return fail(Errc::cancelled);  // the set was
    if (auto stream = handle(***event)) return *std::move(stream);
  }
}

bool is_number(std::string_view host) noexcept {
  return parse_ipv4_legacy(host) || parse_ipv6(host.substr(0, host.find('%')));
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
  return Dialer(options, deadline, failed).run(std::move(addresses));
}

Result<net::TcpStream> dial_host(std::string_view host, std::string_view service,
                                 const DialOptions& options, Deadline deadline,
                                 std::string* problem, std::vector<DialFailure>* failures) {
  Resolver& resolver = options.resolver ? *options.resolver : Resolver::process();
  std::vector<DialFailure> own;
  std::vector<DialFailure>& failed = failures ? *failures : own;
  failed.clear();
  auto stream = [&]() -> Result<net::TcpStream> {
    if (detail::on_fiber() && options.family == AF_UNSPEC &&
        options.connect.local.family() == AF_UNSPEC && !is_number(host)) {
      Dialer dialer(options, deadline, failed);
      if (auto begun = dialer.resolve(resolver, host, service); !begun)
        return Unexpected{begun.error()};
      return dialer.run({});
    }
    RUNLOOM_TRY(const auto found,
                resolver.getaddrinfo(
                    host, service, {.family = options.family, .socktype = SOCK_STREAM}, deadline));
    return dial_addresses(addresses_of(found), options, deadline, &failed);
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
