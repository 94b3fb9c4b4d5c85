// What tests of TLS share: contexts of a server and its clients, and pairs of connected streams.
#pragma once

#include <string>

#include "runloom/tls/context.hpp"
#include "runloom/tls/stream.hpp"
#include "support/net_test.hpp"
#include "support/tls_pki.hpp"

namespace runloom::test {

// Made once, on the thread that asks first, without parking.
struct TlsWorld {
  TlsWorld();
  Authority authority;
  Authority stranger;  // that nobody trusts
  Issued server;       // for localhost, 127.0.0.1, ::1, example.test, *.wild.test
  Issued client;
  tls::Context server_context;
  tls::Context client_context;
};
const TlsWorld& tls_world();

tls::Identity identity_of(const Issued& issued);
// Options that trust the world's authority.
tls::ContextOptions client_options();
tls::ContextOptions server_options();
// Made on a thread of its own, so that nothing parks. Fails the test when it can't be made.
tls::Context make_client(const tls::ContextOptions& options);
tls::Context make_server(const tls::ContextOptions& options);

// Two ends over TCP; the handshake is not made.
struct TlsPair {
  TlsPair();
  TlsPair(const tls::Context& client_context, const tls::Context& server_context,
          tls::ClientOptions options = {.host = "localhost"},
          tls::ServerOptions server_stream_options = {});
  // Both sides of it at a time.
  struct Handshakes {
    Result<void> client;
    Result<void> server;
  };
  Handshakes handshake(Deadline deadline = {});
  // Fails the test when one fails.
  void establish();
  tls::Stream client;
  tls::Stream server;
};

}  // namespace runloom::test
