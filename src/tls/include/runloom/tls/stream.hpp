// Stream: TLS over any other stream, TLS included. See net/stream.hpp for what all streams do.
//
//     RUNLOOM_TRY(auto context, tls::Context::client());
//     RUNLOOM_TRY(auto tcp, net::TcpStream::connect(address));
//     tls::ClientOptions options{.host = "example.org"};
//     RUNLOOM_TRY(auto stream, tls::Stream::client(std::move(tcp), context, options));
//     if (auto ok = stream.handshake(Deadline::after(10s)); !ok) return ok;
//
// All calls but close() and those that say so may park and are cancel points, on fibers and on OS
// threads. One fiber may read while another writes, also on two hubs; further readers and writers
// queue in order. The first read or write makes the handshake when nobody has.
//
// Reads end in bytes, in 0 after the peer's close_notify, or in TlsErrc::unexpected_eof when the
// stream below ended without one. Writes are done when the stream below has taken everything. A
// deadline or a cancel between leaves what it has not taken in the stream's memory, for the next
// call that writes or shuts down, or a reader that waits; `bytes_written` counts it as written.
//
// States: `new` -> handshake() -> `established`, or `failed` for good. Reading and writing end
// one by one: reading by the peer's close_notify, a broken record, an alert or the end below;
// writing by shutdown_write(), shutdown() or an error below. After a deadline or a cancel a
// handshake, a read, and shutdown() may be called again and go on where they were.
//
// What was decrypted stands in the caller's memory and nowhere else: what is on the way there is
// wiped. Who must not leave it behind wipes his own; a BufferedReader or copy() does not.
//
// close() releases the stream below and says nothing to the peer, for which that is a truncation;
// say goodbye by shutdown_write() (all was said) or shutdown() (and the peer has agreed).
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "runloom/net/fd.hpp"
#include "runloom/net/stream.hpp"
#include "runloom/sched/deadline.hpp"
#include "runloom/sched/result.hpp"
#include "runloom/tls/context.hpp"
#include "runloom/tls/error.hpp"
#include "runloom/tls/session.hpp"

namespace runloom::tls {

struct ClientOptions {
  // A DNS name (ASCII) or an IP address: what the certificate must be for, and the name that the
  // server is told. Empty only where the context does not check.
  std::string host{};
  Session session{};  // to resume
  // Bytes that were read from the stream below already: BufferedReader::take_unread().
  std::string received{};
};
struct ServerOptions {
  std::string received{};  // as above
  // Asked in place of the context's own.
  ClientHelloHandler on_client_hello{};
};

using Bytes = std::vector<std::byte>;

class Stream final : public net::Stream {
 public:
  // Take over the stream below; nobody else may use it. Don't park and move no byte. ENOMEM,
  // TlsErrc::configuration: the host is no name or the context is of the other role.
  static Result<Stream> client(std::unique_ptr<net::Stream> below, const Context& context,
                               ClientOptions options = {});
  static Result<Stream> server(std::unique_ptr<net::Stream> below, const Context& context,
                               ServerOptions options = {});
  template <class S>
  requires std::derived_from<S, net::Stream> && std::move_constructible<S>
  static Result<Stream> client(S below, const Context& context, ClientOptions options = {}) {
    return client(std::make_unique<S>(std::move(below)), context, std::move(options));
  }
  template <class S>
  requires std::derived_from<S, net::Stream> && std::move_constructible<S>
  static Result<Stream> server(S below, const Context& context, ServerOptions options = {}) {
    return server(std::make_unique<S>(std::move(below)), context, std::move(options));
  }

  Stream() noexcept;  // closed
  ~Stream() override;
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&& other) noexcept;

  // Returns when both sides have agreed. With TLS 1.3 a server may still refuse the certificate of
  // a client that has finished: the client's first read tells. Once it has failed it stays so.
  Result<void> handshake(Deadline deadline = {});

  Result<std::size_t> read_some(std::span<std::byte> buffer, Deadline deadline = {}) override;
  Result<std::size_t> read_late(net::RecvBuffer& buffer, Deadline deadline = {}) override;
  // At most one record of 16 KiB. Returns the count also when the deadline or a cancel came before
  // the stream below had taken the whole record; the next write sends the rest first.
  Result<std::size_t> write_some(std::span<const std::byte> data, Deadline deadline = {}) override;
  // Nobody else's bytes come in between. Empty data: sends what an earlier call has left.
  Result<void> write_all(std::span<const std::byte> data, Deadline deadline = {},
                         std::size_t* bytes_written = nullptr) override;
  Result<void> writev_all(std::span<const iovec> buffers, Deadline deadline = {},
                          std::size_t* bytes_written = nullptr) override;
  // Takes the turn of a reader: others that read wait behind it.
  Result<void> wait_readable(Deadline deadline = {}) override;

  // Sends close_notify; the peer reads the end. The stream below stays open both ways, and reading
  // goes on. not_established before the handshake.
  Result<void> shutdown_write() override;
  Result<void> shutdown_write(Deadline deadline);
  // Sends close_notify and waits for the peer's, after which the stream below is free for something
  // else: release(). Data that comes meanwhile is dropped and ends the call with
  // data_after_close_notify at once. Waits for a reader to leave.
  Result<void> shutdown(Deadline deadline = {});
  void close() noexcept override;

  // After shutdown(), or before the handshake: the stream below, and what was read from it and
  // not used. Nobody else may use this stream, which is closed afterwards. Doesn't park.
  struct Released {
    std::unique_ptr<net::Stream> below;
    std::string received;
  };
  Released release() noexcept;

  // New keys for what we send, and for what the peer sends when `peer_too`. TLS 1.3 only:
  // TlsErrc::protocol with others. A writer has to leave first.
  Result<void> update_keys(bool peer_too = false, Deadline deadline = {});

  // What was agreed upon. Any time, any thread; don't wait for the peer. Empty before the
  // handshake.
  bool established() const noexcept;
  std::optional<Version> version() const;
  std::string cipher() const;       // "TLS_AES_256_GCM_SHA384"
  int cipher_bits() const;          // of its key; 0 before the handshake
  std::string alpn() const;         // the protocol, empty: none
  std::string server_name() const;  // that the client asked for
  bool session_reused() const;
  // The certificates that the peer sent, its own first, in DER.
  std::vector<Bytes> peer_certificates() const;
  // On a client: the newest session that can be resumed. With TLS 1.3 there is none before the
  // first read, which brings the tickets.
  Session session() const;
  // Bytes that both sides know and nobody else (RFC 9266, tls-exporter): to bind an
  // authentication above to this connection. not_established.
  Result<Bytes> channel_binding() const;
  // RFC 8446, 7.5.
  Result<Bytes> export_keying_material(std::string_view label, std::span<const std::byte> context,
                                       std::size_t size) const;
  // What an error of this stream means: its message, with the host where that matters.
  std::string explain(std::error_code error) const;
  // Bytes that a read has ready without asking the stream below. Doesn't park.
  std::size_t pending() const;
  // The direction, kRead or kWrite, in which the last call that timed out waited for the stream
  // below. For callers that wait for it themselves.
  unsigned blocked_on() const noexcept;
  // The stream below, to ask it for addresses and the like; null when closed. It must not be read
  // from or written to.
  net::Stream* below() const noexcept;

 private:
  struct Core;
  explicit Stream(std::unique_ptr<Core> core) noexcept;
  std::unique_ptr<Core> core_;
};

}  // namespace runloom::tls
