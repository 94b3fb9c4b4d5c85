// TLS that begins in the middle of a connection, and ends before its end.
#include "runloom/net/buffered.hpp"
#include "runloom/tls/stream.hpp"
#include "support/tls_peer.hpp"
#include "support/tls_test.hpp"

namespace runloom::test {
namespace {

using tls::Stream;

// The first line and the client's hello come in one segment, so the reader of lines has both.
STREAM_TEST(StartTls, WhatWasReadAheadIsHandedOverL10) {
  TcpPair pair;
  OpenSslPeer peer(pair.client, {});
  EXPECT_FALSE(peer.encrypt("x"));
  const std::string first = "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n" + peer.take_ciphertext();
  ASSERT_TRUE(pair.client.write_all(net::bytes(first)));
  std::string early;
  {
    net::BufferedReader reader(pair.server);
    EXPECT_TRUE(reader.read_line().value().starts_with("PROXY"));
    early = reader.take_unread();
  }
  auto server =
      Stream::server(std::move(pair.server), tls_world().server_context, {.received = early})
          .value();
  auto other = spawn([&] {
    EXPECT_TRUE(server.handshake());
    EXPECT_EQ(read_text(server).value(), "hello");
    return server.write_all(net::bytes("welcome"));
  });
  EXPECT_TRUE(peer.handshake()) << peer.error();
  EXPECT_TRUE(peer.write("hello"));
  EXPECT_EQ(peer.read(), "welcome");
  EXPECT_TRUE(other.join());
}

STREAM_TEST(StartTls, PlainDataGoesFirstL12) {
  const std::string plain = pattern(1'000'000);
  TcpPair pair;
  auto server = spawn([&] {
    std::string got(plain.size(), '\0');
    EXPECT_EQ(pair.server.read_full(writable(got)).value(), plain.size());
    EXPECT_TRUE(got == plain);
    auto stream = Stream::server(std::move(pair.server), tls_world().server_context).value();
    EXPECT_EQ(read_text(stream).value(), "and now");
  });
  ASSERT_TRUE(pair.client.write_all(net::bytes(plain)));
  auto stream =
      Stream::client(std::move(pair.client), tls_world().client_context, {.host = "localhost"})
          .value();
  ASSERT_TRUE(stream.write_all(net::bytes("and now")));
  EXPECT_TRUE(server.join());
}

// What comes behind the peer's close_notify belongs to the stream below.
NET_TEST(StartTls, EndsAndGivesBackWhatItReadTooFar) {
  TcpPair pair;
  auto server = Stream::server(std::move(pair.server), tls_world().server_context).value();
  OpenSslPeer peer(pair.client, {});
  auto other = spawn([&] { return peer.handshake(); });
  ASSERT_TRUE(server.handshake());
  ASSERT_TRUE(other.join().value());
  EXPECT_TRUE(peer.encrypt("last"));
  ASSERT_TRUE(peer.close_notify());  // and what was encrypted before
  ASSERT_TRUE(pair.client.write_all(net::bytes("plain again")));
  EXPECT_EQ(read_text(server).value(), "last");
  const auto done = server.shutdown();
  ASSERT_TRUE(done) << done.error().message();
  auto released = server.release();
  std::string rest = released.received;
  while (rest.size() < 11)
    rest += read_text(*released.below).value();
  EXPECT_EQ(rest, "plain again");
}

}  // namespace
}  // namespace runloom::test
