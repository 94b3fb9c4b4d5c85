// UDP endpoints that several hubs use, time out, cancel and close at the same moment.
#include <array>
#include <atomic>
#include <vector>

#include "support/race.hpp"
#include "support/udp.hpp"

namespace runloom::test {
namespace {

using namespace std::chrono_literals;
using net::bytes;
using net::UdpEndpoint;

NET_TEST(UdpRace, CloseAgainstReadersAndSenders) {
  Random random(1);
  for (RaceBudget budget; !budget.spent();) {
    Bound server;
    auto reader = spawn(
        [&] {
          DatagramBuffers batch(4, 16);
          return server.endpoint.recv_many(batch.all());
        },
        {.hub = 1});
    auto other = spawn([&] { return receive(server.endpoint); }, {.hub = 0});
    auto sender = spawn(
        [&]() -> Result<std::size_t> {
          const std::array<net::OutDatagram, 2> out{
              {{bytes("a"), server.address}, {bytes("b"), server.address}}};
          return server.endpoint.send_many(out);
        },
        {.hub = 1});
    for (std::uint32_t i = random.below(4); i > 0; --i)
      this_fiber::yield();
    server.endpoint.close();
    const auto read = reader.join();
    EXPECT_TRUE(read || read.error() == Errc::closed);
    const auto text = other.join();
    EXPECT_TRUE(text || text.error() == Errc::closed);
    const auto sent = sender.join();
    EXPECT_TRUE(sent || sent.error() == Errc::closed);
  }
}

// Many readers, with deadlines that expire while they queue, and cancels: no datagram is lost,
// none comes twice.
NET_TEST(UdpRace, DeadlinesAndCancelsLoseNoDatagram) {
  Random random(2);
  for (RaceBudget budget; !budget.spent();) {
    Bound server;
    constexpr std::size_t kReaders = 6;
    std::vector<JoinHandle<Result<std::string>>> readers;
    for (std::size_t i = 0; i < kReaders; ++i) {
      const auto patience = Deadline::after(std::chrono::microseconds(random.below(80)));
      readers.push_back(spawn([&server, patience] { return receive(server.endpoint, patience); },
                              {.hub = static_cast<int>(i % 2)}));
    }
    std::array<bool, kReaders> seen{};
    for (std::size_t i = 0; i < kReaders; ++i) {
      EXPECT_TRUE(server.endpoint.send_to(bytes(std::to_string(i)), server.address));
      if (random.one_in(4)) readers[i].cancel();
      if (random.one_in(3)) this_fiber::yield();
    }
    const auto note = [&](const std::string& text) {
      const auto index = static_cast<std::size_t>(text[0] - '0');
      EXPECT_FALSE(seen[index]) << index << " came twice";
      seen[index] = true;
    };
    for (auto& reader : readers)
      if (const auto got = reader.join()) note(*got);
    while (const auto rest = receive(server.endpoint, Deadline::now()))
      note(*rest);
    for (std::size_t i = 0; i < kReaders; ++i)
      EXPECT_TRUE(seen[i]) << i << " was lost";
  }
}

// A server and its clients on different hubs, on one descriptor each.
NET_TEST(UdpRace, EchoBetweenHubs) {
  Bound server({.receive_buffer = 1 << 20});
  std::atomic<bool> over{false};
  auto echo = spawn(
      [&]() -> Result<void> {
        DatagramBuffers batch(16, 64);
        for (;;) {
          RUNLOOM_TRY(const std::size_t count, server.endpoint.recv_many(batch.all()));
          const std::span<const net::Datagram> got = batch.all().first(count);
          EXPECT_EQ(server.endpoint.send_many(got).value(), count);
        }
      },
      {.hub = 1});
  std::vector<JoinHandle<void>> clients;
  for (int c = 0; c < 4; ++c)
    clients.push_back(spawn(
        [&] {
          const auto client = UdpEndpoint::connect(server.address).value();
          for (int i = 0; !over; ++i) {
            const std::string text = std::to_string(i);
            EXPECT_TRUE(client.send(bytes(text)));
            EXPECT_EQ(receive(client).value(), text);
          }
        },
        {.hub = c % 2}));
  for (RaceBudget budget; !budget.spent();)
    ASSERT_TRUE(this_fiber::sleep_for(1ms));
  over = true;
  for (auto& client : clients)
    EXPECT_TRUE(client.join());
  echo.cancel();
  EXPECT_EQ(echo.join().error(), Errc::cancelled);
}

}  // namespace
}  // namespace runloom::test
