#include "runloom/tls/accept.hpp"

#include <malloc.h>

#include <chrono>
#include <vector>

#include "runloom/net/connection.hpp"
#include "runloom/net/server.hpp"
#include "runloom/tls/stream.hpp"
#include "support/tls_test.hpp"

namespace runloom::test {
namespace {

using namespace std::chrono_literals;
using tls::TlsErrc;

Result<std::unique_ptr<net::Stream>> accept(net::TcpStream& tcp, Deadline deadline) {
  return tls::accept(std::make_unique<net::TcpStream>(std::move(tcp)), tls_world().server_context,
                     deadline);
}

NET_TEST(TlsAccept, GivesAStreamThatIsReady) {
  TcpPair pair;
  auto server = spawn([&] {
    auto stream = accept(pair.server, Deadline::after(10s));
    EXPECT_TRUE(stream);
    return (*stream)->write_all(net::bytes("ready"));
  });
  auto client =
      tls::Stream::client(std::move(pair.client), tls_world().client_context, {.host = "localhost"})
          .value();
  EXPECT_EQ(read_text(client).value(), "ready");
  EXPECT_TRUE(server.join());
}

// A record of a handshake with a message that there is not.
const std::string kNoMessage("\x16\x03\x01\x00\x05\xff\x00\x00\x01\x00", 10);

// With more behind it than the server has read: a plain close would reset the connection.
NET_TEST(TlsAccept, TheAlertArrives) {
  TcpPair pair;
  ASSERT_TRUE(pair.client.write_all(net::bytes(kNoMessage + pattern(100'000))));
  auto server = spawn([&] { return accept(pair.server, Deadline::after(10s)).error(); });
  std::string record(7, '\0');
  ASSERT_TRUE(pair.client.read_full(writable(record)));
  EXPECT_EQ(record[0], 21);  // an alert
  pair.client.close();
  EXPECT_EQ(server.join().value(), TlsErrc::protocol);
}

NET_TEST(TlsAccept, ASilentPeerGoesAtTheDeadlineL02) {
  TcpPair pair;
  EXPECT_EQ(accept(pair.server, Deadline::after(2ms)).error(), Errc::timed_out);
  EXPECT_EQ(read_text(pair.client).value(), "");
}

// The handler of a server does not see that its connection is one of TLS, unless it asks.
NET_TEST(TlsAccept, AServerWrapsItsConnections) {
  net::ServerOptions options;
  options.wrap = tls::server_wrap(tls_world().server_context);
  options.linger = net::ServerOptions::Linger{};
  options.report = [](const net::ServerReport&) {};
  net::Server server(
      [](net::Connection& connection) {
        auto& stream = dynamic_cast<tls::Stream&>(connection.below());
        EXPECT_EQ(stream.server_name(), "localhost");
        EXPECT_TRUE(connection.write_all(net::bytes(read_text(connection).value())));
      },
      options);
  const auto address = server.listen(net::Address::loopback_ipv4()).value();
  auto serving = spawn([&] { return server.serve(); });
  for (int i = 0; i < 3; ++i) {
    auto client = tls::Stream::client(net::TcpStream::connect(address).value(),
                                      tls_world().client_context, {.host = "localhost"})
                      .value();
    ASSERT_TRUE(client.write_all(net::bytes("through the server")));
    EXPECT_EQ(read_to_end(client).value(), "through the server");
  }
  {
    auto plain = net::TcpStream::connect(address).value();
    ASSERT_TRUE(plain.write_all(net::bytes(kNoMessage)));
    EXPECT_EQ(read_to_end(plain).value().size(), 7u);  // an alert
  }
  EXPECT_TRUE(server.stop(Deadline::after(5s)));
  EXPECT_TRUE(serving.join());
  EXPECT_EQ(server.stats().handshakes, 3u);
  EXPECT_EQ(server.stats().fault(net::ServerFault::handshake), 1u);
}

// Many that say `start` and no more: not much memory each, and all go at the deadline.
void unfinished_handshakes(const std::string& start, std::size_t most_bytes_each) {
  constexpr std::size_t kPeers = 300;
  net::ServerOptions options;
  options.wrap = tls::server_wrap(tls_world().server_context);
  options.timeouts.handshake = kSanitized ? 5000ms : 1000ms;
  options.report = [](const net::ServerReport&) {};
  net::Server server([](net::Connection&) { ADD_FAILURE() << "nobody finished"; }, options);
  const auto address = server.listen(net::Address::loopback_ipv4()).value();
  auto serving = spawn([&] { return server.serve(); });
  const std::size_t before = ::mallinfo2().uordblks;
  std::vector<net::TcpStream> peers;
  for (std::size_t i = 0; i < kPeers; ++i) {
    peers.push_back(net::TcpStream::connect(address).value());
    ASSERT_TRUE(peers.back().write_all(net::bytes(start)));
  }
  yield_until([&] { return server.stats().accepted == kPeers; });
  ASSERT_TRUE(this_fiber::sleep_for(20ms));  // what has come is read by then
  if (!kSanitized) {
    EXPECT_LT((::mallinfo2().uordblks - before) / kPeers, most_bytes_each);
  }
  for (auto& peer : peers)
    EXPECT_TRUE(peer.wait_readable());
  yield_until([&] { return server.stats().active == 0; });
  EXPECT_EQ(server.stats().timeout(net::ServerTimeout::handshake), kPeers);
  if (!kSanitized) {
    EXPECT_LT(::mallinfo2().uordblks, before + kPeers * 2048);
  }
  EXPECT_TRUE(server.stop(Deadline::after(5s)));
  EXPECT_TRUE(serving.join());
}

NET_TEST(TlsAccept, SilentPeersCostLittleL02) {
  unfinished_handshakes("", 24 * 1024);
}

// A record of 16 KiB is announced, with a message as large, and a part of it comes.
NET_TEST(TlsAccept, UnfinishedHandshakesAreBoundedL02) {
  const std::string start("\x16\x03\x01\x40\x00\x01\x00\x3f\xfc", 9);
  unfinished_handshakes(start + pattern(500), 96 * 1024);
}

// A peer that takes nothing does not keep a lingering close from its deadline.
NET_TEST(TlsAccept, LingeringEndsAtItsDeadline) {
  TlsPair pair;
  pair.establish();
  const std::string text = pattern(16'000'000);
  std::size_t written = 0;
  EXPECT_EQ(pair.server.write_all(net::bytes(text), Deadline::after(2ms), &written).error(),
            Errc::timed_out);
  net::lingering_close(pair.server, {.deadline = Deadline::after(5ms)});
  EXPECT_EQ(read_text(pair.server).error(), Errc::closed);
}

}  // namespace
}  // namespace runloom::test
