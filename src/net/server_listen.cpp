// Where a server listens.
#include <algorithm>

#include <fcntl.h>

#include "reuse_port_steering.hpp"
#include "runloom/sched/check.hpp"
#include "runloom/sched/scheduler.hpp"
#include "server_impl.hpp"
#include "socket_option.hpp"

namespace runloom::net {

const Fd& Server::Impl::Acceptor::fd() const noexcept {
  return std::visit([](const auto& each) -> const Fd& { return each.fd(); }, listener);
}
void Server::Impl::Acceptor::close() noexcept {
  std::visit([](auto& each) { each.close(); }, listener);
}

Result<const Scheduler*> Server::Impl::may_listen() const {
  RUNLOOM_CHECK(phase.load() == Phase::made, "a server listens before it serves");
  const Scheduler* current = Scheduler::current();
  if (!current) return fail(Errc::not_in_fiber);
  if (scheduler && scheduler != current) return fail(Errc::wrong_scheduler);
  return current;
}

Result<Address> Server::Impl::listen(const Address& address) {
  RUNLOOM_TRY(const Scheduler* current, may_listen());
  auto bound = address.is_unix() ? listen_unix(address) : listen_tcp(address, *current);
  if (!bound) return bound;
  scheduler = current;
  ++listens;
  return bound;
}

// Several listeners on a port need SO_REUSEPORT, with which the kernel would let a second server
// in as well. So the first one binds without it, which fails where the port is taken, and gets it
// afterwards: the others may join, and a second server that does the same may not.
Result<Address> Server::Impl::listen_tcp(const Address& address, const Scheduler& current) {
  const bool per_hub = options.placement == ServerOptions::Placement::listener_per_hub;
  const int hubs = per_hub ? current.hubs() : 1;
  std::vector<TcpListener> made;
  RUNLOOM_TRY(TcpListener first, TcpListener::listen(address, options.listen));
  RUNLOOM_TRY(const Address bound, first.local_address());
  if (hubs > 1 && !options.listen.reuse_port) {
    const auto shared = set_option(first.fd(), SOL_SOCKET, SO_REUSEPORT, 1);
    if (!shared) return Unexpected{shared.error()};
  }
  made.push_back(std::move(first));
  ListenOptions joining = options.listen;
  joining.reuse_port = true;
  for (int hub = 1; hub < hubs; ++hub) {
    RUNLOOM_TRY(TcpListener next, TcpListener::listen(bound, joining));
    made.push_back(std::move(next));
  }
  if (options.listen.reuse_port) stop_steering(made.front().fd());
  int hub = 0;
  for (TcpListener& each : made)
    add(std::move(each), bound, hub++);
  return bound;
}

Result<Address> Server::Impl::listen_unix(const Address& address) {
  if (plain) return fail_errno(EAFNOSUPPORT);
  RUNLOOM_TRY(UnixListener made, UnixListener::listen(address, options.unix_listen));
  RUNLOOM_TRY(const Address bound, made.local_address());
  add(std::move(made), bound, 0);
  return bound;
}

Result<Address> Server::Impl::listen_on(OwnedFd socket) {
  RUNLOOM_TRY(const Scheduler* current, may_listen());
  int domain = 0;
  socklen_t size = sizeof domain;
  if (::getsockopt(socket.number(), SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0)
    return fail(last_errno());
  if (plain && domain == AF_UNIX) return fail_errno(EAFNOSUPPORT);
  std::variant<TcpListener, UnixListener> listener;
  if (domain == AF_UNIX) {
    RUNLOOM_TRY(UnixListener adopted, UnixListener::adopt(socket.number()));
    listener = std::move(adopted);
  } else {
    RUNLOOM_TRY(TcpListener adopted, TcpListener::adopt(socket.number()));
    listener = std::move(adopted);
  }
  static_cast<void>(socket.release());  // adopted
  RUNLOOM_TRY(const Address bound,
              std::visit([](const auto& each) { return each.local_address(); }, listener));
  const auto same = std::count_if(acceptors.begin(), acceptors.end(),
                                  [&](const Acceptor& each) { return each.bound == bound; });
  add(std::move(listener), bound, static_cast<int>(same % current->hubs()));
  scheduler = current;
  ++listens;
  return bound;
}

void Server::Impl::add(std::variant<TcpListener, UnixListener> listener, const Address& bound,
                       int hub) {
  acceptors.push_back({.listener = std::move(listener),
                       .bound = bound,
                       .any_address = bound.is_any(),
                       .index = listens,
                       .hub = hub});
}

// With fewer listeners than hubs the kernel does not spread the connections of an address.
void Server::Impl::place_acceptors() {
  const auto hubs = Scheduler::current()->hubs();
  for (Acceptor& acceptor : acceptors) {
    const auto same = std::count_if(acceptors.begin(), acceptors.end(), [&](const Acceptor& each) {
      return each.bound == acceptor.bound;
    });
    acceptor.spreads =
        options.placement == ServerOptions::Placement::least_loaded || (hubs > 1 && same < hubs);
  }
}

void Server::Impl::steer_away() const noexcept {
  for (const Acceptor& acceptor : acceptors) {
    const auto is_same = [&](const Acceptor& each) { return each.bound == acceptor.bound; };
    const bool first = std::none_of(acceptors.data(), &acceptor, is_same);
    if (!first || !acceptor.bound.is_ip()) continue;
    const auto own = std::count_if(acceptors.begin(), acceptors.end(), is_same);
    net::steer_away(acceptor.fd(), acceptor.bound, static_cast<std::size_t>(own));
  }
}

std::vector<ListenFd> Server::Impl::listeners() const {
  std::vector<ListenFd> out;
  for (const Acceptor& acceptor : acceptors) {
    const Fd::Use use(acceptor.fd());
    if (!use) continue;
    const int copy = ::fcntl(use.number(), F_DUPFD_CLOEXEC, 3);
    if (copy < 0) return {};  // some of them would be worse than none
    out.push_back({.fd = OwnedFd(copy),
                   .name = acceptor.bound.to_string(),
                   .family = acceptor.bound.family(),
                   .type = SOCK_STREAM,
                   .listening = true});
  }
  return out;
}

}  // namespace runloom::net
