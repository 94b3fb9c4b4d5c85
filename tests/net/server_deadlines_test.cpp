// R02: peers that are slow, in every way in which one can be.
#include <gtest/gtest.h>

#include <cstdlib>

#include "runloom/net/buffered.hpp"
#include "runloom/net/server.hpp"
#include "support/server.hpp"

namespace runloom::net {
namespace {

using namespace std::chrono_literals;
using test::expect_echo;
using test::Serving;
using test::yield_until;
using Expired = Connection::Expired;

// Nothing runs out but what a test sets.
constexpr ServerTimeouts kNone{.handshake = 0ms,
                               .first_byte = 0ms,
                               .idle = 0ms,
                               .head = 0ms,
                               .body = 0ms,
                               .write = 0ms,
                               .least_rate = 0};

// A protocol of requests: a line, which is answered. "body N" has N bytes behind it, "send N" is
// answered by so many.
void serve_lines(Connection& connection) {
  BufferedReader reader(connection);
  for (;;) {
    connection.await_request();
    const auto line = reader.read_line();
    if (!line) return;
    const std::string head(*line);
    connection.head_done();
    if (head.starts_with("body ")) {
      std::string body(std::stoul(head.substr(5)), '\0');
      if (!reader.read_exact(test::writable(body))) return;
    }
    std::string answer = "ok\n";
    if (head.starts_with("send ")) answer = test::pattern(std::stoul(head.substr(5)));
    if (!connection.write_all(bytes(answer))) return;
  }
}

void expect_answer(TcpStream& client, std::string_view request) {
  ASSERT_TRUE(client.write_all(bytes(request)));
  std::string answer(3, '\0');
  ASSERT_EQ(client.read_full(test::writable(answer)).value(), 3u);
  EXPECT_EQ(answer, "ok\n");
}

// Sends `piece` again and again, until the server has hung up on us.
void trickle(TcpStream& client, std::string_view piece) {
  while (client.write_all(bytes(piece)))
    if (!this_fiber::sleep_for(1ms)) return;
}

NET_TEST(ServerDeadlines, R02AHeadInTricklesIsCutOff) {
  ServerTimeouts timeouts = kNone;
  timeouts.head = 30ms;
  // Nor does it linger after that.
  Serving server(serve_lines, {.timeouts = timeouts,
                               .linger = ServerOptions::Linger{.time = 1h, .bytes = 1u << 30}});
  auto good = server.connect();
  expect_answer(good, "hello\n");
  auto slow = server.connect();
  trickle(slow, "x");
  EXPECT_EQ(server->stats().timeout(ServerTimeout::head), 1u);
  // An idle connection has no head to be late with.
  expect_answer(good, "still\n");
}

NET_TEST(ServerDeadlines, R02SilenceIsCutOff) {
  ServerTimeouts timeouts = kNone;
  timeouts.first_byte = 10ms;
  Serving strict(serve_lines, {.timeouts = timeouts});
  auto silent = strict.connect();
  EXPECT_TRUE(test::reads_end(silent));
  EXPECT_EQ(strict->stats().timeout(ServerTimeout::first_byte), 1u);
  timeouts.first_byte = 0ms;
  timeouts.idle = 20ms;
  Serving server(serve_lines, {.timeouts = timeouts});
  auto idle = server.connect();
  expect_answer(idle, "hello\n");
  EXPECT_TRUE(test::reads_end(idle));
  EXPECT_EQ(server->stats().timeout(ServerTimeout::idle), 1u);
}

NET_TEST(ServerDeadlines, R02ABodyInTricklesIsCutOff) {
  ServerTimeouts timeouts = kNone;
  timeouts.body = 30ms;
  timeouts.least_rate = 1 << 20;  // what comes in trickles adds nothing to speak of
  Serving server(serve_lines, {.timeouts = timeouts});
  auto slow = server.connect();
  ASSERT_TRUE(slow.write_all(bytes("body 1000000\n")));
  trickle(slow, "x");
  EXPECT_EQ(server->stats().timeout(ServerTimeout::body), 1u);
}

NET_TEST(ServerDeadlines, R02AnAnswerThatIsNotReadIsCutOff) {
  ServerTimeouts timeouts = kNone;
  timeouts.write = 30ms;
  Serving server(serve_lines, {.timeouts = timeouts});
  auto slow = server.connect();
  ASSERT_TRUE(slow.set_receive_buffer(4096));
  ASSERT_TRUE(slow.write_all(bytes("send 50000000\n")));
  // It reads, a little at a time: no byte starts the deadline afresh.
  std::array<std::byte, 16> piece;
  while (slow.read_some(piece).value_or(0) > 0)
    if (server->stats().active == 0 || !this_fiber::sleep_for(1ms)) break;
  EXPECT_EQ(server->stats().timeout(ServerTimeout::write), 1u);
}

// What is big is not slow: its bytes earn it time.
NET_TEST(ServerDeadlines, BytesEarnTime) {
  ServerTimeouts timeouts = kNone;
  timeouts.body = 300ms;
  timeouts.least_rate = 100;  // so that 3,000 bytes have 30 s
  Serving server(
      [&](Connection& connection) {
        connection.await_request();
        std::string head(4, '\0');
        EXPECT_EQ(connection.read_full(test::writable(head)).value(), 4u);
        connection.head_done();
        std::string body(6000, '\0');
        EXPECT_EQ(
            connection.read_some(std::as_writable_bytes(std::span(body.data(), 3000))).value(),
            3000u);
        EXPECT_TRUE(connection.write_all(bytes("half")));
        EXPECT_EQ(connection.read_full(test::writable(body).subspan(3000)).value(), 3000u);
      },
      {.timeouts = timeouts});
  auto client = server.connect();
  const std::string half(3000, 'x');
  // In one segment: the handler takes the head by itself.
  ASSERT_TRUE(client.write_all(bytes("head" + half)));
  EXPECT_EQ(test::read_text(client, 4).value(), "half");
  ASSERT_TRUE(this_fiber::sleep_for(500ms));
  ASSERT_TRUE(client.write_all(bytes(half)));
  EXPECT_TRUE(test::reads_end(client));
  EXPECT_EQ(server->stats().timeout(ServerTimeout::body), 0u);
}

// A handler that takes its time does not use up that of its client.
NET_TEST(ServerDeadlines, AHandlersOwnTimeDoesNotCount) {
  ServerTimeouts timeouts = kNone;
  timeouts.body = 200ms;
  timeouts.write = 200ms;
  std::error_code failed;
  Serving server(
      [&](Connection& connection) {
        connection.await_request();
        std::array<std::byte, 1> byte;
        for (int i = 0; i < 4; ++i) {
          const auto count = connection.read_some(byte);
          if (!count) failed = count.error();
          connection.head_done();
          if (!this_fiber::sleep_for(60ms)) return;
          const auto written = connection.write_all(byte);
          if (!written) failed = written.error();
        }
      },
      {.timeouts = timeouts});
  auto client = server.connect();
  ASSERT_TRUE(client.write_all(bytes("abcd")));
  EXPECT_EQ(test::read_to_end(client).value(), "abcd");
  EXPECT_TRUE(server->stop(Deadline::after(1h)));  // the handler has ended
  EXPECT_FALSE(failed) << failed.message();
}

NET_TEST(ServerDeadlines, WithoutRequestsNothingIsBounded) {
  ServerTimeouts timeouts{1ms, 1ms, 1ms, 1ms, 1ms, 1ms, 0};
  Serving server(test::echo_connection, {.timeouts = timeouts});
  auto client = server.connect();
  ASSERT_TRUE(this_fiber::sleep_for(5ms));
  expect_echo(client, "hello");
  ASSERT_TRUE(this_fiber::sleep_for(5ms));
  expect_echo(client, "again");
}

NET_TEST(ServerDeadlines, AConnectionMayBecomeUnbounded) {
  ServerTimeouts timeouts = kNone;
  timeouts.idle = 1ms;
  timeouts.first_byte = 1h;
  timeouts.head = 1h;
  timeouts.write = 1ms;
  Expired expired = Expired::write;
  Serving server(
      [&](Connection& connection) {
        std::array<std::byte, 1> byte;
        connection.await_request();
        EXPECT_EQ(connection.read_some(byte).value(), 1u);
        connection.unbounded();
        EXPECT_TRUE(this_fiber::sleep_for(5ms));
        EXPECT_EQ(connection.read_some(byte).value(), 1u);
        EXPECT_TRUE(connection.write_all(byte));
        expired = connection.expired();
      },
      {.timeouts = timeouts});
  auto client = server.connect();
  ASSERT_TRUE(client.write_all(bytes("a")));
  ASSERT_TRUE(this_fiber::sleep_for(10ms));
  ASSERT_TRUE(client.write_all(bytes("b")));
  EXPECT_EQ(test::read_to_end(client).value(), "b");
  EXPECT_TRUE(server->stop(Deadline::after(1h)));  // the handler has ended
  EXPECT_EQ(expired, Expired::none);
}

// The deadline of a call is the handler's own business, and no slow peer's.
NET_TEST(ServerDeadlines, ACallsOwnDeadlineIsNotCounted) {
  std::error_code seen;
  Expired expired = Expired::write;
  Serving server([&](Connection& connection) {
    connection.await_request();
    std::array<std::byte, 1> byte;
    seen = connection.read_some(byte, Deadline::after(1ms)).error();
    EXPECT_EQ(connection.wait_readable(Deadline::after(1ms)).error(), Errc::timed_out);
    expired = connection.expired();
  });
  auto client = server.connect();
  EXPECT_TRUE(test::reads_end(client));
  EXPECT_TRUE(server->stop(Deadline::after(1h)));  // the handler has ended
  EXPECT_EQ(seen, Errc::timed_out);
  EXPECT_EQ(expired, Expired::none);
  for (std::size_t i = 0; i < kServerTimeouts; ++i)
    EXPECT_EQ(server->stats().timeouts[i], 0u);
}

// Clients that never finish go at the deadline, and those that do are served meanwhile.
NET_TEST(ServerDeadlines, R02ManySlowClientsAndAGoodOne) {
  const int slow_ones = std::getenv("RUNLOOM_FULL") ? 5000 : test::kSanitized ? 100 : 1000;
  ServerTimeouts timeouts = kNone;
  timeouts.head = 500ms;
  Serving server(serve_lines, {.timeouts = timeouts});
  auto good = server.connect();
  expect_answer(good, "before\n");
  std::vector<int> slow;
  for (int i = 0; i < slow_ones; ++i) {
    slow.push_back(test::plain_connect(server.address()));
    ASSERT_GE(slow.back(), 0);
    ASSERT_EQ(::send(slow.back(), "x", 1, MSG_NOSIGNAL), 1);
    // No more than the backlog holds.
    if (i % 64 == 0)
      yield_until([&] { return server->stats().accepted >= static_cast<std::uint64_t>(i) + 2; });
  }
  while (server->stats().timeout(ServerTimeout::head) < static_cast<std::uint64_t>(slow_ones)) {
    expect_answer(good, "meanwhile\n");
    // A byte more from some of them changes nothing.
    for (std::size_t i = 0; i < slow.size(); i += 10)
      ::send(slow[i], "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    ASSERT_TRUE(this_fiber::sleep_for(5ms));
  }
  expect_answer(good, "after\n");
  yield_until([&] { return server->stats().active == 1; });  // counted before they have left
  for (const int fd : slow)
    ::close(fd);
}

}  // namespace
}  // namespace runloom::net
