#include "support/tls_test.hpp"

#include <thread>

namespace runloom::test {
namespace {

tls::Context make(Result<tls::Context> (*maker)(const tls::ContextOptions&, std::string*),
                  const tls::ContextOptions& options) {
  tls::Context context;
  std::thread([&] {
    std::string problem;
    auto made = maker(options, &problem);
    EXPECT_TRUE(made) << problem;
    if (made) context = *made;
  }).join();
  return context;
}

tls::ContextOptions trusting(const Authority& authority) {
  tls::ContextOptions options;
  options.ca_pem = authority.pem();
  return options;
}

}  // namespace

tls::Identity identity_of(const Issued& issued) {
  tls::Identity identity;
  identity.certificate_pem = issued.certificate_pem;
  identity.key_pem = issued.key_pem;
  return identity;
}

tls::Context make_client(const tls::ContextOptions& options) {
  return make(&tls::Context::client, options);
}
tls::Context make_server(const tls::ContextOptions& options) {
  return make(&tls::Context::server, options);
}

TlsWorld::TlsWorld()
    : authority("runloom test root"),
      stranger("a stranger's root"),
      server(authority.issue({.common_name = "server",
                              .names = {"DNS:localhost", "IP:127.0.0.1", "IP:::1",
                                        "DNS:example.test", "DNS:*.wild.test"}})),
      client(authority.issue({.common_name = "client"})) {
  tls::ContextOptions at_server;
  at_server.identities.push_back(identity_of(server));
  server_context = make_server(at_server);
  client_context = make_client(trusting(authority));
}

const TlsWorld& tls_world() {
  static const TlsWorld world;
  return world;
}

tls::ContextOptions client_options() {
  return trusting(tls_world().authority);
}
tls::ContextOptions server_options() {
  tls::ContextOptions options;
  options.identities.push_back(identity_of(tls_world().server));
  return options;
}

TlsPair::TlsPair() : TlsPair(tls_world().client_context, tls_world().server_context) {}

TlsPair::TlsPair(const tls::Context& client_context, const tls::Context& server_context,
                 tls::ClientOptions options, tls::ServerOptions server_stream_options) {
  TcpPair pair;
  auto at_client = tls::Stream::client(std::move(pair.client), client_context, std::move(options));
  auto at_server =
      tls::Stream::server(std::move(pair.server), server_context, std::move(server_stream_options));
  EXPECT_TRUE(at_client) << at_client.error().message();
  EXPECT_TRUE(at_server) << at_server.error().message();
  if (!at_client || !at_server) return;
  client = std::move(*at_client);
  server = std::move(*at_server);
}

TlsPair::Handshakes TlsPair::handshake(Deadline deadline) {
  auto at_server = spawn([&] { return server.handshake(deadline); });
  Handshakes done;
  done.client = client.handshake(deadline);
  // What it waits for may never come: the client has failed.
  done.server = at_server.join();
  return done;
}

void TlsPair::establish() {
  const auto done = handshake();
  EXPECT_TRUE(done.client) << client.explain(done.client.error());
  EXPECT_TRUE(done.server) << done.server.error().message();
}

}  // namespace runloom::test
