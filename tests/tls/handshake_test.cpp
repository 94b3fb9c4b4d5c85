// Handshakes: what they agree upon, and what they fail with.
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>

#include "runloom/sched/channel.hpp"
#include "runloom/tls/stream.hpp"
#include "support/rendezvous.hpp"
#include "support/tls_peer.hpp"
#include "support/tls_test.hpp"

namespace runloom::test {
namespace {

using namespace std::chrono_literals;
using tls::ClientCertificates;
using tls::Stream;
using tls::TlsErrc;
using tls::Version;

// A server with another certificate, of the same authority.
tls::Context server_with(const CertificateSpec& spec) {
  tls::ContextOptions options;
  options.identities.push_back(identity_of(tls_world().authority.issue(spec)));
  return make_server(options);
}

// What a client says that connects to `server` and calls it `host`.
std::string refusal(const tls::Context& server, const std::string& host,
                    const tls::Context& client = tls_world().client_context) {
  TlsPair pair(client, server, {.host = host});
  const auto done = pair.handshake(Deadline::after(10s));
  EXPECT_EQ(done.client.error(), TlsErrc::certificate) << done.client.error().message();
  // The server is told.
  const auto told = done.server ? read_text(pair.server).error() : done.server.error();
  EXPECT_EQ(told, TlsErrc::alert) << told.message();
  EXPECT_EQ(pair.client.handshake().error(), done.client.error());
  return pair.client.explain(done.client.error());
}

NET_TEST(TlsHandshake, NamesTheFailedCheck) {
  const auto contains = [](const std::string& text, std::string_view part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  const tls::Context& good = tls_world().server_context;
  contains(
      refusal(good, "other.test"),
      "certificate verify failed: hostname mismatch, certificate is not valid for 'other.test'");
  contains(refusal(good, "127.0.0.2"), "not valid for '127.0.0.2'");
  contains(refusal(good, "a.b.wild.test"), "hostname mismatch");
  contains(refusal(server_with({.names = {"DNS:localhost"}, .valid_until = -60s}), "localhost"),
           "certificate has expired");
  contains(refusal(server_with({.names = {"DNS:localhost"}, .valid_from = 3600s}), "localhost"),
           "not yet valid");
  contains(refusal(good, "localhost", make_client({})), "unable to get local issuer certificate");
  tls::ContextOptions strange;
  strange.identities.push_back(
      identity_of(tls_world().stranger.issue({.names = {"DNS:localhost"}})));
  contains(refusal(make_server(strange), "localhost"), "(host 'localhost')");
}

NET_TEST(TlsHandshake, AcceptsEveryNameOfTheCertificate) {
  for (const char* host :
       {"localhost", "127.0.0.1", "::1", "EXAMPLE.test", "example.test.", "a.wild.test"}) {
    TlsPair pair(tls_world().client_context, tls_world().server_context, {.host = host});
    pair.establish();
    const std::string name = pair.server.server_name();
    EXPECT_EQ(name.empty(), std::string_view(host).find_first_of("1:") != std::string_view::npos)
        << host;
  }
}

NET_TEST(TlsHandshake, AcceptsAChain) {
  const auto middle = tls_world().authority.intermediate("middle");
  tls::ContextOptions options;
  options.identities.push_back(identity_of(middle.issue({.names = {"DNS:localhost"}})));
  TlsPair pair(tls_world().client_context, make_server(options));
  pair.establish();
  EXPECT_EQ(pair.client.peer_certificates().size(), 2u);
}

NET_TEST(TlsHandshake, RefusesWhatIsNoHost) {
  for (const std::string& host : {std::string(), std::string("a\0b", 3), std::string(300, 'a')}) {
    TcpPair pair;
    const auto made =
        Stream::client(std::move(pair.client), tls_world().client_context, {.host = host});
    EXPECT_EQ(made.error(), TlsErrc::configuration);
  }
  TcpPair pair;
  EXPECT_EQ(Stream::client(std::move(pair.client), tls_world().server_context).error(),
            TlsErrc::configuration);
  EXPECT_EQ(Stream::server(std::move(pair.server), tls_world().client_context).error(),
            TlsErrc::configuration);
}

NET_TEST(TlsHandshake, WhoDoesNotCheckTalksToAnybody) {
  tls::ContextOptions careless;
  careless.verify = false;
  auto no_host = client_options();
  no_host.check_host = false;
  for (const tls::Context& client : {make_client(careless), make_client(no_host)}) {
    TlsPair pair(client, tls_world().server_context, {.host = "nobody.test"});
    pair.establish();
    TlsPair nameless(client, tls_world().server_context, {});
    nameless.establish();
    EXPECT_EQ(nameless.server.server_name(), "");
  }
}

// ---------------------------------------------------------------- versions and ciphers

NET_TEST(TlsHandshake, NoCommonVersion) {
  auto old = client_options();
  old.max_version = Version::tls1_2;
  auto modern = server_options();
  modern.min_version = Version::tls1_3;
  TlsPair pair(make_client(old), make_server(modern));
  const auto done = pair.handshake();
  EXPECT_EQ(done.server.error(), TlsErrc::protocol);
  EXPECT_NE(done.server.error().message().find("unsupported protocol"), std::string::npos)
      << done.server.error().message();
  EXPECT_EQ(done.client.error(), TlsErrc::alert);
  EXPECT_EQ(tls::tls_detail(done.client.error()), 70);
  EXPECT_NE(
      pair.client.explain(done.client.error()).find("protocol version (70) (host 'localhost')"),
      std::string::npos)
      << pair.client.explain(done.client.error());
}

NET_TEST(TlsHandshake, NoCommonCipher) {
  auto one = client_options();
  one.max_version = Version::tls1_2;
  one.ciphers = "ECDHE-ECDSA-AES128-GCM-SHA256";
  auto two = server_options();
  two.ciphers = "ECDHE-ECDSA-AES256-GCM-SHA384";
  TlsPair pair(make_client(one), make_server(two));
  const auto done = pair.handshake();
  EXPECT_NE(done.server.error().message().find("no shared cipher"), std::string::npos);
  EXPECT_EQ(done.client.error(), TlsErrc::alert);
  EXPECT_EQ(tls::tls_detail(done.client.error()), tls::kAlertHandshakeFailure);
}

NET_TEST(TlsHandshake, CiphersAndGroupsAreChosen) {
  auto options = client_options();
  options.cipher_suites = "TLS_CHACHA20_POLY1305_SHA256";
  options.groups = "P-384";  // which costs a second hello
  TlsPair pair(make_client(options), tls_world().server_context);
  pair.establish();
  EXPECT_EQ(pair.server.cipher(), "TLS_CHACHA20_POLY1305_SHA256");
}

// ---------------------------------------------------------------- client certificates

tls::Context asking(ClientCertificates which, Version version = Version::tls1_3) {
  auto options = server_options();
  options.client_certificates = which;
  options.ca_pem = tls_world().authority.pem();
  options.max_version = version;
  return make_server(options);
}

NET_TEST(TlsHandshake, ClientCertificates) {
  auto options = client_options();
  options.identities.push_back(identity_of(tls_world().client));
  const tls::Context with = make_client(options);
  for (const Version version : {Version::tls1_2, Version::tls1_3})
    for (const auto which : {ClientCertificates::optional, ClientCertificates::required}) {
      TlsPair pair(with, asking(which, version));
      pair.establish();
      EXPECT_EQ(pair.server.peer_certificates().size(), 1u);
    }
  TlsPair without(tls_world().client_context, asking(ClientCertificates::optional));
  without.establish();
  EXPECT_EQ(without.server.peer_certificates().size(), 0u);
}

// With TLS 1.3 the client has finished by then: its first read tells, by name.
NET_TEST(TlsHandshake, AMissingClientCertificateIsNamedL22) {
  TlsPair pair(tls_world().client_context, asking(ClientCertificates::required));
  const auto done = pair.handshake();
  EXPECT_TRUE(done.client) << done.client.error().message();
  EXPECT_NE(done.server.error().message().find("peer did not return a certificate"),
            std::string::npos);
  const auto error = read_text(pair.client).error();
  EXPECT_EQ(error, TlsErrc::alert);
  EXPECT_EQ(tls::tls_detail(error), 116);
  EXPECT_NE(error.message().find("certificate required"), std::string::npos) << error.message();

  TlsPair old(tls_world().client_context, asking(ClientCertificates::required, Version::tls1_2));
  EXPECT_EQ(old.handshake().client.error(), TlsErrc::alert);
}

NET_TEST(TlsHandshake, AStrangersClientCertificateIsNamedL22) {
  auto options = client_options();
  options.identities.push_back(identity_of(tls_world().stranger.issue({})));
  TlsPair pair(make_client(options), asking(ClientCertificates::required));
  const auto done = pair.handshake();
  EXPECT_TRUE(done.client);
  EXPECT_EQ(done.server.error(), TlsErrc::certificate);
  const auto error = read_text(pair.client).error();
  EXPECT_EQ(error, TlsErrc::alert);
  EXPECT_NE(error.message().find("unknown CA"), std::string::npos) << error.message();
}

// ---------------------------------------------------------------- ALPN and names

tls::Context speaking(std::vector<std::string> protocols, bool server, bool required = true) {
  auto options = server ? server_options() : client_options();
  options.alpn = std::move(protocols);
  options.alpn_required = required;
  return server ? make_server(options) : make_client(options);
}

NET_TEST(TlsHandshake, ProtocolsAreAgreedUponL20) {
  {
    TlsPair pair(speaking({"http/1.1", "h2"}, false), speaking({"h2", "http/1.1"}, true));
    pair.establish();
    EXPECT_EQ(pair.client.alpn(), "h2");
    EXPECT_EQ(pair.server.alpn(), "h2");
  }
  {
    TlsPair pair(speaking({"smtp"}, false), speaking({"h2", "http/1.1"}, true));
    const auto done = pair.handshake();
    EXPECT_EQ(done.server.error(), TlsErrc::protocol);
    EXPECT_NE(done.server.error().message().find("no application protocol"), std::string::npos);
    EXPECT_EQ(done.client.error(), TlsErrc::alert);
    EXPECT_NE(done.client.error().message().find("no application protocol"), std::string::npos);
  }
  {
    TlsPair pair(speaking({"smtp"}, false), speaking({"h2"}, true, false));
    pair.establish();
    EXPECT_EQ(pair.client.alpn(), "");
  }
  {  // a client that offers none
    TlsPair pair(tls_world().client_context, speaking({"h2"}, true));
    pair.establish();
    EXPECT_EQ(pair.server.alpn(), "");
  }
}

// Chooses by name, and parks meanwhile.
NET_TEST(TlsHandshake, TheHelloIsAnsweredByAFiberL20) {
  const tls::Context wild = server_with({.names = {"DNS:wild.test"}});
  auto with_mutual = server_options();
  with_mutual.client_certificates = ClientCertificates::required;
  with_mutual.ca_pem = tls_world().authority.pem();
  const tls::Context mutual = make_server(with_mutual);
  Channel<tls::ClientHello> seen(8);
  tls::ContextOptions options;
  options.on_client_hello =
      [&](const tls::ClientHello& hello) -> Result<std::optional<tls::Context>> {
    EXPECT_TRUE(this_fiber::sleep_for(1ms));
    EXPECT_TRUE(seen.send(hello));
    if (hello.server_name == "wild.test") return std::optional(wild);
    if (hello.server_name == "localhost") return std::optional(tls_world().server_context);
    if (hello.server_name == "example.test") return std::optional(mutual);
    if (hello.server_name == "denied.test")
      return fail(tls::tls_error(TlsErrc::alert, tls::kAlertAccessDenied));
    if (hello.server_name == "throws.test") throw std::runtime_error("on purpose");
    return fail(Errc::would_block);
  };
  const tls::Context server = make_server(options);
  const tls::Context client = speaking({"h2"}, false);
  for (const char* host : {"wild.test", "localhost"}) {
    TlsPair pair(client, server, {.host = host});
    pair.establish();
    const auto hello = seen.recv().value();
    EXPECT_EQ(hello.server_name, host);
    EXPECT_EQ(hello.alpn, std::vector<std::string>{"h2"});
  }
  {  // what the other context demands is demanded
    TlsPair pair(client, server, {.host = "example.test"});
    const auto done = pair.handshake();
    EXPECT_NE(done.server.error().message().find("did not return a certificate"), std::string::npos)
        << done.server.error().message();
  }
  {
    TlsPair pair(client, server, {.host = "denied.test"});
    const auto done = pair.handshake();
    EXPECT_EQ(tls::tls_detail(done.client.error()), tls::kAlertAccessDenied);
    EXPECT_EQ(done.server.error(), TlsErrc::alert);
  }
  {
    TlsPair pair(client, server, {.host = "elsewhere.test"});
    const auto done = pair.handshake();
    EXPECT_EQ(tls::tls_detail(done.client.error()), tls::kAlertUnrecognizedName);
    EXPECT_EQ(done.server.error(), Errc::would_block);
  }
  {
    TlsPair pair(client, server, {.host = "throws.test"});
    auto other = spawn([&] { return pair.server.handshake(); });
    EXPECT_EQ(tls::tls_detail(pair.client.handshake().error()), tls::kAlertInternalError);
    EXPECT_THROW(static_cast<void>(other.join()), std::runtime_error);
    EXPECT_EQ(pair.server.handshake().error(), TlsErrc::refused);
  }
}

// What a hello costs until it is answered is bounded.
NET_TEST(TlsHandshake, AHelloWithManyProtocolsIsCutShort) {
  std::vector<std::string> many;
  for (int i = 0; i < 1000; ++i)
    many.push_back("p" + std::to_string(i));
  many.push_back("h2");
  std::atomic<std::size_t> seen{0};
  tls::ContextOptions options = server_options();
  options.alpn = {"h2"};
  options.on_client_hello =
      [&](const tls::ClientHello& hello) -> Result<std::optional<tls::Context>> {
    seen = hello.alpn.size();
    EXPECT_EQ(hello.alpn.back(), "p255");
    return std::optional<tls::Context>();
  };
  TlsPair pair(speaking(many, false), make_server(options));
  pair.establish();
  EXPECT_EQ(seen, 256u);
  EXPECT_EQ(pair.server.alpn(), "h2");  // chosen from all of them
}

NET_TEST(TlsHandshake, AConnectionMayHaveAHandlerOfItsOwn) {
  tls::ContextOptions options = server_options();
  options.on_client_hello = [](const tls::ClientHello&) -> Result<std::optional<tls::Context>> {
    ADD_FAILURE() << "the context's handler was asked";
    return fail(Errc::closed);
  };
  for (const tls::Context& server : {make_server(options), tls_world().server_context}) {
    std::string name;
    TlsPair pair(tls_world().client_context, server, {.host = "localhost"},
                 {.on_client_hello = [&](const tls::ClientHello& hello) {
                   name = hello.server_name;
                   return Result<std::optional<tls::Context>>(std::nullopt);
                 }});
    pair.establish();
    EXPECT_EQ(name, "localhost");
    EXPECT_GE(pair.client.cipher_bits(), 128);
  }
}

NET_TEST(TlsHandshake, AHandlerMayKeepItsContext) {
  auto options = server_options();
  options.on_client_hello = [](const tls::ClientHello&) -> Result<std::optional<tls::Context>> {
    return std::optional<tls::Context>();
  };
  auto second = client_options();
  second.groups = "X448:P-384";  // a second hello is not asked about
  const tls::Context server = make_server(options);
  for (const tls::Context& client : {tls_world().client_context, make_client(second)}) {
    TlsPair pair(client, server);
    pair.establish();
  }
}

// ---------------------------------------------------------------- other peers

NET_TEST(TlsHandshake, PlainTextIsToldL24) {
  {
    TcpPair pair;
    auto server = Stream::server(std::move(pair.server), tls_world().server_context).value();
    ASSERT_TRUE(pair.client.write_all(net::bytes("GET / HTTP/1.1\r\nHost: x\r\n\r\n")));
    const auto error = server.handshake().error();
    EXPECT_EQ(error, TlsErrc::protocol);
    EXPECT_NE(error.message().find("http request"), std::string::npos) << error.message();
    EXPECT_EQ(read_text(server).error(), error);
    EXPECT_EQ(server.write_all(net::bytes("x")).error(), error);
  }
  {
    TcpPair pair;
    auto client =
        Stream::client(std::move(pair.client), tls_world().client_context, {.host = "localhost"})
            .value();
    ASSERT_TRUE(pair.server.write_all(net::bytes("220 mail.example.test ESMTP\r\n")));
    const auto error = client.handshake().error();
    EXPECT_EQ(error, TlsErrc::protocol);
    EXPECT_NE(error.message().find("wrong version number"), std::string::npos) << error.message();
  }
}

NET_TEST(TlsHandshake, ACutOffHandshakeIsToldL24L28) {
  for (const std::size_t size : {0, 4, 50}) {
    TcpPair pair;
    PeerOptions options;
    auto server = Stream::server(std::move(pair.server), tls_world().server_context).value();
    {
      OpenSslPeer peer(pair.client, options);
      EXPECT_FALSE(peer.encrypt("x"));
      const std::string hello = peer.take_ciphertext();
      ASSERT_GT(hello.size(), size);
      ASSERT_TRUE(pair.client.write_all(net::bytes(std::string_view(hello).substr(0, size))));
    }
    ASSERT_TRUE(pair.client.shutdown_write());
    EXPECT_EQ(server.handshake().error(), TlsErrc::unexpected_eof);
  }
}

NET_TEST(TlsHandshake, AResetIsTold) {
  Listening listening;
  const int raw = plain_connect(listening.address);
  auto server =
      Stream::server(listening.listener.accept().value(), tls_world().server_context).value();
  auto fiber = spawn([&] { return server.handshake().error(); });
  until_parked(fiber.handle(), WaitReason::io_read);
  reset_and_close(raw);
  EXPECT_EQ(fiber.join().value(), errno_code(ECONNRESET));
}

// Who says nothing goes at the deadline, and so does who says a byte now and then.
NET_TEST(TlsHandshake, SilentPeersGoAtTheDeadlineL02) {
  TcpPair silent;
  auto one = Stream::server(std::move(silent.server), tls_world().server_context).value();
  EXPECT_EQ(one.handshake(Deadline::after(5ms)).error(), Errc::timed_out);

  TcpPair slow;
  auto two = Stream::server(std::move(slow.server), tls_world().server_context).value();
  OpenSslPeer peer(slow.client, {});
  EXPECT_FALSE(peer.encrypt("x"));
  const std::string hello = peer.take_ciphertext();
  std::atomic<bool> over = false;
  auto trickle = spawn([&] {
    for (std::size_t at = 0; at + 1 < hello.size() && !over; ++at) {
      EXPECT_TRUE(slow.client.write_all(net::bytes(std::string_view(hello).substr(at, 1))));
      EXPECT_TRUE(this_fiber::sleep_for(1ms));
    }
  });
  EXPECT_EQ(two.handshake(Deadline::after(20ms)).error(), Errc::timed_out);
  over = true;
  EXPECT_TRUE(trickle.join());
}

// The server's tickets find nobody.
NET_TEST(TlsHandshake, AClientThatLeavesBeforeItsTicketsL14) {
  TcpPair pair;
  auto server = Stream::server(std::move(pair.server), tls_world().server_context).value();
  auto reader = spawn([&] {
    EXPECT_TRUE(server.handshake());
    return read_to_end(server);
  });
  OpenSslPeer peer(pair.client, {.version = 13});
  ASSERT_TRUE(peer.handshake());
  ASSERT_TRUE(peer.write("all that I have to say"));
  ASSERT_TRUE(peer.close_notify());
  pair.client.close();
  EXPECT_EQ(reader.join().value(), "all that I have to say");
}

// Nothing on the way has room for a byte that nobody reads: tickets wait for data to go with.
NET_TEST(TlsHandshake, NeedsNoBufferBetweenTheSidesL14) {
  auto old = client_options();
  old.max_version = Version::tls1_2;
  for (const tls::Context& context : {make_client(old), tls_world().client_context}) {
    auto [one, two] = Rendezvous::pair();
    auto client = Stream::client(std::move(one), context, {.host = "localhost"}).value();
    auto server = Stream::server(std::move(two), tls_world().server_context).value();
    auto other = spawn([&] {
      EXPECT_TRUE(server.handshake());
      EXPECT_EQ(read_text(server).value(), "ping");
      EXPECT_TRUE(server.write_all(net::bytes("pong")));
      EXPECT_EQ(read_text(server).value(), "");
      EXPECT_TRUE(server.shutdown_write());
    });
    ASSERT_TRUE(client.handshake());
    ASSERT_TRUE(client.write_all(net::bytes("ping")));
    EXPECT_EQ(read_text(client).value(), "pong");
    EXPECT_TRUE(client.session());
    EXPECT_TRUE(client.shutdown());
    EXPECT_TRUE(other.join());
  }
}

}  // namespace
}  // namespace runloom::test
