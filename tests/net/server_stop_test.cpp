// How a server ends: the backlog, handlers in mid-reply, the grace, signals.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>

#include "runloom/net/buffered.hpp"
#include "runloom/net/server.hpp"
#include "runloom/net/signals.hpp"
#include "runloom/sched/cancel.hpp"
#include "runloom/sched/event.hpp"
#include "runloom/sched/scheduler.hpp"
#include "support/child.hpp"
#include "support/race.hpp"
#include "support/server.hpp"

namespace runloom::net {
namespace {

using namespace std::chrono_literals;
using test::expect_echo;
using test::Serving;
using test::yield_until;

constexpr auto kNoLimit = 1h;

// Clients that have asked and were not accepted yet: the server does not run so far.
std::vector<TcpStream> ask(const Address& at, int count) {
  std::vector<TcpStream> clients;
  for (int i = 0; i < count; ++i) {
    clients.push_back(TcpStream::connect(at).value());
    EXPECT_TRUE(clients.back().write_all(bytes("request")));
    EXPECT_TRUE(clients.back().shutdown_write());
  }
  return clients;
}

NET_TEST(ServerStop, TheBacklogIsServed) {
  Server server(test::echo_connection);
  const auto at = server.listen(Address::loopback_ipv4()).value();
  auto clients = ask(at, 20);
  server.begin_stop(Deadline::after(kNoLimit));
  EXPECT_TRUE(server.serve());
  for (auto& client : clients)
    EXPECT_EQ(test::read_to_end(client).value(), "request");
  EXPECT_EQ(server.stats().accepted, 20u);
  EXPECT_EQ(server.stats().taken_at_stop, 20u);
}

NET_TEST(ServerStop, TheBacklogIsServedWithinTheLimit) {
  Server server(test::echo_connection, {.max_connections = 2});
  const auto at = server.listen(Address::loopback_ipv4()).value();
  auto clients = ask(at, 20);
  server.begin_stop(Deadline::after(kNoLimit));
  EXPECT_TRUE(server.serve());
  for (auto& client : clients)
    EXPECT_EQ(test::read_to_end(client).value(), "request");
  EXPECT_EQ(server.stats().rejected, 0u);
}

NET_TEST(ServerStop, TheBacklogIsRefusedWhenAsked) {
  Server server(test::echo_connection, {.backlog_at_stop = ServerOptions::Backlog::refuse});
  const auto at = server.listen(Address::loopback_ipv4()).value();
  auto clients = ask(at, 5);
  server.begin_stop(Deadline::after(kNoLimit));
  EXPECT_TRUE(server.serve());
  for (auto& client : clients)
    EXPECT_EQ(test::read_to_end(client).error(), std::errc::connection_reset);
  EXPECT_EQ(server.stats().accepted, 0u);
}

// Its listener has taken it already, and it waits for a place.
NET_TEST(ServerStop, AConnectionThatWaitsForAPlaceIsServed) {
  Serving server(test::echo_connection, {.max_connections = 1});
  auto first = server.connect();
  expect_echo(first, "1");
  auto second = server.connect();
  ASSERT_TRUE(second.write_all(bytes("2")));
  ASSERT_TRUE(second.shutdown_write());
  yield_until([] {
    for (const FiberInfo& fiber : Scheduler::current()->fibers())
      if (fiber.name == "acceptor" && fiber.reason == WaitReason::semaphore) return true;
    return false;
  });
  auto stopping = spawn([&] { return server->stop(Deadline::after(kNoLimit)); });
  first.close();
  EXPECT_EQ(test::read_to_end(second).value(), "2");
  EXPECT_TRUE(stopping.join());
  EXPECT_EQ(server->stats().rejected, 0u);
}

// The drain may still be moved, while an acceptor waits for a place.
NET_TEST(ServerStop, AnEarlierDrainReachesTheAcceptors) {
  Serving server(test::echo_connection, {.max_connections = 1});
  auto first = server.connect();
  expect_echo(first, "1");
  auto second = server.connect();
  yield_until([] {
    for (const FiberInfo& fiber : Scheduler::current()->fibers())
      if (fiber.name == "acceptor" && fiber.reason == WaitReason::semaphore) return true;
    return false;
  });
  auto stopping = spawn([&] { return server->stop(Deadline::after(kNoLimit)); });
  test::until_parked(stopping.handle(), WaitReason::event);
  server->begin_stop(Deadline::now());
  EXPECT_TRUE(stopping.join());
  EXPECT_EQ(server->stats().rejected, 1u);
  EXPECT_EQ(server->stats().cancelled, 1u);
}

// A reply that is under way when the stop comes is whole, however slowly its reader reads.
NET_TEST(ServerStop, NoReplyIsCutBeforeTheDrain) {
  const std::string reply = test::pattern(4 << 20);
  std::atomic<int> replying{0};
  Serving server([&](Connection& connection) {
    std::array<std::byte, 1> request;
    if (!connection.read_some(request)) return;
    ++replying;
    static_cast<void>(connection.write_all(bytes(reply)));
  });
  std::vector<TcpStream> clients;
  for (int i = 0; i < 5; ++i) {
    clients.push_back(server.connect());
    ASSERT_TRUE(clients.back().write_all(bytes("x")));
  }
  yield_until([&] { return replying == 5; });
  auto stopping = spawn([&] { return server->stop(Deadline::after(kNoLimit)); });
  test::until_parked(stopping.handle(), WaitReason::event);
  for (auto& client : clients)
    EXPECT_TRUE(test::read_to_end(client).value() == reply);
  EXPECT_TRUE(stopping.join());
  EXPECT_EQ(server->stats().cancelled, 0u);
  EXPECT_EQ(server->stats().closed_at_stop, 0u);
}

// Answers lines with "ok" or, once it is told to stop, with "last".
struct Lines {
  std::atomic<int> waiting{0};
  void operator()(Connection& connection) {
    BufferedReader reader(connection);
    for (;;) {
      ++waiting;
      connection.await_request(!reader.unread().empty());
      const auto line = reader.read_line();
      if (!line) {
        EXPECT_TRUE(line.error() != Errc::closed || connection.stopping());
        return;
      }
      connection.head_done();
      if (!connection.write_all(bytes(connection.stopping() ? "last\n" : "ok\n"))) return;
    }
  }
};

// So many bytes, or those that came before the end or an error.
std::string read_exactly(TcpStream& client, std::size_t count) {
  std::string text(count, '\0');
  std::size_t came = 0;
  static_cast<void>(client.read_full(test::writable(text), {}, &came));
  return text.substr(0, came);
}

void expect_answer(TcpStream& client, std::string_view request, std::string_view answer) {
  ASSERT_TRUE(client.write_all(bytes(request)));
  EXPECT_EQ(read_exactly(client, answer.size()), answer);
}

NET_TEST(ServerStop, WhoWaitsForAFurtherRequestIsTold) {
  Lines lines;
  Serving server([&](Connection& connection) { lines(connection); });
  std::vector<TcpStream> clients;
  for (int i = 0; i < 10; ++i) {
    clients.push_back(server.connect());
    expect_answer(clients.back(), "x\n", "ok\n");
  }
  // Of what has begun, and of a client that was not heard yet, the request is answered.
  auto fresh = server.connect();
  auto begun = server.connect();
  expect_answer(begun, "x\nha", "ok\n");
  yield_until([&] { return lines.waiting == 23; });
  auto stopping = spawn([&] { return server->stop(Deadline::after(kNoLimit)); });
  for (auto& client : clients)
    EXPECT_EQ(test::read_to_end(client).value(), "");
  expect_answer(begun, "lf\n", "last\n");
  EXPECT_EQ(test::read_to_end(begun).value(), "");
  expect_answer(fresh, "x\n", "last\n");
  EXPECT_EQ(test::read_to_end(fresh).value(), "");
  EXPECT_TRUE(stopping.join());
  EXPECT_EQ(server->stats().cancelled, 0u);
}

// A stop at any moment: a client has its answers whole, until it reads that one is the last, or
// finds the end between two of them.
NET_TEST(ServerStopRace, NoAnswerIsCut) {
  const test::RaceBudget budget;
  for (int round = 1; round == 1 || !budget.spent(); ++round) {
    Lines lines;
    std::atomic<int> answered{0};
    Serving server([&](Connection& connection) { lines(connection); });
    std::vector<JoinHandle<void>> clients;
    for (int i = 0; i < 4; ++i) {
      clients.push_back(spawn([&, client = server.connect()]() mutable {
        while (client.write_all(bytes("x\n"))) {
          std::string answer = read_exactly(client, 3);
          if (answer.empty()) return;
          ++answered;
          if (answer == "ok\n") continue;
          answer += read_exactly(client, 2);
          EXPECT_EQ(answer, "last\n");
          EXPECT_EQ(read_exactly(client, 1), "");
          return;
        }
      }));
    }
    yield_until([&] { return answered > 4 + round % 50; });
    EXPECT_TRUE(server->stop(Deadline::after(kNoLimit)));
    EXPECT_EQ(server->stats().cancelled, 0u);
    for (auto& client : clients)
      static_cast<void>(client.join());
  }
}

// And is cut off at the end of the drain, when nobody reads it.
NET_TEST(ServerStop, AReplyThatNobodyReadsIsCutAtTheDrain) {
  const std::string reply = test::pattern(16 << 20);
  std::error_code seen;
  Serving server([&](Connection& connection) {
    const auto written = connection.write_all(bytes(reply));
    if (!written) seen = written.error();
  });
  auto client = server.connect();
  yield_until([&] { return server->stats().active == 1; });
  EXPECT_TRUE(server->stop(Deadline::after(5ms)));
  EXPECT_EQ(seen, Errc::cancelled);
  EXPECT_EQ(server->stats().cancelled, 1u);
}

NET_TEST(ServerStop, AShieldedHandlerLosesItsConnectionAfterTheGrace) {
  Serving server(
      [](Connection& connection) {
        const Shield shield;
        std::array<std::byte, 8> buffer;
        EXPECT_EQ(connection.read_some(buffer).error(), Errc::closed);
      },
      {.cancel_grace = 5ms});
  auto client = server.connect();
  yield_until([&] { return server->stats().active == 1; });
  EXPECT_TRUE(server->stop(Deadline::now()));
  EXPECT_EQ(server->stats().closed_at_stop, 1u);
}

// ---------------------------------------------------------------- lingering

// It answers early and has the rest of the request unread.
void answer_early(Connection& connection) {
  std::array<std::byte, 1> first;
  ASSERT_TRUE(connection.read_some(first));
  ASSERT_TRUE(connection.write_all(bytes("too big")));
}

NET_TEST(ServerLinger, T46AnEarlyAnswerIsRead) {
  Serving server(answer_early, {.linger = ServerOptions::Linger{.time = 60s, .bytes = 64 << 20}});
  auto client = server.connect();
  const std::string request(8 << 20, 'x');
  ASSERT_TRUE(client.write_all(bytes(request)));
  ASSERT_TRUE(client.shutdown_write());
  EXPECT_EQ(test::read_to_end(client).value(), "too big");
  yield_until([&] { return server->stats().active == 0; });
  EXPECT_EQ(server->stats().lingered, 1u);
}

NET_TEST(ServerLinger, T46AClientThatNeverEndsIsLeftAtTheLimits) {
  Serving server(answer_early, {.linger = ServerOptions::Linger{.time = 5ms}});
  auto silent = server.connect();
  ASSERT_TRUE(silent.write_all(bytes("xy")));
  EXPECT_EQ(test::read_text(silent).value(), "too big");
  yield_until([&] { return server->stats().active == 0; });
  Serving small(answer_early, {.linger = ServerOptions::Linger{.time = 1h, .bytes = 1000}});
  auto loud = small.connect();
  const std::string flood(1 << 20, 'x');
  while (loud.write_all(bytes(flood))) {
  }
  yield_until([&] { return small->stats().active == 0; });
}

// Says goodbye to a peer that does not take it.
class Talkative final : public Stream {
 public:
  explicit Talkative(std::unique_ptr<Stream> below) : below_(std::move(below)) {}
  Result<std::size_t> read_some(std::span<std::byte> buffer, Deadline deadline) override {
    return below_->read_some(buffer, deadline);
  }
  Result<std::size_t> write_some(std::span<const std::byte> data, Deadline deadline) override {
    return below_->write_some(data, deadline);
  }
  Result<void> wait_readable(Deadline deadline) override { return below_->wait_readable(deadline); }
  Result<void> shutdown_write() override { return this_fiber::sleep_for(24h); }
  void close() noexcept override { below_->close(); }

