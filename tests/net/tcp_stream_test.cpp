#include "runloom/net/tcp_stream.hpp"

#include "support/net_test.hpp"

namespace runloom::test {
namespace {

using net::bytes;

STREAM_TEST(TcpStream, EchoesUntilTheEnd) {
  Listening listening;
  auto echo = spawn([&] {
    auto stream = listening.listener.accept().value();
    std::array<std::byte, 512> buffer;
    for (;;) {
      const std::size_t count = stream.read_some(buffer).value();
      if (count == 0) break;
      stream.write_all(std::span(buffer).first(count)).value();
    }
  });
  auto client = net::TcpStream::connect(listening.address).value();
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(client.write_all(bytes("hello")));
    std::array<std::byte, 5> answer;
    ASSERT_EQ(client.read_full(answer).value(), 5u);
    ASSERT_EQ(std::memcmp(answer.data(), "hello", 5), 0);
  }
  ASSERT_TRUE(client.shutdown_write());
  EXPECT_EQ(read_to_end(client).value(), "");
  EXPECT_TRUE(echo.join());
}

STREAM_TEST(TcpStream, ManyConnectionsAtOnce) {
  constexpr int kConnections = 100;
  Listening listening;
  auto server = spawn([&] {
    for (int i = 0; i < kConnections; ++i) {
      go([stream = listening.listener.accept().value()]() mutable {
        std::array<std::byte, 64> buffer;
        for (;;) {
          const auto count = stream.read_some(buffer);
          if (!count || *count == 0) return;
          if (!stream.write_all(std::span(buffer).first(*count))) return;
        }
      }).value();
    }
  });
  std::vector<JoinHandle<Result<int>>> clients;
  for (int i = 0; i < kConnections; ++i) {
    clients.push_back(spawn([&, i]() -> Result<int> {
      RUNLOOM_TRY(auto client, net::TcpStream::connect(listening.address));
      int good = 0;
      for (int k = 0; k < 20; ++k) {
        const std::string sent = std::to_string(i) + ":" + std::to_string(k);
        if (auto ok = client.write_all(bytes(sent)); !ok) return Unexpected{ok.error()};
        std::string got(sent.size(), '\0');
        RUNLOOM_TRY(auto count, client.read_full(std::as_writable_bytes(std::span(got))));
        good += count == sent.size() && got == sent ? 1 : 0;
      }
      return good;
    }));
  }
  for (auto& client : clients)
    EXPECT_EQ(client.join().value(), 20);
  EXPECT_TRUE(server.join());
}

}  // namespace
}  // namespace runloom::test
