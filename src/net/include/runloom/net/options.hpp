// Options of listeners, connections and the server. Plain aggregates: name what differs from the
// default, `{.backlog = 64, .reuse_port = true}`.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>

#include "runloom/net/address.hpp"

namespace runloom::net {

// When the kernel probes a silent peer. A peer that answers none of the probes makes the next
// read fail with ETIMEDOUT, after idle + interval * probes.
struct KeepAlive {
  std::chrono::seconds idle{60};      // silence before the first probe
  std::chrono::seconds interval{10};  // between probes
  int probes = 6;
};

// What a TCP connection is set up with. A listener's connections inherit it from the listener, so
// that it costs no system call a connection.
struct TcpOptions {
  bool no_delay = true;                   // send small writes at once (TCP_NODELAY)
  std::optional<KeepAlive> keep_alive{};  // none: a dead peer is noticed only by writing to it
  // Bytes of the kernel's buffers; 0 leaves them to its autotuning. Set before the handshake,
  // because the window scale is fixed there.
  int send_buffer = 0;
  int receive_buffer = 0;
};

struct ListenOptions {
  // Connections that may wait to be accepted; the kernel lowers it to net.core.somaxconn.
  int backlog = 1024;
  bool reuse_address = true;  // bind although old connections of the port linger in TIME_WAIT
  bool reuse_port = false;    // several listeners share the port; the kernel spreads connections
  // For IPv6 listeners: whether IPv4 clients are refused. None: as net.ipv6.bindv6only says.
  std::optional<bool> v6_only{};
  TcpOptions tcp{};
};

struct ConnectOptions {
  // Where to connect from; no address: the kernel's choice.
  Address local{};
  bool reuse_address = false;  // for a `local` with a port
  TcpOptions tcp{};
};

}  // namespace runloom::net