 private:
  std::unique_ptr<Stream> below_;
};

NET_TEST(ServerLinger, T46AGoodbyeThatNobodyTakesIsBoundedToo) {
  ServerOptions options{.linger = ServerOptions::Linger{.time = 5ms}};
  options.wrap = [](std::unique_ptr<Stream> below, const ConnectionInfo&, Deadline) {
    return Result<std::unique_ptr<Stream>>(std::make_unique<Talkative>(std::move(below)));
  };
  Serving server(answer_early, options);
  auto client = server.connect();
  ASSERT_TRUE(client.write_all(bytes("x")));
  EXPECT_EQ(test::read_to_end(client).value(), "too big");
}

NET_TEST(ServerLinger, ATakenStreamIsLeftAlone) {
  std::unique_ptr<Stream> taken;
  std::atomic<bool> is_taken{false};  // the counters order nothing
  Serving server(
      [&](Connection& connection) {
        taken = connection.take();
        std::array<std::byte, 8> buffer;
        EXPECT_EQ(connection.read_some(buffer).error(), Errc::closed);
        is_taken = true;
      },
      {.linger = ServerOptions::Linger{}});
  auto client = server.connect();
  yield_until([&] { return is_taken && server->stats().active == 0; });
  ASSERT_TRUE(client.write_all(bytes("still")));
  EXPECT_EQ(test::read_text(*taken, 5).value(), "still");
  EXPECT_EQ(server->stats().lingered, 0u);
}

// ---------------------------------------------------------------- signals

// In a process of its own: signals are the whole process's.
int serve_until_signal(int second_signal) {
  const Signals signals({SIGTERM, SIGINT});
  Options options;
  options.hubs = 2;
  Scheduler scheduler(std::move(options));
  return scheduler
      .run([&] {
        Event replying;
        Server server([&](Connection& connection) {
          std::array<std::byte, 1> request;
          static_cast<void>(connection.read_some(request));
          replying.set();
          static_cast<void>(
              connection.read_some(request));  // until the client ends, or the drain does
          static_cast<void>(connection.write_all(bytes("bye")));
        });
        const auto at = server.listen(Address::loopback_ipv4()).value();
        server.stop_on(signals, 1h);
        auto serving = spawn([&] { return server.serve(); });
        auto client = TcpStream::connect(at).value();
        if (!client.write_all(bytes("x")) || !replying.wait()) return 1;
        ::kill(::getpid(), SIGTERM);
        while (TcpStream::connect(at))
          this_fiber::yield();
        if (serving.done()) return 2;
        if (second_signal != 0) {
          ::kill(::getpid(), second_signal);
        } else if (!client.shutdown_write()) {
          return 3;
        }
        if (test::read_to_end(client).value() != "bye") return 4;
        if (!serving.join()) return 5;
        // (The connects that looked whether it still listens may be among them.)
        return (server.stats().cancelled > 0) == (second_signal != 0) ? 0 : 6;
      })
      .value_or(7);
}

TEST(ServerSignals, SIGTERMDrains) {
  const auto end = test::run_child([] { return serve_until_signal(0); });
  EXPECT_EQ(end.code, 0) << end.signal << end.out;
}

TEST(ServerSignals, ASecondSignalStopsAtOnce) {
  for (const int signal : {SIGTERM, SIGINT}) {
    const auto end = test::run_child([&] { return serve_until_signal(signal); });
    EXPECT_EQ(end.code, 0) << end.signal << end.out;
  }
}

}  // namespace
}  // namespace runloom::net
