// Server: accepts connections over TCP and Unix sockets, and runs a handler for each on a fiber of
// its own.
//
//     net::Server server([](net::Connection& connection) { ... });
//     auto address = server.listen(net::Address::any_ipv4(8080));
//     ...                                    // hand server.begin_stop() to whoever ends it
//     auto served = server.serve();          // until then
//
// A server is a nursery: serve() returns only when every handler has ended. It keeps serving when
// it runs out of descriptors or memory, and what goes wrong with one connection stays there.
// What it can be told stands in server_options.hpp, what a handler can do in connection.hpp.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "runloom/net/address.hpp"
#include "runloom/net/connection.hpp"
#include "runloom/net/listen_fds.hpp"
#include "runloom/net/owned_fd.hpp"
#include "runloom/net/server_options.hpp"
#include "runloom/net/tcp_stream.hpp"
#include "runloom/sched/deadline.hpp"
#include "runloom/sched/result.hpp"

namespace runloom::net {

class Signals;

class Server {
 public:
  // Called on the connection's fiber, on several hubs at a time. A handler that throws ends its
  // connection only.
  //
  // The connection is closed when the handler returns, as ServerOptions::linger says, unless its
  // stream was taken out of it.
  using ConnectionHandler = std::function<void(Connection&)>;
  // For TCP alone, with a stream of its own, which is closed when the handler returns unless it was
  // moved elsewhere. Options that are for handlers of Connection are not for this one: a server
  // that was told to read PROXY headers, to wrap or to linger aborts.
  using Handler = std::function<void(TcpStream)>;

  explicit Server(ConnectionHandler handler, ServerOptions options = {});
  explicit Server(Handler handler, ServerOptions options = {});
  // serve() must have returned, if it was called.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Binds and listens, on every hub that will accept; returns the address with the port that the
  // kernel chose. Doesn't park, but for a Unix socket as BoundPath::bind does. On a fiber (else
  // not_in_fiber), before serve(); may be called for several addresses. Fails with the kernel's
  // error (EADDRINUSE, EACCES, ...), with EAFNOSUPPORT for a Unix address and a handler of
  // TcpStream. With several listeners of its own the server still takes the port for itself: a
  // second server fails with EADDRINUSE, unless both set ListenOptions::reuse_port.
  Result<Address> listen(const Address& address);
  // Takes a listening socket over: from listen_fds(), from a predecessor (handover.hpp), or
  // anybody. Returns where it listens. Several of one address are spread over the hubs. When it
  // fails the socket is closed: EINVAL when it does not listen, EPROTOTYPE when it is neither TCP
  // nor a Unix stream socket, and as listen(). The file of a Unix socket is its maker's, until
  // claim_files().
  Result<Address> listen_on(OwnedFd socket);
  // The files of the Unix sockets of listen_on() are removed at the end of serve() from now on.
  // Any thread, until serve() returns.
  void claim_files() noexcept;
  // Duplicates of the listening sockets, named by their addresses, for a successor. Any thread,
  // once listen() and listen_on() are done. Empty when they were closed.
  std::vector<ListenFd> listeners() const;

  // Before serve(): the first of the signals that comes while it serves calls
  // begin_stop(Deadline::after(drain)), another one begin_stop(Deadline::now()). `signals` must
  // outlive serve().
  void stop_on(const Signals& signals, std::chrono::milliseconds drain);

  // Serves until stop; parks. Without a listen() before it nobody can come, and it waits for the
  // stop. Returns when all handlers have ended and the ports are free. Fails
  // with the error of a listener that broke, or with cancelled or timed_out when the caller is
  // cancelled, and then as after begin_stop(Deadline::now()). Once.
  Result<void> serve();

  // Ends serve(): the listeners are closed, after what their backlogs hold was taken (see
  // ServerOptions::backlog_at_stop); handlers may
  // run until `drain` and are then cancelled, and after ServerOptions::cancel_grace their
  // connections are closed. Deadline::now() takes nothing more and cancels at once. Doesn't park.
  // Any thread, handlers included. The earliest `drain` of all calls counts.
  void begin_stop(Deadline drain) noexcept;
  // As begin_stop, once a successor accepts (see handover.hpp, which calls this). Of the same
  // sockets what waits in the backlogs is his, and so are the files of Unix sockets. If he has TCP
  // sockets of his own on the same ports (ListenOptions::reuse_port), new connections are steered
  // to those, and what has come here already is served; see decision 063 for what that takes.
  enum class Successor : std::uint8_t { same_sockets, same_ports };
  void begin_handover(Deadline drain, Successor successor = Successor::same_sockets) noexcept;
  // begin_stop, then waits until serve() is about to return. Parks, is a cancel point.
  Result<void> stop(Deadline drain);

  // A snapshot; any thread.
  ServerStats stats() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace runloom::net
