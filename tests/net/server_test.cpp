#include "runloom/net/server.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "runloom/net/tcp_stream.hpp"
#include "runloom/sched/cancel.hpp"
#include "runloom/sched/event.hpp"
#include "runloom/sched/fiber.hpp"
#include "runloom/sched/scheduler.hpp"
#include "support/fiber_test.hpp"

namespace runloom::net {
namespace {

using namespace std::chrono_literals;
using test::yield_until;

constexpr auto kNoLimit = 1h;  // a drain that never runs out

void echo(TcpStream stream) {
  std::array<std::byte, 1024> buffer;
  for (;;) {
    const auto count = stream.read_some(buffer);
    if (!count || *count == 0) return;
    if (!stream.write_all(std::span(buffer).first(*count))) return;
  }
}

// A server that serves on a fiber of its own until it is stopped, or the test ends.
class Running {
 public:
  explicit Running(Server::Handler handler, ServerOptions options = {})
      : server_(std::move(handler), std::move(options)) {
    const auto bound = server_.listen(Address::loopback_ipv4());
    EXPECT_TRUE(bound) << bound.error().message();
    if (bound) address_ = *bound;
    serving_ = spawn([this] { return server_.serve(); });
  }
  ~Running() {
    server_.begin_stop(Deadline::now());
    static_cast<void>(serving_.join());
  }
  Server* operator->() { return &server_; }
  const Address& address() const { return address_; }
  JoinHandle<Result<void>>& serving() { return serving_; }

  TcpStream connect() const {
    auto stream = TcpStream::connect(address_);
    EXPECT_TRUE(stream) << stream.error().message();
    return stream ? std::move(*stream) : TcpStream();
  }

