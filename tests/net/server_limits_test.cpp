// How many connections a server takes, in all and of one peer.
#include <gtest/gtest.h>

#include "runloom/net/server.hpp"
#include "support/server.hpp"

namespace runloom::net {
namespace {

using namespace std::chrono_literals;
using test::expect_echo;
using test::reads_end;
using test::Serving;
using test::yield_until;

// From another of the loopback's addresses.
TcpStream connect_from(const char* ip, const Address& to) {
  auto stream = TcpStream::connect(to, {.local = Address::from_ip(ip, 0).value()});
  EXPECT_TRUE(stream) << stream.error().message();
  return stream ? std::move(*stream) : TcpStream();
}

NET_TEST(ServerLimits, R02OnePeerCannotTakeAllConnections) {
  Serving server(test::echo_connection, {.max_connections = 10, .max_connections_per_peer = 2});
  auto first = connect_from("127.0.0.1", server.address());
  auto second = connect_from("127.0.0.1", server.address());
  expect_echo(first, "1");
  expect_echo(second, "2");
  for (int i = 0; i < 20; ++i) {
    auto more = connect_from("127.0.0.1", server.address());
    EXPECT_TRUE(reads_end(more));
  }
  auto other = connect_from("127.0.0.2", server.address());
  expect_echo(other, "other");
  EXPECT_EQ(server->stats().rejected_peers, 20u);
  EXPECT_EQ(server->stats().rejected, 0u);
  EXPECT_EQ(server->stats().peers, 2u);
  first.close();
  yield_until([&] { return server->stats().active == 2; });
  auto again = connect_from("127.0.0.1", server.address());
  expect_echo(again, "again");
}

// A handler of TcpStream, and one that throws, give their places back as well.
NET_TEST(ServerLimits, EveryEndGivesThePlaceBack) {
  Server server(
      [](TcpStream stream) {
        std::array<std::byte, 1> first;
        if (stream.read_some(first).value() == 1) throw std::runtime_error("boom");
      },
      {.max_connections_per_peer = 1, .report = [](const ServerReport&) {}});
  const auto at = server.listen(Address::loopback_ipv4()).value();
  auto serving = spawn([&] { return server.serve(); });
  for (int i = 0; i < 10; ++i) {
    auto client = TcpStream::connect(at).value();
    ASSERT_TRUE(client.write_all(bytes(i % 2 == 0 ? "x" : "")));
    ASSERT_TRUE(client.shutdown_write());
    EXPECT_TRUE(reads_end(client));
    yield_until([&] { return server.stats().active == 0; });
  }
  EXPECT_EQ(server.stats().accepted, 10u);
  EXPECT_EQ(server.stats().rejected_peers, 0u);
  EXPECT_EQ(server.stats().peers, 0u);
  EXPECT_TRUE(server.stop(Deadline::now()));
  EXPECT_TRUE(serving.join());
}

NET_TEST(ServerLimits, RejectingOverTheLimitClosesAtOnce) {
  Serving server(test::echo_connection, {.max_connections = 1, .reject_over_limit = true});
  auto first = server.connect();
  expect_echo(first, "1");
  auto second = server.connect();
  EXPECT_TRUE(reads_end(second));
  EXPECT_EQ(server->stats().rejected, 1u);
  EXPECT_EQ(to_string(server->stats()), "accepted 1, active 1, rejected 1, cancelled 0");
}

TEST(ServerLimits, StatsAsText) {
  ServerStats stats;
  stats.accepted = 7;
  stats.rejected_peers = 2;
  stats.proxied = 3;
  stats.timeouts[static_cast<std::size_t>(ServerTimeout::head)] = 5;
  stats.faults[static_cast<std::size_t>(ServerFault::handshake)] = 1;
  EXPECT_EQ(to_string(stats),
            "accepted 7, active 0, rejected 0, cancelled 0, rejected peers 2, proxied 3, "
            "timed out in heads 5; a handshake failed, the connection was closed: 1");
}

}  // namespace
}  // namespace runloom::net
