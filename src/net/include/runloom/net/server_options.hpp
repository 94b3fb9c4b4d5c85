// What a server can be told, and what it tells: options, faults, counters.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "runloom/net/address.hpp"
#include "runloom/net/network.hpp"
#include "runloom/net/options.hpp"
#include "runloom/net/stream.hpp"
#include "runloom/net/unix_listener.hpp"
#include "runloom/sched/deadline.hpp"
#include "runloom/sched/result.hpp"

namespace runloom::net {

// Who is at the other end of a connection, and where it came in.
struct ConnectionInfo {
  Address peer{};            // the client: as the kernel has it, or as a trusted proxy told
  Address local{};           // where it connected to, likewise
  Address proxy{};           // who told: the peer of the socket; no address where nobody did
  std::string tlvs{};        // what else the proxy told, see ProxyTlvs
  std::size_t listener = 0;  // which listen() or listen_on() of the server, from 0
};

// What went wrong in a server. Everything else that ends a connection (a reset, a deadline) is
// traffic, and the handler's own business.
enum class ServerFault : std::uint8_t {
  accept,             // no descriptor, buffer or memory for a connection; tried again after a pause
  no_fiber,           // no fiber or stack for a connection, which was closed
  handler_exception,  // a handler (or `wrap`) threw; its connection was closed
  listener,           // accept failed for good: the server ends
  proxy_header,       // a trusted proxy's header was wrong or missing; the connection was closed
  handshake,          // ServerOptions::wrap failed; the connection was closed
  notify,             // the service manager could not be told
};
inline constexpr std::size_t kServerFaults = 7;
const char* to_string(ServerFault fault) noexcept;

struct ServerReport {
  ServerFault fault;
  std::error_code error{};         // zero for handler_exception
  std::exception_ptr exception{};  // of handler_exception
  std::string_view text;           // the error's message or the exception's what()
  Address peer{};                  // where there is one
  std::uint64_t left_out = 0;      // reports of this fault that were not made since the last
};

// The line that a server without ServerOptions::report writes.
std::string to_string(const ServerReport& report);

// How long a peer may take. Zero: for ever.
struct ServerTimeouts {
  // From accept until the PROXY header was read and `wrap` has made its stream.
  std::chrono::milliseconds handshake{10'000};
  // Of requests, see Connection; they count from its await_request() on.
  std::chrono::milliseconds first_byte{30'000};  // until the first byte of the first request
  std::chrono::milliseconds idle{60'000};        // until the first byte of each further one
  std::chrono::milliseconds head{20'000};        // from that byte until head_done()
  std::chrono::milliseconds body{60'000};        // of waiting in reads after it
  std::chrono::milliseconds write{60'000};       // of waiting in writes, in each request
  // Bytes a second that are fast enough: each byte of a body or of an answer adds its share to the
  // time, so that a big one is not cut off and a slow peer still is. 0: none does.
  std::uint32_t least_rate = 1024;
};
// Which of them. `count` is no timeout.
enum class ServerTimeout : std::uint8_t { handshake, first_byte, idle, head, body, write, count };
inline constexpr std::size_t kServerTimeouts = static_cast<std::size_t>(ServerTimeout::count);

// PROXY protocol, versions 1 and 2: connections come through proxies that tell in front of each
// who the client is. Nothing in the bytes says whether a header is to be expected, so that is for
// the configuration to say: a client that could send one would choose its own address.
struct ProxyOptions {
  // The proxies. Each connection of one must begin with a header. Empty: no PROXY protocol.
  std::vector<Network> trusted{};
  // Whether others are served as they come; else they are closed.
  bool serve_untrusted = false;
};

struct ServerOptions {
  ListenOptions listen{};           // of TCP addresses
  UnixListenOptions unix_listen{};  // of Unix sockets

  // How connections come to the scheduler's hubs, where there is more than one.
  enum class Placement : std::uint8_t {
    listener_per_hub,  // one listener a hub on the same port: the kernel spreads connections
    least_loaded,      // one listener: each connection goes to the hub with the fewest fibers
  };
  // Unix sockets, and listeners that came from elsewhere and are fewer than hubs, are least_loaded.
  Placement placement = Placement::listener_per_hub;

  // Handlers that may run at the same time; 0: any number. At the limit clients wait, in the
  // backlog but for one that each listener has taken; with `reject_over_limit` they are closed.
  std::size_t max_connections = 0;
  bool reject_over_limit = false;
  // Connections that one peer may have at the same time; 0: any number. More are closed. A peer is
  // an IPv4 address or the network of an IPv6 address (what one customer has is a /64 at least);
  // Unix sockets have none. Of a trusted proxy's connections the client counts, not the proxy.
  std::size_t max_connections_per_peer = 0;
  int ipv6_peer_prefix = 64;  // bits, 1 to 128

  // --- for handlers of Connection ---
  ServerTimeouts timeouts{};
  ProxyOptions proxy{};
  // Puts a protocol between the socket and the handler, such as TLS: called on the connection's
  // fiber with the socket's stream, returns what the handler is to use, or why it can't. May park,
  // at most until the deadline (ServerTimeouts::handshake); accepting goes on meanwhile.
  using Wrap = std::function<Result<std::unique_ptr<Stream>>(std::unique_ptr<Stream>,
                                                             const ConnectionInfo&, Deadline)>;
  Wrap wrap{};
  // Ends each connection by lingering_close(), within these limits, once its handler has returned:
  // a client that is still sending reads the answer, and no reset. Those whose time was up are
  // closed at once. None: a plain close.
  struct Linger {
    std::chrono::milliseconds time{2000};
    std::size_t bytes = 1024 * 1024;
  };
  std::optional<Linger> linger{};

  // Of a handler's fiber, in bytes; 0: the scheduler's.
  std::size_t stack_size = 0;
  // The program's functions (handler, wrap, report) are called on fibers of the language whose
  // binding the scheduler serves, see SpawnOptions::guest.
  bool guests = false;
  // What becomes of the connections that wait in the backlog when the server stops: they are
  // connected as far as they know. Served, while the drain lasts; or reset by the kernel.
  enum class Backlog : std::uint8_t { serve, refuse };
  Backlog backlog_at_stop = Backlog::serve;
  // How long stop() lets cancelled handlers clean up before their connections are closed.
  std::chrono::milliseconds cancel_grace{1000};
  // Whether the service manager hears of serve() and its end, see systemd_notify.hpp: READY=1 when
  // it accepts, STOPPING=1 with the time that the drain may take, and WATCHDOG=1, where it is
  // wanted, as long as every hub runs fibers.
  bool notify_systemd = false;
  // Called for faults, at most once a second for each kind, on the fiber that met it (several
  // hubs may call at a time). None: a line on stderr.
  std::function<void(const ServerReport&)> report{};
};

// Counted since the server was made, but for what is there now.
struct ServerStats {
  std::uint64_t accepted = 0;        // connections that got a fiber
  std::uint64_t active = 0;          // of them, those there are now
  std::uint64_t rejected = 0;        // closed because of max_connections
  std::uint64_t cancelled = 0;       // handlers that were cancelled by stop()
  std::uint64_t rejected_peers = 0;  // closed because of max_connections_per_peer
  std::uint64_t peers = 0;           // peers that have connections now; counted with a limit
  std::uint64_t untrusted = 0;       // closed, because they came from no trusted proxy
  std::uint64_t proxied = 0;         // told by a proxy who they are
  std::uint64_t handshakes = 0;      // done by `wrap`
  std::uint64_t lingered = 0;        // ended by lingering_close()
  std::uint64_t taken_at_stop = 0;   // accepted from the backlog while stopping
  std::uint64_t closed_at_stop = 0;  // closed under a handler that did not end
  std::array<std::uint64_t, kServerTimeouts> timeouts{};  // by ServerTimeout
  std::array<std::uint64_t, kServerFaults> faults{};      // by ServerFault
  std::uint64_t fault(ServerFault which) const noexcept {
    return faults[static_cast<std::size_t>(which)];
  }
  std::uint64_t timeout(ServerTimeout which) const noexcept {
    return timeouts[static_cast<std::size_t>(which)];
  }
};
// "accepted 3, active 0, rejected 0, cancelled 0", what else is not 0, and the faults that
// happened.
std::string to_string(const ServerStats& stats);

}  // namespace runloom::net