 private:
  Server server_;
  Address address_;
  JoinHandle<Result<void>> serving_;
};

void expect_echo(TcpStream& stream, std::string_view text) {
  ASSERT_TRUE(stream.write_all(bytes(text)));
  std::string back(text.size(), '\0');
  const auto count = stream.read_full(std::as_writable_bytes(std::span(back)));
  ASSERT_TRUE(count) << count.error().message();
  EXPECT_EQ(back, text);
}

// Reads to the end, or to an error; true when it was the end.
bool reads_end(TcpStream& stream) {
  std::array<std::byte, 64> buffer;
  for (;;) {
    const auto count = stream.read_some(buffer);
    if (!count || *count == 0) return count.has_value();
  }
}

FIBER_TEST(Server, EchoesToManyClients) {
  Running server(echo);
  std::vector<TcpStream> clients;
  for (int i = 0; i < 100; ++i)
    clients.push_back(server.connect());
  for (int round = 0; round < 3; ++round)
    for (std::size_t i = 0; i < clients.size(); ++i)
      expect_echo(clients[i], std::to_string(round) + ":" + std::to_string(i));
  EXPECT_EQ(server->stats().accepted, 100u);
  EXPECT_EQ(server->stats().active, 100u);
  clients.clear();
  yield_until([&] { return server->stats().active == 0; });
  EXPECT_TRUE(server->stop(Deadline::after(kNoLimit)));
  EXPECT_TRUE(server.serving().join());
  EXPECT_EQ(server->stats().cancelled, 0u);
}

void expect_every_hub_serves(ServerOptions::Placement placement) {
  std::mutex mutex;
  std::multiset<int> hubs;
  Running server(
      [&](TcpStream stream) {
        {
          const std::lock_guard hold(mutex);
          hubs.insert(Hub::current()->index());
        }
        echo(std::move(stream));
      },
      {.placement = placement});
  std::vector<TcpStream> clients;
  for (int i = 0; i < 200; ++i) {
    clients.push_back(server.connect());
    expect_echo(clients.back(), "x");
  }
  const int count = Scheduler::current()->hubs();
  for (int hub = 0; hub < count; ++hub)
    EXPECT_GT(hubs.count(hub), 0u) << hub;
  if (placement == ServerOptions::Placement::least_loaded && count == 2) {
    EXPECT_NEAR(static_cast<double>(hubs.count(0)), 100.0, 10.0);
  }
}

FIBER_TEST(Server, AListenerPerHubUsesEveryHub) {
  expect_every_hub_serves(ServerOptions::Placement::listener_per_hub);
}

FIBER_TEST(Server, LeastLoadedUsesEveryHubEvenly) {
  expect_every_hub_serves(ServerOptions::Placement::least_loaded);
}

FIBER_TEST(Server, TakesItsPortForItself) {
  Running server(echo);
  Server second(echo);
  EXPECT_EQ(second.listen(server.address()).error(), std::errc::address_in_use);
  // Also for one that would share.
  Server third(echo, {.listen = {.reuse_port = true}});
  if (Scheduler::current()->hubs() == 1) {
    EXPECT_EQ(third.listen(server.address()).error(), std::errc::address_in_use);
  }
}

FIBER_TEST(Server, SharesItsPortWhenAsked) {
  const ServerOptions sharing{.listen = {.reuse_port = true}};
  Running first(echo, sharing);
  Server second(echo, sharing);
  const auto bound = second.listen(first.address());
  ASSERT_TRUE(bound) << bound.error().message();
  EXPECT_EQ(*bound, first.address());
}

FIBER_TEST(Server, ListensOnSeveralAddresses) {
  Server server(echo);
  const auto v4 = server.listen(Address::loopback_ipv4());
  const auto v6 = server.listen(Address::loopback_ipv6());
  ASSERT_TRUE(v4 && v6);
  auto serving = spawn([&] { return server.serve(); });
  for (const Address& address : {*v4, *v6}) {
    auto client = TcpStream::connect(address);
    ASSERT_TRUE(client);
    expect_echo(*client, "hello");
  }
  EXPECT_TRUE(server.stop(Deadline::after(kNoLimit)));
  EXPECT_TRUE(serving.join());
}

FIBER_TEST(Server, MaxConnectionsMakesClientsWait) {
  std::atomic<int> active{0};
  std::atomic<int> most{0};
  Running server(
      [&](TcpStream stream) {
        const int now = ++active;
        int seen = most.load();
        while (now > seen && !most.compare_exchange_weak(seen, now)) {
        }
        echo(std::move(stream));
        --active;
      },
      {.max_connections = 2});
  std::vector<JoinHandle<void>> clients;
  for (int i = 0; i < 20; ++i) {
    clients.push_back(spawn([&server, i] {
      auto client = server.connect();
      expect_echo(client, std::to_string(i));
      this_fiber::yield();
    }));
  }
  for (auto& client : clients)
    EXPECT_TRUE(client.join());
  EXPECT_EQ(server->stats().accepted, 20u);
  EXPECT_EQ(server->stats().rejected, 0u);
  EXPECT_LE(most, 2);
  EXPECT_GT(most, 0);
}

FIBER_TEST(Server, RejectsOverTheLimitWhenAsked) {
  Running server(echo, {.max_connections = 2, .reject_over_limit = true});
  auto first = server.connect();
  auto second = server.connect();
  expect_echo(first, "1");
  expect_echo(second, "2");
  auto third = server.connect();
  EXPECT_TRUE(reads_end(third));
  EXPECT_EQ(server->stats().rejected, 1u);
  first.close();
  yield_until([&] { return server->stats().active == 1; });
  auto fourth = server.connect();
  expect_echo(fourth, "4");
  EXPECT_EQ(server->stats().accepted, 3u);
}

FIBER_TEST(Server, AnExceptionEndsItsConnectionOnly) {
  std::mutex mutex;
  std::vector<std::string> reports;
  std::set<std::string> peers;
  Running server(
      [](TcpStream stream) {
        std::array<std::byte, 1> first;
        if (!stream.read_some(first)) return;
        if (first[0] == std::byte{'!'}) throw std::runtime_error("boom");
        if (!stream.write_all(first)) return;
        echo(std::move(stream));
      },
      {.report = [&](const ServerReport& report) {
        const std::lock_guard hold(mutex);
        EXPECT_EQ(report.fault, ServerFault::handler_exception);
        EXPECT_TRUE(report.exception);
        reports.emplace_back(report.text);
        peers.insert(report.peer.to_string());
      }});
  auto good = server.connect();
  expect_echo(good, "before");
  auto bad = server.connect();
  const std::string name = bad.local_address()->to_string();
  ASSERT_TRUE(bad.write_all(bytes("!")));
  EXPECT_TRUE(reads_end(bad));
  expect_echo(good, "after");
  yield_until([&] { return server->stats().active == 1; });
  EXPECT_EQ(server->stats().fault(ServerFault::handler_exception), 1u);
  const std::lock_guard hold(mutex);
  EXPECT_EQ(reports, std::vector<std::string>{"boom"});
  EXPECT_EQ(peers, std::set<std::string>{name});
}

FIBER_TEST(Server, StopLetsHandlersFinish) {
  Running server(echo);
  auto client = server.connect();
  expect_echo(client, "before");
  auto stopping = spawn([&] { return server->stop(Deadline::after(kNoLimit)); });
  // The listener goes, the connection stays.
  while (TcpStream::connect(server.address()))
    this_fiber::yield();
  expect_echo(client, "after");
  EXPECT_FALSE(server.serving().done());
  client.close();
  EXPECT_TRUE(stopping.join());
  EXPECT_TRUE(server.serving().join());
  EXPECT_EQ(server->stats().cancelled, 0u);
}

FIBER_TEST(Server, StopCancelsAfterTheDrain) {
  std::atomic<int> ended{0};
  Running server([&](TcpStream stream) {
    std::array<std::byte, 8> buffer;
    while (stream.read_some(buffer)) {
    }
    EXPECT_EQ(stream.read_some(buffer).error(), Errc::cancelled);
    EXPECT_TRUE(stream.write_all(bytes("bye")));  // needs no park
    ++ended;
  });
  std::vector<TcpStream> clients;
  for (int i = 0; i < 10; ++i)
    clients.push_back(server.connect());
  yield_until([&] { return server->stats().active == 10; });
  EXPECT_TRUE(server->stop(Deadline::now()));
  EXPECT_TRUE(server.serving().join());
  EXPECT_EQ(ended, 10);
  EXPECT_EQ(server->stats().cancelled, 10u);
  EXPECT_EQ(server->stats().active, 0u);
  for (auto& client : clients) {
    std::string text(4, '\0');
    EXPECT_EQ(client.read_full(std::as_writable_bytes(std::span(text))).value(), 3u);
  }
}

FIBER_TEST(Server, StopClosesWhatIsShielded) {
  std::error_code seen;
  Running server(
      [&](TcpStream stream) {
        const Shield shield;
        std::array<std::byte, 8> buffer;
        const auto count = stream.read_some(buffer);
        ASSERT_FALSE(count);
        seen = count.error();
      },
      {.cancel_grace = 10ms});
  auto client = server.connect();
  yield_until([&] { return server->stats().active == 1; });
  EXPECT_TRUE(server->stop(Deadline::now()));
  EXPECT_TRUE(server.serving().join());
  EXPECT_EQ(seen, Errc::closed);
}

FIBER_TEST(Server, AnEarlierDrainCounts) {
  Running server(echo);
  auto client = server.connect();
  expect_echo(client, "x");
  auto patient = spawn([&] { return server->stop(Deadline::never()); });
  // Until it waits for the handlers: the acceptors have ended.
  yield_until([] {
    for (const FiberInfo& fiber : Scheduler::current()->fibers())
      if (fiber.name == "acceptor") return false;
    return true;
  });
  test::until_parked(server.serving().handle(), WaitReason::join_set);
  server->begin_stop(Deadline::now());
  server->begin_stop(Deadline::after(kNoLimit));  // a later one does not
  EXPECT_TRUE(patient.join());
  EXPECT_TRUE(server.serving().join());
  EXPECT_EQ(server->stats().cancelled, 1u);
}

FIBER_TEST(Server, StopServesWhatTheBacklogHolds) {
  std::atomic<int> served{0};
  Server server([&](TcpStream stream) {
    ++served;
    echo(std::move(stream));
  });
  const auto bound = server.listen(Address::loopback_ipv4());
  ASSERT_TRUE(bound);
  std::vector<TcpStream> clients;
  for (int i = 0; i < 20; ++i) {
    auto client = TcpStream::connect(*bound);
    ASSERT_TRUE(client);
    ASSERT_TRUE(client->write_all(bytes("request")));
    ASSERT_TRUE(client->shutdown_write());
    clients.push_back(std::move(*client));
  }
  server.begin_stop(Deadline::after(kNoLimit));
  EXPECT_TRUE(server.serve());
  EXPECT_EQ(served, 20);
  for (auto& client : clients) {
    std::string text(10, '\0');
    EXPECT_EQ(client.read_full(std::as_writable_bytes(std::span(text))).value(), 7u);
  }
}

FIBER_TEST(Server, AHandlerMayStopIt) {
  Server* self = nullptr;
  Running server([&](TcpStream) { self->begin_stop(Deadline::after(kNoLimit)); });
  self = &*server.operator->();
  auto client = server.connect();
  EXPECT_TRUE(reads_end(client));
  EXPECT_TRUE(server.serving().join());
  EXPECT_EQ(server->stats().cancelled, 0u);
}

FIBER_TEST(Server, CancellingServeEndsEverything) {
  Running server(echo);
  auto client = server.connect();
  expect_echo(client, "x");
  server.serving().cancel();
  const auto served = server.serving().join();
  EXPECT_EQ(served.error(), Errc::cancelled);
  EXPECT_EQ(server->stats().active, 0u);
  EXPECT_FALSE(TcpStream::connect(server.address()));
}

FIBER_TEST(Server, ADeadlineAroundServeEndsIt) {
  Server server(echo);
  ASSERT_TRUE(server.listen(Address::loopback_ipv4()));
  const CancelScope scope(Deadline::after(1ms));
  EXPECT_EQ(server.serve().error(), Errc::timed_out);
}

FIBER_TEST(Server, WithoutAFiberAConnectionIsClosed) {
  std::atomic<int> reports{0};
  Running server(echo, {.report = [&](const ServerReport& report) {
                   EXPECT_EQ(report.fault, ServerFault::no_fiber);
                   EXPECT_EQ(report.error, Errc::fiber_limit);
                   ++reports;
                 }});
  auto before = server.connect();
  expect_echo(before, "before");
  Scheduler& scheduler = *Scheduler::current();
  scheduler.set_max_fibers(scheduler.stats().live);
  auto refused = server.connect();
  EXPECT_TRUE(reads_end(refused));
  expect_echo(before, "still");
  scheduler.set_max_fibers(0);
  auto after = server.connect();
  expect_echo(after, "after");
  EXPECT_EQ(server->stats().fault(ServerFault::no_fiber), 1u);
  EXPECT_EQ(server->stats().accepted, 2u);
  EXPECT_EQ(reports, 1);
}

// Takes away the descriptors that the process could still open.
class NoDescriptors {
 public:
  NoDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const int lowest_free = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    ::close(lowest_free);
    rlimit none = before_;
    none.rlim_cur = static_cast<rlim_t>(lowest_free);
    ::setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

FIBER_TEST(Server, T01KeepsServingWithoutDescriptors) {
  std::atomic<int> reports{0};
  Running server(echo, {.report = [&](const ServerReport& report) {
                   EXPECT_EQ(report.fault, ServerFault::accept);
                   EXPECT_EQ(report.error, std::errc::too_many_files_open);
                   ++reports;
                 }});
  auto open = server.connect();
  expect_echo(open, "before");
  std::vector<int> sockets;
  for (int i = 0; i < 20; ++i)
    sockets.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));

