// From the backlog to a fiber.
#include <algorithm>

#include "runloom/sched/fiber.hpp"
#include "runloom/sched/scheduler.hpp"
#include "server_impl.hpp"

namespace runloom::net {
namespace {

constexpr std::chrono::milliseconds kSettling{500};

// The listener itself is broken. Everything else that accept reports passes, and is tried again.
bool is_fatal(std::error_code error) noexcept {
  return error == errno_code(EBADF) || error == errno_code(EINVAL) || error == errno_code(ENOTSOCK);
}

// The accept was ended, rather than failed.
bool is_end(std::error_code error) noexcept {
  return error == Errc::cancelled || error == Errc::timed_out || error == Errc::closed;
}

}  // namespace

Result<Server::Impl::Accepted> Server::Impl::accept_from(Acceptor& acceptor, Deadline deadline) {
  Accepted out{.from = &acceptor};
  if (auto* tcp = std::get_if<TcpListener>(&acceptor.listener)) {
    RUNLOOM_TRY(TcpStream stream, tcp->accept_from(out.peer, deadline));
    out.socket = std::move(stream);
  } else {
    auto& local = std::get<UnixListener>(acceptor.listener);
    RUNLOOM_TRY(UnixStream stream, local.accept_from(out.peer, deadline));
    out.socket = std::move(stream);
  }
  return out;
}

void Server::Impl::accept_until_stopped(Acceptor& acceptor) {
  AcceptBackoff backoff;
  std::optional<Accepted> waiting;  // for a slot, when the stop came
  // Looked at each time, because an accept that doesn't have to wait is not cancelled.
  while (!stopping.load()) {
    auto accepted = accept_from(acceptor, {});
    if (accepted) {
      backoff.reset();
      if (!identify(*accepted)) continue;
      if (options.max_connections != 0 && !slots.try_acquire()) {
        if (options.reject_over_limit) {
          reject();
          continue;
        }
        if (!slots.acquire()) {
          waiting = std::move(*accepted);
          break;
        }
      }
      start(std::move(*accepted));
      continue;
    }
    if (is_end(accepted.error())) break;
    if (is_fatal(accepted.error())) {
      faults.add(ServerFault::listener, accepted.error(), {});
      fail_with(accepted.error());
      break;
    }
    // The connection waits in the backlog, and so do we.
    faults.add(ServerFault::accept, accepted.error(), {});
    if (!this_fiber::sleep_for(backoff.next())) break;
  }
  {
    const Shield shield;
    take_backlog(acceptor, std::move(waiting));
  }
  if (handover.load() != Handover::none)
    if (auto* local = std::get_if<UnixListener>(&acceptor.listener)) local->leave_file();
  acceptor.close();
}

// Clients in the backlog are connected as far as they know. At the limit they wait for the
// handlers that run, as long as the drain lasts.
void Server::Impl::take_backlog(Acceptor& acceptor, std::optional<Accepted> waiting) {
  const DrainScope drain_scope(*this);
  const bool tcp = std::holds_alternative<TcpListener>(acceptor.listener);
  const bool steered = tcp && handover.load() == Handover::same_ports;
  const bool leaves = handover.load() != Handover::none && !steered;
  // Of a port that others listen on, too, clients that have sent their first segment are still to
  // come in here: their handshakes take a round trip more.
  const Deadline settled = steered ? Deadline::after(kSettling) : Deadline::now();
  // Bounded: new connections may come as fast as we take them.
  for (int left = options.listen.backlog; left >= 0 && !drain_deadline().passed();) {
    if (settled.passed()) --left;
    if (!waiting) {
      if (leaves || (!steered && options.backlog_at_stop == ServerOptions::Backlog::refuse)) return;
      auto accepted = accept_from(acceptor, settled);
      if (!accepted) return;
      if (!identify(*accepted)) continue;
      waiting = std::move(*accepted);
    }
    if (options.max_connections > 0 && !slots.try_acquire() &&
        (options.reject_over_limit || !slots.acquire())) {
      reject();
    } else {
      ServerCounters::add(counters.taken_at_stop);
      start(std::move(*waiting));
    }
    waiting.reset();
  }
  if (waiting) reject();
}

// Who it is, as far as that can be said before a byte was read, and whether he may come in. What
// is false here is closed by the caller's drop of the connection.
bool Server::Impl::identify(Accepted& connection) {
  const ProxyOptions& proxy = options.proxy;
  if (!proxy.trusted.empty()) {
    connection.proxied =
        std::any_of(proxy.trusted.begin(), proxy.trusted.end(),
                    [&](const Network& network) { return network.contains(connection.peer); });
    if (!connection.proxied && !proxy.serve_untrusted) {
      ServerCounters::add(counters.untrusted);
      return false;
    }
    if (connection.proxied) return true;  // the client counts, and is not known yet
  }
  if (peers.enter(connection.peer, connection.ticket)) return true;
  ServerCounters::add(counters.rejected_peers);
  return false;
}

void Server::Impl::reject() noexcept {
  ServerCounters::add(counters.rejected);
}

void Server::Impl::start(Accepted connection) {
  const Address peer = connection.peer;
  const int hub =
      connection.from->spreads ? Scheduler::current()->least_loaded_hub() : connection.from->hub;
  counters.active.fetch_add(1, std::memory_order_relaxed);
  const auto started = handlers->spawn(
      [this, accepted = std::move(connection)]() mutable { run(std::move(accepted)); },
      {.name = "connection",
       .stack_size = options.stack_size,
       .hub = hub,
       .guest = options.guests});
  if (started) {
    ServerCounters::add(counters.accepted);
    return;
  }
  faults.add(ServerFault::no_fiber, started.error(), peer);
  leave();
}

}  // namespace runloom::net
