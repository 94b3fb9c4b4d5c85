// UdpEndpoint: a UDP socket, bound, connected, both or neither.
//
// Any fiber and any OS thread may use it at the same time, close() included; only moving and
// destroying it need that nobody else uses the object. Receives are served one after the other,
// first come first served, and so are sends. Destroying closes.
//
// Errors are the kernel's, each told once and to one call: what a datagram met on its way (an ICMP
// message) comes back as ECONNREFUSED, EHOSTUNREACH or the like, from a later send or receive, and
// only where the endpoint is connected. Others never hear of it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "runloom/net/address.hpp"
#include "runloom/net/datagram.hpp"
#include "runloom/net/fd.hpp"

namespace runloom::net {

// The most bytes that a datagram can have: over IPv4, over IPv6.
inline constexpr std::size_t kMostUdpIpv4 = 65'507;
inline constexpr std::size_t kMostUdpIpv6 = 65'527;

struct UdpOptions {
  // Bind to a local address that others are bound to as well; of several the kernel gives each
  // datagram to the last one (multicast: to all).
  bool reuse_address = false;
  bool reuse_port = false;  // several endpoints share the port; the kernel spreads senders
  bool broadcast = false;   // allow sending to broadcast addresses
  // For IPv6: whether IPv4 peers are left out. None: as net.ipv6.bindv6only says.
  std::optional<bool> v6_only{};
  // Bytes of the kernel's buffers, which it doubles; 0: its default. What doesn't fit into the
  // receive buffer is lost.
  int send_buffer = 0;
  int receive_buffer = 0;
  // Tell where each datagram was sent to: Datagram::destination, local and interface.
  bool destination = false;
  // Let the kernel join runs of datagrams of one sender (UDP_GRO). Buffers should have 64 KiB
  // then. Where the kernel can't it is no error: see coalesces_received().
  bool coalesce_received = false;
  // Of connect(): where to send from.
  Address local{};
};

class UdpEndpoint {
 public:
  UdpEndpoint() = default;  // closed
  UdpEndpoint(UdpEndpoint&&) noexcept = default;
  UdpEndpoint& operator=(UdpEndpoint&&) noexcept = default;

  // --- making one; these don't park, and fail with the kernel's error ---
  // Neither bound nor connected: the first send binds it to a port. AF_INET or AF_INET6.
  static Result<UdpEndpoint> open(int family, const UdpOptions& options = {});
  // Bound to a local address; port 0 lets the kernel choose.
  static Result<UdpEndpoint> bind(const Address& local, const UdpOptions& options = {});
  // Connected: sends to that peer and receives from it alone.
  static Result<UdpEndpoint> connect(const Address& peer, const UdpOptions& options = {});
  // Takes a UDP socket over, see Fd::adopt. EPROTOTYPE for anything else.
  static Result<UdpEndpoint> adopt(int fd);

  // False once it was closed.
  explicit operator bool() const noexcept { return static_cast<bool>(fd_); }
  const Fd& fd() const noexcept { return fd_; }

  // --- one datagram ---
  // Parks until one has come. Cancel point, as everything here that parks.
  Result<Datagram> recv_from(std::span<std::byte> buffer, Deadline deadline = {}) const;
  // As recv_from, for who knows the sender: how many bytes of the buffer it filled. `full_size`,
  // where given, is how many were sent, see Datagram.
  Result<std::size_t> recv(std::span<std::byte> buffer, Deadline deadline = {},
                           std::size_t* full_size = nullptr) const;
  // Sends one datagram, whole or not at all: EMSGSIZE when it is too large. Parks while the send
  // buffer is full.
  Result<void> send_to(std::span<const std::byte> data, const Address& peer,
                       Deadline deadline = {}) const;
  Result<void> send(const OutDatagram& datagram, Deadline deadline = {}) const;
  // To the peer that it is connected to; EDESTADDRREQ when there is none.
  Result<void> send(std::span<const std::byte> data, Deadline deadline = {}) const;

