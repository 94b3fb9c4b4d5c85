// One acceptor fiber a listener, one fiber a connection, each kind in a JoinSet of the fiber in
// serve(), which waits for the stop and then carries it out:
//
// 1. The acceptors are cancelled. Each takes what its backlog still holds, because those clients
//    are connected as far as they know, closes its listener and ends. Nothing is added after that.
// 2. The handlers have until the drain deadline. Until then none is cut off in an answer; those
//    that wait for a further request are told, and need not wait.
// 3. They are cancelled. Cancellation is level-triggered, so whatever they park in fails.
// 4. After the grace their connections are closed, which ends the reads and writes of a handler
//    that shields itself from cancellation. What then still runs is waited for, however long: a
//    handler refers to the program's objects and must not outlive serve().
#include "runloom/net/server.hpp"

#include <algorithm>

#include "runloom/net/signals.hpp"
#include "runloom/sched/check.hpp"
#include "runloom/sched/fiber.hpp"
#include "runloom/sched/scheduler.hpp"
#include "server_impl.hpp"
#include "server_notify.hpp"

namespace runloom::net {
namespace {

std::uint32_t limit_of(std::size_t connections) noexcept {
  return static_cast<std::uint32_t>(std::min<std::size_t>(connections, Semaphore::kUnbounded));
}

}  // namespace

Server::Impl::Impl(Handler for_tcp, ConnectionHandler for_all, ServerOptions wanted)
    : plain(std::move(for_tcp)),
      full(std::move(for_all)),
      options(std::move(wanted)),
      slots(limit_of(options.max_connections)),
      peers(options.max_connections_per_peer, std::clamp(options.ipv6_peer_prefix, 1, 128)),
      faults(options.report) {
  RUNLOOM_CHECK(full || (options.proxy.trusted.empty() && !options.wrap && !options.linger),
                "a server reads PROXY headers, wraps and lingers for handlers of Connection");
}

Server::Server(Handler handler, ServerOptions options)
    : impl_(std::make_unique<Impl>(std::move(handler), nullptr, std::move(options))) {}

Server::Server(ConnectionHandler handler, ServerOptions options)
    : impl_(std::make_unique<Impl>(nullptr, std::move(handler), std::move(options))) {}

Server::~Server() {
  RUNLOOM_CHECK(impl_->phase.load() != Impl::Phase::serving,
                "a Server was destroyed before its serve() had returned");
}

Result<Address> Server::listen(const Address& address) {
  return impl_->listen(address);
}

Result<Address> Server::listen_on(OwnedFd socket) {
  return impl_->listen_on(std::move(socket));
}

void Server::claim_files() noexcept {
  for (Impl::Acceptor& acceptor : impl_->acceptors)
    if (auto* local = std::get_if<UnixListener>(&acceptor.listener)) local->claim_file();
}

std::vector<ListenFd> Server::listeners() const {
  return impl_->listeners();
}

void Server::stop_on(const Signals& signals, std::chrono::milliseconds drain) {
  RUNLOOM_CHECK(impl_->phase.load() == Impl::Phase::made,
                "a server is told of its signals before it serves");
  impl_->signals = &signals;
  impl_->signal_drain = drain;
}

Result<void> Server::serve() {
  return impl_->serve();
}

void Server::begin_stop(Deadline drain) noexcept {
  impl_->begin_stop(drain);
}

void Server::begin_handover(Deadline drain, Successor successor) noexcept {
  if (successor == Successor::same_ports) impl_->steer_away();
  impl_->begin_stop(drain, successor == Successor::same_ports ? Impl::Handover::same_ports
                                                              : Impl::Handover::same_sockets);
}

Result<void> Server::stop(Deadline drain) {
  impl_->stoppers.add();
  impl_->begin_stop(drain);
  auto result = impl_->ended.wait();
  impl_->stoppers.done();
  return result;
}

ServerStats Server::stats() const noexcept {
  return impl_->stats();
}

ServerStats Server::Impl::stats() const noexcept {
  const auto get = [](const ServerCounters::Count& count) {
    return count.load(std::memory_order_relaxed);
  };
  ServerStats out;
  out.accepted = get(counters.accepted);
  out.active = get(counters.active);
  out.rejected = get(counters.rejected);
  out.cancelled = get(counters.cancelled);
  out.rejected_peers = get(counters.rejected_peers);
  out.peers = peers.peers();
  out.untrusted = get(counters.untrusted);
  out.proxied = get(counters.proxied);
  out.handshakes = get(counters.handshakes);
  out.lingered = get(counters.lingered);
  out.taken_at_stop = get(counters.taken_at_stop);
  out.closed_at_stop = get(counters.closed_at_stop);
  for (std::size_t i = 0; i < kServerTimeouts; ++i)
    out.timeouts[i] = get(counters.timeouts[i]);
  for (std::size_t i = 0; i < kServerFaults; ++i)
    out.faults[i] = faults.count(static_cast<ServerFault>(i));
  return out;
}

// ---------------------------------------------------------------- the server's life

Result<void> Server::Impl::serve() {
  const Scheduler* current = Scheduler::current();
  if (!current) return fail(Errc::not_in_fiber);
  if (scheduler && scheduler != current) return fail(Errc::wrong_scheduler);
  Phase expected = Phase::made;
  RUNLOOM_CHECK(phase.compare_exchange_strong(expected, Phase::serving),
                "serve() was called a second time");
  place_acceptors();
  ServerNotify notify(options.notify_systemd, faults);
  {
    JoinSet<> helpers;
    if (signals) {
      const auto started = helpers.spawn([this] { watch_signals(); }, {.name = "signals"});
      if (!started) fail_with(started.error());
    }
    JoinSet<> connections;
    handlers = &connections;
    JoinSet<> accepting;
    for (Acceptor& acceptor : acceptors) {
      const auto started =
          accepting.spawn([this, &acceptor] { accept_until_stopped(acceptor); },
                          {.name = "acceptor", .hub = acceptor.hub, .guest = options.guests});
      if (!started) fail_with(started.error());
    }
    if (!stopping.load()) notify.ready(helpers);
    if (const auto stopped = stop_wanted.wait(); !stopped) fail_with(stopped.error());
    const Shield shield;
    sockets.stop_idle();
    notify.stopping(drain_deadline(), options.cancel_grace);
    accepting.cancel();
    static_cast<void>(accepting.wait());
    end_handlers();
    helpers.cancel();
  }
  const Shield shield;
  phase.store(Phase::ended);
  ended.set();
  static_cast<void>(stoppers.wait());
  const std::lock_guard hold(mutex);
  if (failure) return Unexpected{failure};
  return {};
}

void Server::Impl::watch_signals() {
  if (!signals->wait()) return;
  begin_stop(Deadline::after(signal_drain));
  if (!signals->wait()) return;
  begin_stop(Deadline::now());
}

void Server::Impl::end_handlers() {
  if (drained()) return;
  counters.cancelled.fetch_add(counters.active.load(std::memory_order_relaxed),
                               std::memory_order_relaxed);
  handlers->cancel();
  if (handlers->wait(Deadline::after(options.cancel_grace))) return;
  counters.closed_at_stop.fetch_add(sockets.close(), std::memory_order_relaxed);
  static_cast<void>(handlers->wait());
}

bool Server::Impl::drained() {
  const DrainScope scope(*this);
  return handlers->wait().has_value();
}

Deadline Server::Impl::drain_deadline() const {
  const std::lock_guard hold(mutex);
  return drain;
}

void Server::Impl::begin_stop(Deadline deadline, Handover to) noexcept {
  {
    const std::lock_guard hold(mutex);
    drain = Deadline::earlier(drain, deadline);
    for (DrainScope* each = draining; each; each = each->next_)
      each->scope_.set_deadline(drain);
  }
  // What somebody else has begun to accept stays his, whatever stops this server as well.
  if (to != Handover::none) handover.store(to);
  stopping.store(true);
  stop_wanted.set();
}

void Server::Impl::fail_with(std::error_code error) noexcept {
  {
    const std::lock_guard hold(mutex);
    if (!failure) failure = error;
  }
  begin_stop(Deadline::now());
}

Server::Impl::DrainScope::DrainScope(Impl& server) : server_(server) {
  const std::lock_guard hold(server_.mutex);
  scope_.set_deadline(server_.drain);
  next_ = server_.draining;
  if (next_) next_->prev_ = this;
  server_.draining = this;
}

Server::Impl::DrainScope::~DrainScope() {
  const std::lock_guard hold(server_.mutex);
  (prev_ ? prev_->next_ : server_.draining) = next_;
  if (next_) next_->prev_ = prev_;
}

}  // namespace runloom::net