  const auto began = std::chrono::steady_clock::now();
  std::uint64_t faults = 0;
  std::chrono::duration<double> lasted{};
  {
    const NoDescriptors none;
    for (const int fd : sockets)
      ASSERT_EQ(::connect(fd, server.address().data(), server.address().size()), 0);
    while ((faults = server->stats().fault(ServerFault::accept)) < 4)
      ASSERT_TRUE(this_fiber::sleep_for(1ms));
    expect_echo(open, "meanwhile");
    lasted = std::chrono::steady_clock::now() - began;
  }
  // Pauses of 10, 20, 40 ... 500 ms, for each listener.
  const double listeners = Scheduler::current()->hubs();
  EXPECT_LE(static_cast<double>(faults), listeners * (8 + 2 * lasted.count()));
  EXPECT_LE(reports, 1 + lasted.count());
  EXPECT_GE(reports, 1);
  // The clients that waited are served.
  for (const int fd : sockets) {
    auto client = TcpStream::adopt(fd);
    ASSERT_TRUE(client);
    expect_echo(*client, "at last");
  }
  EXPECT_EQ(server->stats().accepted, 21u);
}

FIBER_TEST(Server, S28AStormOfConnectionsLetsOthersRun) {
  Server server(echo);
  const auto bound = server.listen(Address::loopback_ipv4());
  ASSERT_TRUE(bound);
  std::vector<TcpStream> clients;
  for (int i = 0; i < 500; ++i) {
    auto client = TcpStream::connect(*bound);
    ASSERT_TRUE(client);
    clients.push_back(std::move(*client));
  }
  auto serving = spawn([&] { return server.serve(); });
  // How many are accepted between two runs of another fiber.
  std::uint64_t before = 0;
  std::uint64_t most = 0;
  while (before < 500) {
    this_fiber::yield();
    const std::uint64_t now = server.stats().accepted;
    most = std::max(most, now - before);
    before = now;
  }
  if (Scheduler::current()->hubs() == 1) {
    EXPECT_LE(most, 64u);
  }
  EXPECT_TRUE(server.stop(Deadline::now()));
  EXPECT_TRUE(serving.join());
}

FIBER_TEST(Server, NeedsAFiberOfItsScheduler) {
  Server server(echo);
  std::thread([&] {
    EXPECT_EQ(server.listen(Address::loopback_ipv4()).error(), Errc::not_in_fiber);
    EXPECT_EQ(server.serve().error(), Errc::not_in_fiber);
  }).join();
  ASSERT_TRUE(server.listen(Address::loopback_ipv4()));
  std::thread([&] {
    Scheduler other;
    const auto served = other.run([&] { return server.serve(); });
    EXPECT_EQ(served.error(), Errc::wrong_scheduler);
  }).join();
}

}  // namespace
}  // namespace runloom::net
