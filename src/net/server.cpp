// One acceptor fiber a listener, one fiber a connection, each kind in a JoinSet of the fiber in
// serve(), which waits for the stop and then carries it out:
//
// 1. The acceptors are cancelled. Each takes what its backlog still holds, because those clients
//    are connected as far as they know, closes its listener and ends. Nothing is added after that.
// 2. The handlers have until the drain deadline.
// 3. They are cancelled. Cancellation is level-triggered, so whatever they park in fails.
// 4. After the grace their connections are closed, which ends the reads and writes of a handler
//    that shields itself from cancellation. What then still runs is waited for, however long: a
//    handler refers to the program's objects and must not outlive serve().
#include "runloom/net/server.hpp"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "runloom/net/tcp_listener.hpp"
#include "runloom/sched/cancel.hpp"
#include "runloom/sched/check.hpp"
#include "runloom/sched/event.hpp"
#include "runloom/sched/fiber.hpp"
#include "runloom/sched/join_set.hpp"
#include "runloom/sched/mutex.hpp"
#include "runloom/sched/scheduler.hpp"
#include "runloom/sched/semaphore.hpp"
#include "runloom/sched/wait_group.hpp"
#include "server_report.hpp"
#include "socket_option.hpp"

namespace runloom::net {
namespace {

// The listener itself is broken. Everything else that accept reports passes, and is tried again.
bool is_fatal(std::error_code error) noexcept {
  return error == errno_code(EBADF) || error == errno_code(EINVAL) || error == errno_code(ENOTSOCK);
}

// The accept was ended, rather than failed.
bool is_end(std::error_code error) noexcept {
  return error == Errc::cancelled || error == Errc::timed_out || error == Errc::closed;
}

std::uint32_t limit_of(std::size_t connections) noexcept {
  return static_cast<std::uint32_t>(std::min<std::size_t>(connections, Semaphore::kUnbounded));
}

// The sockets of the handlers that run, to close them when nothing else helps.
class SocketList {
 public:
  // On the handler's fiber, for as long as it runs.
  class Entry {
   public:
    Entry(SocketList& list, const Fd& socket) : list_(list), socket_(socket) {
      const std::lock_guard hold(list_.mutex_);
      next_ = list_.head_;
      if (next_) next_->prev_ = this;
      list_.head_ = this;
      if (list_.closed_) socket_.close();
    }
    ~Entry() {
      const std::lock_guard hold(list_.mutex_);
      (prev_ ? prev_->next_ : list_.head_) = next_;
      if (next_) next_->prev_ = prev_;
    }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    friend class SocketList;
    SocketList& list_;
    const Fd::Weak socket_;
    Entry* prev_ = nullptr;
    Entry* next_ = nullptr;
  };

  // Those there are, and those that will be added.
  void close() {
    const std::lock_guard hold(mutex_);
    closed_ = true;
    for (const Entry* entry = head_; entry; entry = entry->next_)
      entry->socket_.close();
  }

 private:
  Mutex mutex_;
  Entry* head_ = nullptr;
  bool closed_ = false;
};

}  // namespace

struct Server::Impl {
  struct Acceptor {
    TcpListener listener;
    int hub;
  };

  Impl(Handler handle, ServerOptions wanted)
      : handler(std::move(handle)),
        options(std::move(wanted)),
        slots(limit_of(options.max_connections)),
        faults(options.report) {}

  Result<Address> listen(const Address& address);
  Result<void> serve();
  void begin_stop(Deadline deadline) noexcept;

  void accept_until_stopped(Acceptor& acceptor);
  void take_backlog(Acceptor& acceptor);
  bool admit(TcpStream& stream);
  void start(TcpStream stream, const Address& peer, int hub);
  void run(TcpStream stream, const Address& peer);
  void end_handlers();
  bool may_drain();
  bool drained();
  void leave() noexcept;
  void fail_with(std::error_code error) noexcept;

  const Handler handler;
  const ServerOptions options;
  std::vector<Acceptor> acceptors;
  const Scheduler* scheduler = nullptr;  // of listen()
  JoinSet<>* handlers = nullptr;         // serve()'s, while acceptors run
  SocketList sockets;
  Semaphore slots;  // used when max_connections is set
  FaultLog faults;

  std::atomic<std::uint64_t> accepted{0};
  std::atomic<std::uint64_t> active{0};
  std::atomic<std::uint64_t> rejected{0};
  std::atomic<std::uint64_t> cancelled{0};

