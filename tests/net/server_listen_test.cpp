// Where a server listens: Unix sockets, and listeners that came from elsewhere.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <set>

#include "runloom/net/server.hpp"
#include "runloom/sched/scheduler.hpp"
#include "support/server.hpp"
#include "support/unix_test.hpp"

namespace runloom::net {
namespace {

using namespace std::chrono_literals;
using test::expect_echo;
using test::Serving;

NET_TEST(ServerListen, Z02ServesAUnixSocketThatOnlyItsUserMayReach) {
  test::SocketDir directory;
  const auto at = directory.address("s");
  {
    Serving server(test::echo_connection, {.unix_listen = {.bind = {.mode = 0600}}}, at);
    struct stat status;
    ASSERT_EQ(::stat(directory.path("s").c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 0600u);
    auto client = server.connect_unix();
    expect_echo(client, "hello");
    EXPECT_EQ(server->stats().accepted, 1u);
  }
  EXPECT_EQ(directory.names(), std::vector<std::string>{});
}

NET_TEST(ServerListen, TellsWhoAndWhere) {
  test::SocketDir directory;
  std::mutex mutex;
  std::vector<ConnectionInfo> seen;
  Address tcp_at, any_at;
  Serving server(
      Serving::Prepared{},
      [&](Connection& connection) {
        {
          const std::lock_guard hold(mutex);
          seen.push_back(connection.info());
        }
        EXPECT_EQ(connection.tcp() != nullptr, connection.info().peer.is_ip());
        EXPECT_EQ(connection.unix_stream() != nullptr, connection.info().peer.is_unix());
        test::echo(connection);
      },
      {.placement = ServerOptions::Placement::least_loaded},
      [&](Server& each) {
        ASSERT_TRUE(each.listen(directory.address("s")));
        tcp_at = each.listen(Address::loopback_ipv4()).value();
        any_at = each.listen(Address::any_ipv4()).value();
      });
  auto local = UnixStream::connect(directory.address("s")).value();
  expect_echo(local, "x");
  auto tcp = TcpStream::connect(tcp_at).value();
  expect_echo(tcp, "x");
  auto any = TcpStream::connect(Address::loopback_ipv4(any_at.port())).value();
  expect_echo(any, "x");
  const std::lock_guard hold(mutex);
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_EQ(seen[0].peer, Address::unix_unnamed());
  EXPECT_EQ(seen[0].local, directory.address("s"));
  EXPECT_EQ(seen[1].peer, tcp.local_address().value());
  EXPECT_EQ(seen[1].local, tcp_at);
  EXPECT_EQ(seen[2].local, Address::loopback_ipv4(any_at.port()));
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_EQ(seen[i].listener, i);
}

NET_TEST(ServerListen, AUnixListenerUsesEveryHub) {
  test::SocketDir directory;
  std::mutex mutex;
  std::multiset<int> hubs;
  Serving server(
      [&](Connection& connection) {
        {
          const std::lock_guard hold(mutex);
          hubs.insert(Hub::current()->index());
        }
        test::echo(connection);
      },
      {}, directory.address("s"));
  std::vector<UnixStream> clients;
  for (int i = 0; i < 50; ++i) {
    clients.push_back(server.connect_unix());
    expect_echo(clients.back(), "x");
  }
  for (int hub = 0; hub < Scheduler::current()->hubs(); ++hub)
    EXPECT_GT(hubs.count(hub), 10u) << hub;
}

NET_TEST(ServerListen, MaxConnectionsMakesUnixClientsWait) {
  test::SocketDir directory;
  std::atomic<int> active{0};
  std::atomic<int> most{0};
  Serving server(
      [&](Connection& connection) {
        const int now = ++active;
        int seen = most.load();
        while (now > seen && !most.compare_exchange_weak(seen, now)) {
        }
        test::echo(connection);
        --active;
      },
      {.max_connections = 2}, directory.address("s"));
  std::vector<JoinHandle<void>> clients;
  for (int i = 0; i < 20; ++i)
    clients.push_back(spawn([&server, i] {
      auto client = server.connect_unix();
      expect_echo(client, std::to_string(i));
      this_fiber::yield();
    }));
  for (auto& client : clients)
    EXPECT_TRUE(client.join());
  EXPECT_EQ(server->stats().accepted, 20u);
  EXPECT_LE(most, 2);
}

NET_TEST(ServerListen, S28AStormOfUnixConnectionsLetsOthersRun) {
  if (Scheduler::current()->hubs() != 1) GTEST_SKIP() << "the other hub runs by itself";
  test::SocketDir directory;
  Server server(test::echo_connection);
  ASSERT_TRUE(server.listen(directory.address("s")));
  std::vector<UnixStream> clients;
  for (int i = 0; i < 500; ++i)
    clients.push_back(UnixStream::connect(directory.address("s")).value());
  auto serving = spawn([&] { return server.serve(); });
  std::uint64_t before = 0;
  std::uint64_t most = 0;
  while (before < 500) {
    this_fiber::yield();
    const std::uint64_t now = server.stats().accepted;
    most = std::max(most, now - before);
    before = now;
  }
  EXPECT_LE(most, 64u);
  EXPECT_TRUE(server.stop(Deadline::now()));
  EXPECT_TRUE(serving.join());
}

int plain_listener() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const Address at = Address::loopback_ipv4();
  EXPECT_EQ(::bind(fd, at.data(), at.size()), 0);
  EXPECT_EQ(::listen(fd, 64), 0);
  return fd;
}

NET_TEST(ServerListen, TakesListenersOver) {
  test::SocketDir directory;
  const int tcp = plain_listener();
  const int local = test::plain_bind(directory.address("s"));
  ASSERT_GE(tcp, 0);
  ASSERT_GE(local, 0);
  Address at;
  {
    Serving server(Serving::Prepared{}, test::echo_connection, {}, [&](Server& each) {
      at = each.listen_on(OwnedFd(tcp)).value();
      EXPECT_EQ(each.listen_on(OwnedFd(local)).value(), directory.address("s"));
    });
    std::vector<TcpStream> clients;
    for (int i = 0; i < 10; ++i) {
      clients.push_back(TcpStream::connect(at).value());
      expect_echo(clients.back(), "tcp");
    }
    auto other = UnixStream::connect(directory.address("s")).value();
    expect_echo(other, "unix");
  }
  EXPECT_FALSE(TcpStream::connect(at));
  // The file is its maker's.
  EXPECT_EQ(directory.names(), std::vector<std::string>{"s"});
}

NET_TEST(ServerListen, RemovesAFileThatItWasGiven) {
  test::SocketDir directory;
  Server server(test::echo_connection);
  ASSERT_TRUE(server.listen_on(OwnedFd(test::plain_bind(directory.address("s")))));
  server.claim_files();
  server.begin_stop(Deadline::now());
  EXPECT_TRUE(server.serve());
  EXPECT_EQ(directory.names(), std::vector<std::string>{});
}

NET_TEST(ServerListen, RefusesWhatIsNoListener) {
  Server server(test::echo_connection);
  EXPECT_EQ(server.listen_on(OwnedFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))).error(),
            std::errc::invalid_argument);
  EXPECT_EQ(server.listen_on(OwnedFd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0))).error(),
            errno_code(EPROTOTYPE));
  EXPECT_EQ(server.listen_on(OwnedFd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0))).error(),
            errno_code(EPROTOTYPE));
  EXPECT_EQ(server.listen_on(OwnedFd()).error(), std::errc::bad_file_descriptor);
  // A handler of TcpStream has no use for others.
  test::SocketDir directory;
  Server plain([](TcpStream) {});
  EXPECT_EQ(plain.listen(directory.address("s")).error(), errno_code(EAFNOSUPPORT));
  EXPECT_EQ(plain.listen_on(OwnedFd(test::plain_bind(directory.address("t")))).error(),
            errno_code(EAFNOSUPPORT));
}

NET_TEST(ServerListen, GivesDuplicatesOfItsListeners) {
  test::SocketDir directory;
  Server server(test::echo_connection);
  const auto at = server.listen(Address::loopback_ipv4()).value();
  ASSERT_TRUE(server.listen(directory.address("s")));
  const auto copies = server.listeners();
  ASSERT_EQ(copies.size(), static_cast<std::size_t>(Scheduler::current()->hubs()) + 1);
  EXPECT_EQ(copies.front().name, at.to_string());
  EXPECT_EQ(copies.back().name, directory.address("s").to_string());
  EXPECT_EQ(copies.back().family, AF_UNIX);
  for (const ListenFd& each : copies)
    EXPECT_TRUE(test::is_cloexec(each.fd.number()));
  server.begin_stop(Deadline::now());
  EXPECT_TRUE(server.serve());
  EXPECT_TRUE(server.listeners().empty());
}

}  // namespace
}  // namespace runloom::net
