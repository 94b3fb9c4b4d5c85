// A connection on its fiber: who it is, what is put around it, its handler, its end.
#include <utility>

#include "runloom/net/proxy_protocol.hpp"
#include "runloom/sched/check.hpp"
#include "server_impl.hpp"
#include "socket_option.hpp"

namespace runloom::net {
namespace {

const Fd& fd_of(const std::variant<TcpStream, UnixStream>& socket) noexcept {
  return std::visit([](const auto& each) -> const Fd& { return each.fd(); }, socket);
}

}  // namespace

void Server::Impl::run(Accepted accepted) {
  std::exception_ptr exception;
  try {
    if (plain) {
      const SocketList::Entry entry(sockets, fd_of(accepted.socket));
      plain(std::get<TcpStream>(std::move(accepted.socket)));
    } else {
      run_full(accepted);
    }
  } catch (...) {
    exception = std::current_exception();
  }
  if (exception) faults.add(ServerFault::handler_exception, {}, accepted.peer, exception);
  accepted.ticket = {};
  leave();
}

void Server::Impl::run_full(Accepted& accepted) {
  const Acceptor& from = *accepted.from;
  ConnectionInfo info{.peer = accepted.peer, .local = from.bound, .listener = from.index};
  if (from.any_address)
    if (const auto local = address_of(fd_of(accepted.socket), &::getsockname)) info.local = *local;
  Connection connection(std::move(accepted.socket), std::move(info), options.timeouts, counters,
                        stopping);
  const SocketList::Entry entry(sockets, connection.socket_fd(), &connection);
  if (!prepare(connection, accepted)) return;
  full(connection);
  if (options.linger && !connection.taken_) linger_on(connection);
}

// The PROXY header, and the protocol between the socket and the handler. All within one deadline.
bool Server::Impl::prepare(Connection& connection, Accepted& accepted) {
  if (!accepted.proxied && !options.wrap) return true;
  const Deadline deadline = options.timeouts.handshake.count() == 0
                                ? Deadline::never()
                                : Deadline::after(options.timeouts.handshake);
  if (accepted.proxied && !read_header(connection, accepted, deadline)) return false;
  if (!options.wrap) return true;
  const auto wrapped = connection.wrap(options.wrap, deadline);
  if (wrapped) {
    ServerCounters::add(counters.handshakes);
    return true;
  }
  if (wrapped.error() == Errc::timed_out) {
    counters.add(ServerTimeout::handshake);
  } else if (wrapped.error() != Errc::cancelled && wrapped.error() != Errc::closed) {
    faults.add(ServerFault::handshake, wrapped.error(), connection.info().peer);
  }
  return false;
}

bool Server::Impl::read_header(Connection& connection, Accepted& accepted, Deadline deadline) {
  ProxyParser parser;
  ConnectionInfo& info = connection.info_;
  const auto read = read_proxy_header(connection.socket_fd(), parser, deadline);
  if (!read) {
    if (read.error() == Errc::timed_out) {
      counters.add(ServerTimeout::handshake);
    } else if (read.error().category() == proxy_category() && read.error() != ProxyErrc::ended) {
      // Load balancers connect and hang up to see whether we are there.
      faults.add(ServerFault::proxy_header, read.error(), info.peer);
    }
    return false;
  }
  if (!parser.header().has_addresses) return true;
  info.proxy = std::exchange(info.peer, parser.header().source);
  info.local = parser.header().destination;
  info.tlvs.assign(parser.tlvs());
  ServerCounters::add(counters.proxied);
  if (peers.enter(info.peer, accepted.ticket)) return true;
  ServerCounters::add(counters.rejected_peers);
  return false;
}

void Server::Impl::linger_on(Connection& connection) {
  // Who was too slow has had his time.
  if (connection.expired() != Connection::Expired::none) return;
  // A handler that has closed it meant that.
  if (!connection.socket_fd() && connection.wrapped_ == nullptr) return;
  ServerCounters::add(counters.lingered);
  lingering_close(connection.below(),
                  {Deadline::after(options.linger->time), options.linger->bytes});
}

void Server::Impl::leave() noexcept {
  if (options.max_connections > 0) slots.release();
  counters.active.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace runloom::net
