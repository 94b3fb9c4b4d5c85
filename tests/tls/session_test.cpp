// Resumption.
#include "runloom/tls/session.hpp"

#include "runloom/tls/stream.hpp"
#include "support/tls_test.hpp"

namespace runloom::test {
namespace {

using tls::Session;
using tls::Version;

// A connection that brings something back, and with it the tickets.
Session connect(const tls::Context& client, const tls::Context& server, const Session& session,
                bool reused, const std::string& host = "localhost") {
  TlsPair pair(client, server, {.host = host, .session = session});
  pair.establish();
  EXPECT_EQ(pair.client.session_reused(), reused);
  EXPECT_EQ(pair.server.session_reused(), reused);
  EXPECT_TRUE(pair.server.write_all(net::bytes("x")));
  EXPECT_EQ(read_text(pair.client).value(), "x");
  return pair.client.session();
}

tls::Context client_of(Version version) {
  auto options = client_options();
  options.min_version = options.max_version = version;
  return make_client(options);
}

NET_TEST(TlsSession, IsResumed) {
  auto no_tickets = server_options();
  no_tickets.session_tickets = false;
  for (const tls::Context& server : {make_server(server_options()), make_server(no_tickets)})
    for (const Version version : {Version::tls1_2, Version::tls1_3}) {
      const tls::Context client = client_of(version);
      Session session = connect(client, server, {}, false);
      ASSERT_TRUE(session);
      session = connect(client, server, session, true);
      ASSERT_TRUE(session);
      connect(client, server, session, true);
    }
}

NET_TEST(TlsSession, BelongsToItsHostAndContext) {
  const tls::Context client = client_of(Version::tls1_3);
  const tls::Context& server = tls_world().server_context;
  const Session session = connect(client, server, {}, false);
  ASSERT_TRUE(session);
  connect(client, server, session, false, "example.test");
  connect(client_of(Version::tls1_3), server, session, false);
  // Of another server context: refused, and a full handshake is made.
  connect(client, make_server(server_options()), session, false);
  connect(client, server, session, true);
}

NET_TEST(TlsSession, CanBeTurnedOff) {
  auto off = server_options();
  off.sessions = false;
  for (const Version version : {Version::tls1_2, Version::tls1_3}) {
    const tls::Context client = client_of(version);
    const Session session = connect(client, make_server(off), {}, false);
    EXPECT_FALSE(session);
  }
}

// The name leads to a context that demands a certificate; the session is of one that doesn't.
NET_TEST(TlsSession, OpensNoOtherContextOfTheSameServer) {
  auto mutual = server_options();
  mutual.client_certificates = tls::ClientCertificates::required;
  mutual.ca_pem = tls_world().authority.pem();
  const tls::Context strict = make_server(mutual);
  std::atomic<bool> to_strict = false;
  auto options = server_options();
  options.on_client_hello = [&](const tls::ClientHello&) -> Result<std::optional<tls::Context>> {
    return to_strict ? std::optional(strict) : std::optional<tls::Context>();
  };
  const tls::Context server = make_server(options);
  for (const Version version : {Version::tls1_2, Version::tls1_3}) {
    to_strict = false;
    const tls::Context client = client_of(version);
    const Session session = connect(client, server, {}, false);
    ASSERT_TRUE(session);
    connect(client, server, session, true);
    to_strict = true;
    TlsPair pair(client, server, {.host = "localhost", .session = session});
    EXPECT_NE(pair.handshake().server.error().message().find("did not return a certificate"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace runloom::test
