// What the parts of the server share.
//
//   server.cpp             the life of a server, from serve() to its end
//   server_listen.cpp      where it listens
//   server_accept.cpp      from the backlog to a fiber
//   server_connection.cpp  from the fiber's start to its end
//   connection.cpp         what the handler sees
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "peer_limit.hpp"
#include "runloom/net/server.hpp"
#include "runloom/net/tcp_listener.hpp"
#include "runloom/net/unix_listener.hpp"
#include "runloom/sched/cancel.hpp"
#include "runloom/sched/event.hpp"
#include "runloom/sched/join_set.hpp"
#include "runloom/sched/semaphore.hpp"
#include "runloom/sched/wait_group.hpp"
#include "server_counters.hpp"
#include "server_report.hpp"
#include "socket_list.hpp"

namespace runloom::net {

struct Server::Impl {
  enum class Handover : std::uint8_t { none, same_sockets, same_ports };
  // One listening socket, and the fiber that accepts from it.
  struct Acceptor {
    std::variant<TcpListener, UnixListener> listener;
    Address bound;
    bool any_address = false;  // bound to all: each connection has its own local address
    std::size_t index = 0;     // which listen()
    int hub = 0;
    bool spreads = false;  // has hubs to serve that have no listener

    const Fd& fd() const noexcept;
    void close() noexcept;
  };
  // A connection on its way to its fiber.
  struct Accepted {
    std::variant<TcpStream, UnixStream> socket{};
    Address peer{};
    PeerLimit::Ticket ticket{};
    const Acceptor* from = nullptr;
    bool proxied = false;  // begins with a PROXY header
  };

  Impl(Handler plain, ConnectionHandler full, ServerOptions wanted);

  // --- server_listen.cpp ---
  Result<const Scheduler*> may_listen() const;
  Result<Address> listen(const Address& address);
  Result<Address> listen_on(OwnedFd socket);
  Result<Address> listen_tcp(const Address& address, const Scheduler& current);
  Result<Address> listen_unix(const Address& address);
  void add(std::variant<TcpListener, UnixListener> listener, const Address& bound, int hub);
  void place_acceptors();
  std::vector<ListenFd> listeners() const;
  void steer_away() const noexcept;

  // --- server_accept.cpp ---
  static Result<Accepted> accept_from(Acceptor& acceptor, Deadline deadline);
  void accept_until_stopped(Acceptor& acceptor);
  void take_backlog(Acceptor& acceptor, std::optional<Accepted> waiting);
  bool identify(Accepted& connection);
  void reject() noexcept;
  void start(Accepted connection);

  // --- server_connection.cpp ---
  void run(Accepted accepted);
  void run_plain(TcpStream stream);
  void run_full(Accepted& accepted);
  bool prepare(Connection& connection, Accepted& accepted);
  bool read_header(Connection& connection, Accepted& accepted, Deadline deadline);
  void linger_on(Connection& connection);
  void leave() noexcept;

  // --- server.cpp ---
  Result<void> serve();
  void begin_stop(Deadline deadline, Handover to = Handover::none) noexcept;
  void watch_signals();
  void end_handlers();
  bool drained();
  Deadline drain_deadline() const;
  void fail_with(std::error_code error) noexcept;
  ServerStats stats() const noexcept;

  // Bounds what runs inside it by the drain deadline, which may be moved meanwhile.
  class DrainScope {
   public:
    explicit DrainScope(Impl& server);
    ~DrainScope();
    DrainScope(const DrainScope&) = delete;
    DrainScope& operator=(const DrainScope&) = delete;

   private:
    friend struct Impl;
    Impl& server_;
    CancelScope scope_;
    DrainScope* prev_ = nullptr;
    DrainScope* next_ = nullptr;
  };

  const Handler plain;  // one of the two
  const ConnectionHandler full;
  const ServerOptions options;
  std::vector<Acceptor> acceptors;
  std::size_t listens = 0;
  const Scheduler* scheduler = nullptr;  // of listen()
  JoinSet<>* handlers = nullptr;         // serve()'s, while acceptors run
  SocketList sockets;
  Semaphore slots;  // used when max_connections is set
  PeerLimit peers;
  FaultLog faults;
  ServerCounters counters;
  const Signals* signals = nullptr;
  std::chrono::milliseconds signal_drain{};

  enum class Phase : std::uint8_t { made, serving, ended };
  std::atomic<Phase> phase{Phase::made};
  std::atomic<bool> stopping{false};
  std::atomic<Handover> handover{Handover::none};
  Event stop_wanted;
  Event ended;
  WaitGroup stoppers;        // calls of stop() that have not left
  mutable std::mutex mutex;  // guards what follows
  Deadline drain{};
  DrainScope* draining = nullptr;  // those who wait until `drain`
  std::error_code failure;         // why serve() ends, unless it was stopped
};

}  // namespace runloom::net
