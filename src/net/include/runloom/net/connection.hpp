// Connection: what a server's handler gets. The stream of one client, who it is, and the deadlines
// of the server's options.
//
// A handler that speaks in requests says where it stands, and every read and write is then bounded
// as ServerTimeouts has it, whatever the peer does:
//
//     void serve(net::Connection& connection) {
//       for (;;) {
//         connection.await_request();    // first_byte, later idle
//         read_head(connection);         // from its first byte: head
//         connection.head_done();        // body
//         ...
//         connection.write_all(answer);  // write
//       }
//     }
//
// The deadlines are absolute: no byte that the peer sends or takes starts one afresh. Reads and
// writes fail with Errc::timed_out as with any deadline, expired() says which one it was. Before
// the first await_request() a call is bounded by its own argument only, and costs nothing more.
//
// When the server stops, who waits for a further request waits no more: the read fails with
// Errc::closed. A request that has begun goes on, and its answer is the last: see stopping().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>

#include "runloom/net/address.hpp"
#include "runloom/net/request_clock.hpp"
#include "runloom/net/server_options.hpp"
#include "runloom/net/stream.hpp"
#include "runloom/net/tcp_stream.hpp"
#include "runloom/net/unix_stream.hpp"
#include "runloom/sched/deadline.hpp"
#include "runloom/sched/result.hpp"

namespace runloom::net {

// One fiber at a time reads, one writes; the calls that tell where the handler stands are made when
// no other fiber is inside a call.
class Connection final : public Stream {
 public:
  // The server makes them.
  Connection(std::variant<TcpStream, UnixStream> socket, ConnectionInfo info,
             const ServerTimeouts& timeouts, ServerCounters& counters,
             const std::atomic<bool>& stopping);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  const ConnectionInfo& info() const noexcept { return info_; }

  // --- Stream ---
  Result<std::size_t> read_some(std::span<std::byte> buffer, Deadline deadline = {}) override;
  Result<std::size_t> read_late(RecvBuffer& buffer, Deadline deadline = {}) override;
  Result<std::size_t> write_some(std::span<const std::byte> data, Deadline deadline = {}) override;
  Result<void> write_all(std::span<const std::byte> data, Deadline deadline = {},
                         std::size_t* bytes_written = nullptr) override;
  Result<void> writev_all(std::span<const iovec> buffers, Deadline deadline = {},
                          std::size_t* bytes_written = nullptr) override;
  Result<void> wait_readable(Deadline deadline = {}) override;
  Result<void> shutdown_write() override { return stream_->shutdown_write(); }
  void close() noexcept override { stream_->close(); }

  // --- where the handler stands; doesn't park ---
  // A request is expected: its first byte until ServerTimeouts::first_byte, after an earlier
  // request until `idle`. From that byte on its head is read, until `head`. The time for writes
  // starts afresh. `begun`: its first bytes were read together with the request before it
  // (BufferedReader::unread()).
  void await_request(bool begun = false) noexcept { clock_->await_request(begun); }
  // The head is there. What follows may take ServerTimeouts::body of waiting in all, and as much
  // longer as its bytes take at `least_rate`.
  void head_done() noexcept { clock_->head_done(); }
  // No deadlines but those of the calls, until the next await_request(): for a connection that
  // becomes something else, such as a stream of events.
  void unbounded() noexcept { clock_->unbounded(); }
  // Which of the deadlines ended a call, the last time one did.
  using Expired = RequestClock::Expired;
  Expired expired() const noexcept { return clock_->expired(); }
  // The server is stopping: a protocol that can tell the client that no further request will be
  // answered (Connection: close) does so now. Any thread.
  bool stopping() const noexcept { return clock_->stopping(); }

  // --- the stream below ---
  // What reads and writes go to: the socket, or what ServerOptions::wrap made of it.
  Stream& below() noexcept { return *stream_; }
  // The socket, where nothing was wrapped around it; else null.
  TcpStream* tcp() noexcept { return wrapped_ ? nullptr : std::get_if<TcpStream>(&socket_); }
  UnixStream* unix_stream() noexcept {
    return wrapped_ ? nullptr : std::get_if<UnixStream>(&socket_);
  }
  // Takes the stream out; the connection is closed then, and the server leaves the stream alone,
  // but for the end of its own serve(): a handler that goes on with it elsewhere has to be cut off
  // elsewhere.
  std::unique_ptr<Stream> take();

  // --- for who reads the socket by other means ---
  // What the calls above go by. It may outlive the connection, but not the server.
  const std::shared_ptr<RequestClock>& clock() noexcept { return clock_; }
  // Puts another stream, over the descriptor that was taken out, in place of what is below: the
  // server closes it, or lingers on it, when the handler has returned.
  void replace(std::unique_ptr<Stream> stream);
  // The connection is this descriptor's now: that one is closed when the server, at its stop, can't
  // wait any longer for the handler. While the handler runs.
  void follow(const Fd& socket) noexcept;

 private:
  friend class Server;
  friend class SocketList;
  // Puts what `wrap` makes of the stream in its place.
  Result<void> wrap(const ServerOptions::Wrap& wrap, Deadline deadline);
  const Fd& socket_fd() const noexcept;

  std::variant<TcpStream, UnixStream> socket_;
  std::unique_ptr<Stream> wrapped_;
  Stream* stream_;
  ConnectionInfo info_;
  std::shared_ptr<RequestClock> clock_;
  // Of the server's list of sockets, while the handler runs.
  void (*follow_)(void* entry, const Fd& socket) = nullptr;
  void* entry_ = nullptr;
  bool taken_ = false;
};

}  // namespace runloom::net
