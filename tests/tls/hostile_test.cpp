// Peers that keep to no custom: cut up, held back, empty, endless.
#include <chrono>
#include <string>

#include "runloom/tls/stream.hpp"
#include "support/tls_peer.hpp"
#include "support/tls_test.hpp"

namespace runloom::test {
namespace {

using namespace std::chrono_literals;
using tls::Stream;
using tls::TlsErrc;

// A server of ours with an OpenSslPeer as its client, established.
struct Hostile {
  explicit Hostile(const PeerOptions& options) : peer(pair.client, options) {
    stream = Stream::server(std::move(pair.server), tls_world().server_context).value();
    auto other = spawn([&] { return stream.handshake(); });
    EXPECT_TRUE(peer.handshake()) << peer.error();
    const auto ok = other.join();
    EXPECT_TRUE(ok) << ok.error().message();
  }
  TcpPair pair;
  OpenSslPeer peer;
  Stream stream;
};

NET_TEST(TlsHostile, OneByteASegmentL18) {
  for (const int version : {12, 13}) {
    Hostile hostile({.version = version, .segment = 1});
    ASSERT_TRUE(hostile.peer.write("cut to pieces"));
    std::string text(13, '\0');
    ASSERT_EQ(hostile.stream.read_full(writable(text)).value(), 13u);
    EXPECT_EQ(text, "cut to pieces");
    ASSERT_TRUE(hostile.stream.write_all(net::bytes("whole")));
    EXPECT_EQ(hostile.peer.read_exact(5), "whole");
  }
}

NET_TEST(TlsHostile, LargestRecordsL18) {
  const std::string text = pattern(16384 * 9);
  for (const int version : {12, 13}) {
    Hostile hostile({.version = version});
    auto writer = spawn([&] { return hostile.peer.write(text); });
    std::string got(text.size(), '\0');
    EXPECT_EQ(hostile.stream.read_full(writable(got)).value(), text.size());
    EXPECT_TRUE(got == text);
    EXPECT_TRUE(writer.join().value());
  }
}

// OpenSSL makes no empty records of data, so a broken one stands for whatever is no record.
NET_TEST(TlsHostile, ABrokenRecordEndsItWithAnAlert) {
  Hostile hostile({.version = 13});
  ASSERT_TRUE(hostile.peer.encrypt("to be broken"));
  std::string record = hostile.peer.take_ciphertext();
  record.back() = static_cast<char>(record.back() ^ 1);
  ASSERT_TRUE(hostile.pair.client.write_all(net::bytes(record)));
  const auto error = read_text(hostile.stream).error();
  EXPECT_EQ(error, TlsErrc::protocol);
  EXPECT_NE(error.message().find("bad record mac"), std::string::npos) << error.message();
  EXPECT_EQ(hostile.peer.read(), "");
  EXPECT_NE(hostile.peer.error().find("bad record mac"), std::string::npos) << hostile.peer.error();
  EXPECT_EQ(hostile.stream.write_all(net::bytes("x")).error(), error);
}

NET_TEST(TlsHostile, FloodsOfEmptyRecordsAreBoundedL18Z04) {
  TcpPair pair;
  auto server = Stream::server(std::move(pair.server), tls_world().server_context).value();
  // Handshake records without a byte.
  std::string flood;
  for (int i = 0; i < 5000; ++i)
    flood += std::string("\x16\x03\x01\x00\x00", 5);
  ASSERT_TRUE(pair.client.write_all(net::bytes(flood)));
  EXPECT_EQ(server.handshake().error(), TlsErrc::protocol);
}

NET_TEST(TlsHostile, FloodsOfKeyUpdatesAreBoundedZ04) {
  Hostile hostile({.version = 13});
  auto flood = spawn([&] {
    // Until the other side has had enough.
    for (int i = 0; i < 10'000; ++i)
      if (!hostile.peer.update_keys(i % 2 == 0)) return i;
    return 10'000;
  });
  EXPECT_EQ(read_text(hostile.stream).error(), TlsErrc::flood);
  EXPECT_EQ(read_text(hostile.stream).error(), TlsErrc::flood);
  hostile.stream.close();
  EXPECT_LT(flood.join().value(), 10'000);
}

// As many as one likes, with data between.
NET_TEST(TlsHostile, KeyUpdatesBetweenDataAreNoFlood) {
  Hostile hostile({.version = 13});
  auto writer = spawn([&] {
    for (int i = 0; i < 300; ++i) {
      EXPECT_TRUE(hostile.peer.update_keys(true));
      EXPECT_TRUE(hostile.peer.write("x"));
    }
  });
  std::string text(300, '\0');
  EXPECT_EQ(hostile.stream.read_full(writable(text)).value(), 300u);
  EXPECT_TRUE(writer.join());
}

NET_TEST(TlsHostile, FloodsOfTicketsAreBounded) {
  TcpPair pair;
  auto client =
      Stream::client(std::move(pair.client), tls_world().client_context, {.host = "localhost"})
          .value();
  OpenSslPeer peer(pair.server, {.server = true, .identity = tls_world().server, .version = 13});
  auto other = spawn([&] { return peer.handshake(); });
  ASSERT_TRUE(client.handshake());
  ASSERT_TRUE(other.join().value());
  auto flood = spawn([&] {
    for (int i = 0; i < 100; ++i)
      if (!peer.send_tickets()) return;
  });
  EXPECT_EQ(read_text(client).error(), TlsErrc::flood);
  client.close();
  EXPECT_TRUE(flood.join());
}

NET_TEST(TlsHostile, RenegotiationIsRefusedL16) {
  Hostile hostile({.version = 12});
  ASSERT_TRUE(hostile.peer.renegotiate());
  auto reader = spawn([&] { return read_text(hostile.stream); });
  // The answer is a warning, after which OpenSSL's client gives up or goes on.
  static_cast<void>(hostile.peer.write("x"));
  hostile.pair.client.close();
  const auto text = reader.join();
  EXPECT_TRUE(!text || *text == "x");
}

// A server that asks for a new handshake again and again.
NET_TEST(TlsHostile, FloodsOfHelloRequestsEndL16) {
  TcpPair pair;
  auto client =
      Stream::client(std::move(pair.client), tls_world().client_context, {.host = "localhost"})
          .value();
  OpenSslPeer peer(pair.server, {.server = true, .identity = tls_world().server, .version = 12});
  auto other = spawn([&] { return peer.handshake(); });
  ASSERT_TRUE(client.handshake());
  ASSERT_TRUE(other.join().value());
  int asked = 0;
  auto flood = spawn([&] {
    for (; asked < 1000; ++asked)
      if (!peer.renegotiate()) return;
  });
  EXPECT_EQ(read_text(client).error(), TlsErrc::flood);
  client.close();
  EXPECT_TRUE(flood.join());
  EXPECT_GT(asked, 64);
}

// Deadlines hold while messages come that carry nothing.
NET_TEST(TlsHostile, PiecesOfARecordExtendNoDeadline) {
  Hostile hostile({.version = 13});
  ASSERT_TRUE(hostile.peer.encrypt(pattern(10'000)));
  const std::string record = hostile.peer.take_ciphertext();
  std::atomic<bool> over = false;
  auto trickle = spawn([&] {
    for (std::size_t at = 0; at < record.size() && !over; ++at) {
      EXPECT_TRUE(
          hostile.pair.client.write_all(net::bytes(std::string_view(record).substr(at, 1))));
      EXPECT_TRUE(this_fiber::sleep_for(1ms));
    }
  });
  EXPECT_EQ(read_text(hostile.stream, 10, Deadline::after(20ms)).error(), Errc::timed_out);
  over = true;
  EXPECT_TRUE(trickle.join());
}

}  // namespace
}  // namespace runloom::test