  // --- many in one system call ---
  // Parks until there is one datagram, then takes what has come, without waiting for more: fills
  // the first so many of `datagrams` and returns how many, 64 at most. Each needs its own buffer.
  Result<std::size_t> recv_many(std::span<Datagram> datagrams, Deadline deadline = {}) const;
  // Sends them in order; parks while the send buffer is full. Returns how many were sent: fewer
  // when one failed, which the next call will run into first, or when the deadline or a cancel
  // came in between. Fails only if the first one did. A run of datagrams to one peer, of one size,
  // costs about as much as a single one where the kernel does the segmentation; on the wire they
  // are the same.
  Result<std::size_t> send_many(std::span<const OutDatagram> datagrams,
                                Deadline deadline = {}) const;
  // Sends what was received (and perhaps changed in place) back to its senders, from the address
  // that it had been sent to, where that is known. A run that was coalesced counts as one.
  Result<std::size_t> send_many(std::span<const Datagram> datagrams, Deadline deadline = {}) const;
  // Sends the data as datagrams of `segment_size` bytes, the last one may be shorter. Returns how
  // many bytes were sent, which is less than all as with send_many.
  Result<std::size_t> send_segments(std::span<const std::byte> data, std::size_t segment_size,
                                    const Address& peer, Deadline deadline = {}) const;

  // --- waiting, ending ---
  // Parks until a receive would not: a datagram or an error is there.
  Result<void> wait_readable(Deadline deadline = {}) const;
  // Ends every operation in flight with Errc::closed. Idempotent, doesn't park.
  void close() noexcept { fd_.close(); }
  // As close(); returns when the port is free. Parks, but is no cancel point.
  void close_wait() noexcept { fd_.close_wait(); }
  // Gives the descriptor away, as TcpStream::detach.
  Result<int> detach() noexcept { return fd_.release(); }

  // --- addresses; these don't park, and fail with closed or the kernel's error ---
  Result<Address> local_address() const;
  Result<Address> peer_address() const;  // ENOTCONN when it has none
  // Connects it, to another peer if it has one. What is in the receive buffer stays there.
  Result<void> set_peer(const Address& peer) const;
  // Undoes that. The local port stays when it was bound, see connect(2).
  Result<void> clear_peer() const;

  // --- options; they don't park, and fail with closed or the kernel's error ---
  // Of IPv6 endpoints they set what holds for IPv6 traffic.
  Result<void> set_broadcast(bool on) const;
  Result<void> set_send_buffer(int bytes) const;
  Result<void> set_receive_buffer(int bytes) const;
  // Hops that a datagram may make, 1 to 255; -1 is the system's default.
  Result<void> set_hop_limit(int hops) const;
  // The type-of-service byte, or traffic class: DSCP and ECN.
  Result<void> set_traffic_class(int value) const;

  // A multicast group, on one interface by number; 0 is the kernel's choice. The family of `group`
  // must be the endpoint's; its port doesn't count. EADDRINUSE when joined already, EADDRNOTAVAIL
  // when not joined.
  Result<void> join_group(const Address& group, unsigned interface = 0) const;
  Result<void> leave_group(const Address& group, unsigned interface = 0) const;
  // Of what it sends to groups: by which interface, how far (0 to 255 hops; initially 1), and
  // whether members on this machine get it (initially they do).
  Result<void> set_multicast_interface(unsigned interface) const;
  Result<void> set_multicast_hop_limit(int hops) const;
  Result<void> set_multicast_loop(bool on) const;

  // Whether received datagrams may come coalesced.
  bool coalesces_received() const noexcept { return coalesces_; }

 private:
  // Whether it may be connected now: only then it is told of the network's errors.
  bool hears_errors() const noexcept {
    return std::atomic_ref(hears_errors_).load(std::memory_order_relaxed);
  }
  UdpEndpoint(Fd fd, int family) noexcept : fd_(std::move(fd)), family_(family) {}
  static Result<UdpEndpoint> make(int family, const UdpOptions& options);
  Result<void> set(int ipv4_name, int ipv6_name, int value) const;
  Result<void> membership(int name, const Address& group, unsigned interface) const;

  Fd fd_;
  int family_ = 0;
  bool tells_more_ = false;  // received datagrams come with control messages
  bool coalesces_ = false;
  mutable bool hears_errors_ = false;  // these two are used by any thread, as atomics
  mutable std::uint8_t lately_ = 8;    // how many datagrams recv_many should be ready for
};

}  // namespace runloom::net