  enum class Phase : std::uint8_t { made, serving, ended };
  std::atomic<Phase> phase{Phase::made};
  std::atomic<bool> stopping{false};
  Event stop_wanted;
  Event ended;
  WaitGroup stoppers;  // calls of stop() that have not left
  std::mutex mutex;    // guards what follows
  Deadline drain{};
  CancelScope* draining = nullptr;  // serve()'s wait until `drain`, while it lasts
  std::error_code failure;          // why serve() ends, unless it was stopped
};

Server::Server(Handler handler, ServerOptions options)
    : impl_(std::make_unique<Impl>(std::move(handler), std::move(options))) {}

Server::~Server() {
  RUNLOOM_CHECK(impl_->phase.load() != Impl::Phase::serving,
                "a Server was destroyed before its serve() had returned");
}

Result<Address> Server::listen(const Address& address) {
  return impl_->listen(address);
}

Result<void> Server::serve() {
  return impl_->serve();
}

void Server::begin_stop(Deadline drain) noexcept {
  impl_->begin_stop(drain);
}

Result<void> Server::stop(Deadline drain) {
  impl_->stoppers.add();
  impl_->begin_stop(drain);
  auto result = impl_->ended.wait();
  impl_->stoppers.done();
  return result;
}

ServerStats Server::stats() const noexcept {
  ServerStats out;
  out.accepted = impl_->accepted.load(std::memory_order_relaxed);
  out.active = impl_->active.load(std::memory_order_relaxed);
  out.rejected = impl_->rejected.load(std::memory_order_relaxed);
  out.cancelled = impl_->cancelled.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < kServerFaults; ++i)
    out.faults[i] = impl_->faults.count(static_cast<ServerFault>(i));
  return out;
}

// ---------------------------------------------------------------- listening

// Several listeners on a port need SO_REUSEPORT, with which the kernel would let a second server
// in as well. So the first one binds without it, which fails where the port is taken, and gets it
// afterwards: the others may join, and a second server that does the same may not.
Result<Address> Server::Impl::listen(const Address& address) {
  RUNLOOM_CHECK(phase.load() == Phase::made, "a server listens before it serves");
  const Scheduler* current = Scheduler::current();
  if (!current) return fail(Errc::not_in_fiber);
  if (scheduler && scheduler != current) return fail(Errc::wrong_scheduler);

  const bool per_hub = options.placement == ServerOptions::Placement::listener_per_hub;
  const int hubs = per_hub ? current->hubs() : 1;
  std::vector<Acceptor> added;
  RUNLOOM_TRY(TcpListener first, TcpListener::listen(address, options.listen));
  RUNLOOM_TRY(const Address bound, first.local_address());
  if (hubs > 1 && !options.listen.reuse_port) {
    const auto shared = set_option(first.fd(), SOL_SOCKET, SO_REUSEPORT, 1);
    if (!shared) return Unexpected{shared.error()};
  }
  added.push_back({std::move(first), 0});

  ListenOptions joining = options.listen;
  joining.reuse_port = true;
  for (int hub = 1; hub < hubs; ++hub) {
    RUNLOOM_TRY(TcpListener next, TcpListener::listen(bound, joining));
    added.push_back({std::move(next), hub});
  }
  for (Acceptor& each : added)
    acceptors.push_back(std::move(each));
  scheduler = current;
  return bound;
}

// ---------------------------------------------------------------- accepting

void Server::Impl::accept_until_stopped(Acceptor& acceptor) {
  AcceptBackoff backoff;
  // Looked at each time, because an accept that doesn't have to wait is not cancelled.
  while (!stopping.load()) {
    Address peer;
    auto stream = acceptor.listener.accept_from(peer);
    if (stream) {
      backoff.reset();
      if (admit(*stream)) start(std::move(*stream), peer, acceptor.hub);
      continue;
    }
    if (is_end(stream.error())) break;
    if (is_fatal(stream.error())) {
      faults.add(ServerFault::listener, stream.error(), peer);
      fail_with(stream.error());
      break;
    }
    // The connection waits in the backlog, and so do we.
    faults.add(ServerFault::accept, stream.error(), peer);
    if (!this_fiber::sleep_for(backoff.next())) break;
  }
  const Shield shield;
  if (may_drain()) take_backlog(acceptor);
  acceptor.listener.close();
}

