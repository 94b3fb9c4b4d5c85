// Server: accepts TCP connections and runs a handler for each on a fiber of its own.
//
//     net::Server server([](net::TcpStream stream) { ... });
//     auto address = server.listen(net::Address::any_ipv4(8080));
//     ...                                    // hand server.begin_stop() to whoever ends it
//     auto served = server.serve();          // until then
//
// A server is a nursery: serve() returns only when every handler has ended. It keeps serving when
// it runs out of descriptors or memory, and what goes wrong with one connection stays there.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>

#include "runloom/net/address.hpp"
#include "runloom/net/options.hpp"
#include "runloom/net/tcp_stream.hpp"
#include "runloom/sched/deadline.hpp"
#include "runloom/sched/result.hpp"

namespace runloom::net {

// What went wrong in a server. Everything else that ends a connection (a reset, a deadline) is
// traffic, and the handler's own business.
enum class ServerFault : std::uint8_t {
  accept,             // no descriptor, buffer or memory for a connection; tried again after a pause
  no_fiber,           // no fiber or stack for a connection, which was closed
  handler_exception,  // a handler threw; its connection was closed
  listener,           // accept failed for good: the server ends
};
inline constexpr std::size_t kServerFaults = 4;
const char* to_string(ServerFault fault) noexcept;

struct ServerReport {
  ServerFault fault;
  std::error_code error{};         // zero for handler_exception
  std::exception_ptr exception{};  // of handler_exception
  std::string_view text;           // the error's message or the exception's what()
  Address peer{};                  // where there is one
  std::uint64_t left_out = 0;      // reports of this fault that were not made since the last
};

struct ServerOptions {
  ListenOptions listen{};

  // How connections come to the scheduler's hubs, where there is more than one.
  enum class Placement : std::uint8_t {
    listener_per_hub,  // one listener a hub on the same port: the kernel spreads connections
    least_loaded,      // one listener: each connection goes to the hub with the fewest fibers
  };
  Placement placement = Placement::listener_per_hub;

  // Handlers that may run at the same time; 0: any number. At the limit clients wait, in the
  // backlog but for one that each listener has taken; with `reject_over_limit` they are closed.
  std::size_t max_connections = 0;
  bool reject_over_limit = false;

  // Of a handler's fiber, in bytes; 0: the scheduler's.
  std::size_t stack_size = 0;
  // How long stop() lets cancelled handlers clean up before their connections are closed.
  std::chrono::milliseconds cancel_grace{1000};
  // Called for faults, at most once a second for each kind, on the fiber that met it (several
  // hubs may call at a time). None: a line on stderr.
  std::function<void(const ServerReport&)> report{};
};

// Counted since the server was made.
struct ServerStats {
  std::uint64_t accepted = 0;                         // handlers started
  std::uint64_t active = 0;                           // handlers that run now
  std::uint64_t rejected = 0;                         // closed because of max_connections
  std::uint64_t cancelled = 0;                        // handlers that were cancelled by stop()
  std::array<std::uint64_t, kServerFaults> faults{};  // by ServerFault
  std::uint64_t fault(ServerFault which) const noexcept {
    return faults[static_cast<std::size_t>(which)];
  }
};
// "accepted 3, active 0, rejected 0, cancelled 0", and the faults that happened.
std::string to_string(const ServerStats& stats);

class Server {
 public:
  // Called on the connection's fiber, on several hubs at a time. The stream is closed when the
  // handler returns, unless it was moved elsewhere. A handler that throws ends its connection only.
  using Handler = std::function<void(TcpStream)>;

  explicit Server(Handler handler, ServerOptions options = {});
  // serve() must have returned, if it was called.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Binds and listens, on every hub that will accept; returns the address with the port that the
  // kernel chose. Doesn't park. On a fiber (else not_in_fiber), before serve(); may be called for
  // several addresses. Fails with the kernel's error (EADDRINUSE, EACCES, ...). With several
  // listeners of its own the server still takes the port for itself: a second server fails with
  // EADDRINUSE, unless both set ListenOptions::reuse_port.
  Result<Address> listen(const Address& address);

  // Serves until stop; parks. Without a listen() before it nobody can come, and it waits for the
  // stop. Returns when all handlers have ended and the ports are free. Fails
  // with the error of a listener that broke, or with cancelled or timed_out when the caller is
  // cancelled, and then as after begin_stop(Deadline::now()). Once.
  Result<void> serve();

  // Ends serve(): the listeners are closed, after what their backlogs hold was taken; handlers may
  // run until `drain` and are then cancelled, and after ServerOptions::cancel_grace their
  // connections are closed. Deadline::now() takes nothing more and cancels at once. Doesn't park.
  // Any thread, handlers included. The earliest `drain` of all calls counts.
  void begin_stop(Deadline drain) noexcept;
  // begin_stop, then waits until serve() is about to return. Parks, is a cancel point.
  Result<void> stop(Deadline drain);

  // A snapshot; any thread.
  ServerStats stats() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace runloom::net
