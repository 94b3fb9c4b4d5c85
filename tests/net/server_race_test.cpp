// A server that is stopped at any moment of its clients' lives.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

#include "runloom/net/proxy_protocol.hpp"
#include "runloom/net/server.hpp"
#include "runloom/net/tcp_stream.hpp"
#include "runloom/sched/fiber.hpp"
#include "support/fiber_test.hpp"
#include "support/race.hpp"

namespace runloom::net {
namespace {

using namespace std::chrono_literals;

// Connects, says something or nothing, and leaves in one of several ways.
void be_a_client(const Address& address, test::Random& random) {
  auto stream = TcpStream::connect(address);
  if (!stream) return;
  std::array<std::byte, 256> buffer{};
  for (std::uint32_t i = random.below(4); i > 0; --i) {
    const auto piece = std::span(buffer).first(1 + random.below(255));
    if (!stream->write_all(piece)) return;
    if (random.one_in(3)) this_fiber::yield();
    if (!stream->read_full(piece)) return;
  }
  if (random.one_in(3)) static_cast<void>(stream->set_linger(0s));
}

FIBER_TEST(ServerRace, StopsAtAnyMoment) {
  test::Random random(1);
  for (test::RaceBudget budget; !budget.spent();) {
    std::atomic<std::uint64_t> began{0};
    std::atomic<std::uint64_t> ended{0};
    ServerOptions options;
    if (random.one_in(2)) options.placement = ServerOptions::Placement::least_loaded;
    if (random.one_in(3)) options.max_connections = 1 + random.below(4);
    options.reject_over_limit = random.one_in(2);
    options.cancel_grace = 1ms;
    auto server = std::make_unique<Server>(
        [&](TcpStream stream) {
          ++began;
          std::array<std::byte, 256> data;
          for (;;) {
            const auto count = stream.read_some(data);
            if (!count || *count == 0) break;
            if (!stream.write_all(std::span(data).first(*count))) break;
          }
          ++ended;
        },
        std::move(options));
    const auto address = server->listen(Address::loopback_ipv4());
    ASSERT_TRUE(address);
    auto serving = spawn([&] { return server->serve(); });

    std::vector<JoinHandle<void>> clients;
    for (std::uint32_t i = 0; i < 8; ++i)
      clients.push_back(spawn([&address, seed = random.below(1u << 30)] {
        test::Random own(seed);
        be_a_client(*address, own);
      }));
    for (std::uint32_t i = random.below(40); i > 0; --i)
      this_fiber::yield();
    const Deadline drain =
        random.one_in(2) ? Deadline::now() : Deadline::after(1us * random.below(3000));
    auto second = spawn([&] { return server->stop(drain); });
    const auto stopped = server->stop(random.one_in(2) ? Deadline::now() : drain);
    EXPECT_TRUE(stopped);
    EXPECT_TRUE(second.join());
    EXPECT_TRUE(serving.join());
    // The nursery's promise: what the handlers refer to may go now.
    EXPECT_EQ(began, ended);
    EXPECT_EQ(server->stats().active, 0u);
    EXPECT_EQ(server->stats().accepted, began);
    server.reset();
    for (auto& client : clients)
      EXPECT_TRUE(client.join());
  }
}

// The same with all that a handler of Connection has around it: headers, limits of peers, short
// deadlines, a linger, and a stop that may be a hand-over.
FIBER_TEST(ServerRace, ConnectionsEndAtAnyMoment) {
  test::Random random(2);
  for (test::RaceBudget budget; !budget.spent();) {
    ServerOptions options;
    options.max_connections = random.below(6);
    options.max_connections_per_peer = random.below(4);
    options.reject_over_limit = random.one_in(2);
    if (random.one_in(2)) options.backlog_at_stop = ServerOptions::Backlog::refuse;
    if (random.one_in(2)) options.linger = ServerOptions::Linger{.time = 2ms};
    const bool proxied = random.one_in(2);
    if (proxied) options.proxy.trusted.push_back(Network::parse("127.0.0.0/8").value());
    options.timeouts.handshake = std::chrono::milliseconds(random.below(3));
    options.timeouts.first_byte = std::chrono::milliseconds(random.below(3));
    options.timeouts.head = 1ms;
    options.timeouts.write = 1ms;
    options.cancel_grace = 1ms;
    options.report = [](const ServerReport&) {};
    std::atomic<std::uint64_t> inside{0};
    std::unique_ptr<Stream> taken;
    std::atomic<bool> takes{random.one_in(4)};
    auto server = std::make_unique<Server>(
        [&](Connection& connection) {
          ++inside;
          connection.await_request();
          std::array<std::byte, 256> data;
          for (;;) {
            const auto count = connection.read_some(data);
            if (!count || *count == 0) break;
            connection.head_done();
            if (!connection.write_all(std::span(data).first(*count))) break;
            if (takes.exchange(false)) taken = connection.take();
          }
          --inside;
        },
        options);
    const auto address = server->listen(Address::loopback_ipv4());
    ASSERT_TRUE(address);
    auto serving = spawn([&] { return server->serve(); });
    std::vector<JoinHandle<void>> clients;
    for (std::uint32_t i = 0; i < 8; ++i)
      clients.push_back(spawn([&address, proxied, seed = random.below(1u << 30)] {
        test::Random own(seed);
        auto stream = TcpStream::connect(*address);
        if (!stream) return;
        const std::string header =
            proxied ? proxy_v1(Address::parse("192.0.2.1:1").value(), *address) : std::string();
        const std::string said = header + std::string(1 + own.below(300), 'x');
        static_cast<void>(stream->write_all(bytes(said.substr(own.below(2)))));
        if (own.one_in(2)) this_fiber::yield();
        if (own.one_in(3)) static_cast<void>(stream->set_linger(0s));
      }));
    for (std::uint32_t i = random.below(40); i > 0; --i)
      this_fiber::yield();
    const Deadline drain = Deadline::after(1us * random.below(3000));
    if (random.one_in(2)) server->begin_handover(drain);
    EXPECT_TRUE(server->stop(drain));
    EXPECT_TRUE(serving.join());
    EXPECT_EQ(inside, 0u);
    EXPECT_EQ(server->stats().active, 0u);
    EXPECT_EQ(server->stats().peers, 0u);
    server.reset();
    for (auto& client : clients)
      EXPECT_TRUE(client.join());
  }
}

// A stop() that is being woken while serve() returns still uses the server.
FIBER_TEST(ServerRace, TheServerGoesRightAfterServe) {
  for (test::RaceBudget budget; !budget.spent();) {
    auto server = std::make_unique<Server>(
        [](TcpStream stream) { static_cast<void>(stream.wait_readable()); });
    const auto address = server->listen(Address::loopback_ipv4());
    ASSERT_TRUE(address);
    auto serving = spawn([&] { return server->serve(); });
    auto client = TcpStream::connect(*address);
    ASSERT_TRUE(client);
    std::vector<JoinHandle<Result<void>>> stopping;
    for (int i = 0; i < 4; ++i)
      stopping.push_back(spawn([raw = server.get()] { return raw->stop(Deadline::never()); }));
    for (const auto& each : stopping)
      test::until_parked(each.handle(), WaitReason::event);
    client->close();
    EXPECT_TRUE(serving.join());
    server.reset();
    for (auto& each : stopping)
      EXPECT_TRUE(each.join());
  }
}

}  // namespace
}  // namespace runloom::net