void Server::Impl::take_backlog(Acceptor& acceptor) {
  // Bounded: new connections may come as fast as we take them.
  for (int i = 0; i <= options.listen.backlog; ++i) {
    Address peer;
    auto stream = acceptor.listener.accept_from(peer, Deadline::now());
    if (!stream) return;
    if (options.max_connections > 0 && !slots.try_acquire()) {
      rejected.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    start(std::move(*stream), peer, acceptor.hub);
  }
}

// Whether there is room for one more; waits for it, if the options say so.
bool Server::Impl::admit(TcpStream& stream) {
  if (options.max_connections == 0 || slots.try_acquire()) return true;
  if (!options.reject_over_limit && slots.acquire()) return true;
  rejected.fetch_add(1, std::memory_order_relaxed);
  stream.close();
  return false;
}

// ---------------------------------------------------------------- handlers

void Server::Impl::start(TcpStream stream, const Address& peer, int hub) {
  if (options.placement == ServerOptions::Placement::least_loaded)
    hub = Scheduler::current()->least_loaded_hub();
  active.fetch_add(1, std::memory_order_relaxed);
  const auto started = handlers->spawn(
      [this, peer, connection = std::move(stream)]() mutable { run(std::move(connection), peer); },
      {.name = "connection", .stack_size = options.stack_size, .hub = hub});
  if (started) {
    accepted.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  faults.add(ServerFault::no_fiber, started.error(), peer);
  leave();
}

void Server::Impl::run(TcpStream stream, const Address& peer) {
  std::exception_ptr exception;
  {
    const SocketList::Entry entry(sockets, stream.fd());
    try {
      handler(std::move(stream));
    } catch (...) {
      exception = std::current_exception();
    }
  }
  if (exception) faults.add(ServerFault::handler_exception, {}, peer, exception);
  leave();
}

void Server::Impl::leave() noexcept {
  if (options.max_connections > 0) slots.release();
  active.fetch_sub(1, std::memory_order_relaxed);
}

// ---------------------------------------------------------------- the server's life

Result<void> Server::Impl::serve() {
  const Scheduler* current = Scheduler::current();
  if (!current) return fail(Errc::not_in_fiber);
  if (scheduler && scheduler != current) return fail(Errc::wrong_scheduler);
  Phase expected = Phase::made;
  RUNLOOM_CHECK(phase.compare_exchange_strong(expected, Phase::serving),
                "serve() was called a second time");
  {
    JoinSet<> connections;
    handlers = &connections;
    JoinSet<> accepting;
    for (Acceptor& acceptor : acceptors) {
      const auto started = accepting.spawn([this, &acceptor] { accept_until_stopped(acceptor); },
                                           {.name = "acceptor", .hub = acceptor.hub});
      if (!started) fail_with(started.error());
    }
    if (const auto stopped = stop_wanted.wait(); !stopped) fail_with(stopped.error());
    const Shield shield;
    accepting.cancel();
    static_cast<void>(accepting.wait());
    end_handlers();
  }
  const Shield shield;
  phase.store(Phase::ended);
  ended.set();
  static_cast<void>(stoppers.wait());
  const std::lock_guard hold(mutex);
  if (failure) return Unexpected{failure};
  return {};
}

void Server::Impl::end_handlers() {
  if (drained()) return;
  cancelled.fetch_add(active.load(std::memory_order_relaxed), std::memory_order_relaxed);
  handlers->cancel();
  if (handlers->wait(Deadline::after(options.cancel_grace))) return;
  sockets.close();
  static_cast<void>(handlers->wait());
}

// Waits for the handlers until the drain deadline, which may be moved meanwhile.
bool Server::Impl::drained() {
  CancelScope scope;
  {
    const std::lock_guard hold(mutex);
    scope.set_deadline(drain);
    draining = &scope;
  }
  const bool all_ended = handlers->wait().has_value();
  const std::lock_guard hold(mutex);
  draining = nullptr;
  return all_ended;
}

bool Server::Impl::may_drain() {
  const std::lock_guard hold(mutex);
  return !drain.passed();
}

void Server::Impl::begin_stop(Deadline deadline) noexcept {
  {
    const std::lock_guard hold(mutex);
    drain = Deadline::earlier(drain, deadline);
    if (draining) draining->set_deadline(drain);
  }
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

}  // namespace runloom::net
