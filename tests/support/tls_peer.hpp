// OpenSslPeer: the other side of a TLS connection, made of OpenSSL directly over memory, so that a
// test decides what reaches the wire: cut up, held back, or things that no honest peer does.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "runloom/net/stream.hpp"
#include "runloom/tls/context.hpp"
#include "support/tls_pki.hpp"

namespace runloom::test {

struct PeerOptions {
  bool server = false;
  Issued identity{};      // none: empty
  std::string trusted{};  // PEM; empty: verifies nothing
  bool renegotiation = true;
  int version = 0;                 // 12 or 13; 0: both
  std::string host = "localhost";  // that a client asks for
  std::size_t segment = 0;  // most bytes of ciphertext in one write to the wire; 0: any number
};

class OpenSslPeer {
 public:
  OpenSslPeer(net::Stream& wire, const PeerOptions& options);
  ~OpenSslPeer();
  OpenSslPeer(const OpenSslPeer&) = delete;
  OpenSslPeer& operator=(const OpenSslPeer&) = delete;

  // They park in the wire's calls, and only there. False: failed, see error().
  bool handshake();
  bool write(std::string_view text);
  // Up to `most` bytes; empty: the end (close_notify) or a failure.
  std::string read(std::size_t most = 16384);
  // Reads exactly so many.
  std::string read_exact(std::size_t count);
  bool close_notify();
  bool update_keys(bool peer_too);
  // TLS 1.2: asks for a new handshake and reads what comes back.
  bool renegotiate();
  // TLS 1.3 server: more tickets.
  bool send_tickets();
  // What was made and not sent, as it would go over the wire.
  std::string take_ciphertext();
  // Makes records of `text` without sending them.
  bool encrypt(std::string_view text);
  bool flush();

  bool ended() const noexcept { return ended_; }  // a close_notify came
  // OpenSSL's words for what failed, or the error of the wire.
  const std::string& error() const noexcept { return error_; }

 private:
  struct Ssl;
  // Repeats `call` while it wants more from the wire.
  template <class Call>
  int run(Call call);
  bool receive();

  net::Stream& wire_;
  std::size_t segment_;
  std::unique_ptr<Ssl> ssl_;
  bool ended_ = false;
  std::string error_;
};

}  // namespace runloom::test
