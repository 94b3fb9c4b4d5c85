// Listeners that go from one server to the next while clients come. Both servers are in this
// process; tests/examples has two processes.
#include "runloom/net/handover.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <optional>

#include "runloom/sched/join_set.hpp"
#include "runloom/sched/scheduler.hpp"
#include "support/server.hpp"
#include "support/unix_test.hpp"

namespace runloom::net {
namespace {

using namespace std::chrono_literals;
using test::expect_echo;
using test::yield_until;

constexpr auto kNoLimit = std::chrono::milliseconds(1h);

// One process of a service: how it takes over is what handover.hpp says.
class Process {
 public:
  Process(char name, const Address& control, HandoverOptions how = {}, ServerOptions options = {})
      : control_(control),
        how_(how),
        server_(
            [name](Connection& connection) {
              const std::string said(1, name);
              if (connection.write_all(bytes(said))) test::echo(connection);
            },
            options) {}
  ~Process() {
    server_.begin_stop(Deadline::now());
    if (handing_) handing_.cancel();
    if (serving_) static_cast<void>(serving_.join());
    if (handing_) static_cast<void>(handing_.join());
  }
  Server* operator->() { return &server_; }
  Server& server() { return server_; }

  void serve() {
    serving_ = spawn([this] { return server_.serve(); });
  }
  void await_successor() {
    handing_ = spawn([this] { return net::await_successor(server_, control_, kNoLimit, how_); });
    test::until_parked(handing_.handle(), WaitReason::io_read);
  }
  void take_over() {
    auto predecessor = Predecessor::ask(control_);
    ASSERT_TRUE(predecessor) << predecessor.error().message();
    ASSERT_TRUE(predecessor->give_to(server_));
    serve();
    const auto ready = predecessor->ready(server_);
    ASSERT_TRUE(ready) << ready.error().message();
  }
  Result<void> join() { return serving_.join(); }
  Result<void> join_handing() { return handing_.join(); }

 private:
  const Address control_;
  const HandoverOptions how_;
  Server server_;
  JoinHandle<Result<void>> serving_;
  JoinHandle<Result<void>> handing_;
};

char who_answers(Stream& client) {
  return test::read_text(client, 1).value_or("-")[0];
}

NET_TEST(Handover, TheListenersGoToTheSuccessor) {
  test::SocketDir directory;
  const auto control = directory.address("control");
  Process first('1', control);
  const auto tcp = first->listen(Address::loopback_ipv4()).value();
  ASSERT_TRUE(first->listen(directory.address("s")));
  first.serve();
  first.await_successor();
  auto old = TcpStream::connect(tcp).value();
  EXPECT_EQ(who_answers(old), '1');

  std::optional<Process> second;
  second.emplace('2', control);
  second->take_over();
  EXPECT_TRUE(first.join_handing());
  yield_until([&] { return first->listeners().empty(); });  // it has stopped accepting
  for (int i = 0; i < 10; ++i) {
    auto client = TcpStream::connect(tcp).value();
    EXPECT_EQ(who_answers(client), '2');
    auto local = UnixStream::connect(directory.address("s")).value();
    EXPECT_EQ(who_answers(local), '2');
  }
  // What the first one has begun it ends.
  expect_echo(old, "still here");
  old.close();
  EXPECT_TRUE(first.join());
  EXPECT_EQ(first->stats().cancelled, 0u);
  // And the files are the second one's: the control socket's name is free again.
  EXPECT_EQ(directory.names(), std::vector<std::string>{"s"});
  second->await_successor();
  auto late = UnixStream::connect(directory.address("s")).value();
  EXPECT_EQ(who_answers(late), '2');
  late.close();
  second.reset();
  EXPECT_EQ(directory.names(), std::vector<std::string>{});
}

NET_TEST(Handover, ASuccessorThatFailsChangesNothing) {
  test::SocketDir directory;
  const auto control = directory.address("control");
  Process first('1', control);
  const auto tcp = first->listen(Address::loopback_ipv4()).value();
  ASSERT_TRUE(first->listen(directory.address("s")));
  first.serve();
  first.await_successor();
  {
    // It dies after it was given everything, and served already.
    Server dead(test::echo_connection);
    auto predecessor = Predecessor::ask(control);
    ASSERT_TRUE(predecessor);
    EXPECT_EQ(predecessor->pid(), ::getpid());
    ASSERT_TRUE(predecessor->give_to(dead));
    dead.begin_stop(Deadline::now());
    EXPECT_TRUE(dead.serve());
  }
  // Others say nothing, or nonsense.
  auto nonsense = UnixStream::connect(control).value();
  ASSERT_TRUE(nonsense.write_all(bytes("GET / HTTP/1.0\r\n\r\n")));
  nonsense.close();
  auto client = TcpStream::connect(tcp).value();
  EXPECT_EQ(who_answers(client), '1');
  auto local = UnixStream::connect(directory.address("s")).value();
  EXPECT_EQ(who_answers(local), '1');
  client.close();
  local.close();
  Process second('2', control);
  second.take_over();
  yield_until([&] { return first->listeners().empty(); });
  auto next = TcpStream::connect(tcp).value();
  EXPECT_EQ(who_answers(next), '2');
}

NET_TEST(Handover, ASlowSuccessorIsGivenUp) {
  test::SocketDir directory;
  const auto control = directory.address("control");
  Process first('1', control, {.patience = 10ms});
  const auto tcp = first->listen(Address::loopback_ipv4()).value();
  first.serve();
  first.await_successor();
  auto slow = Predecessor::ask(control);
  ASSERT_TRUE(slow);
  // Somebody else is answered only when it was given up.
  EXPECT_TRUE(Predecessor::ask(control));
  Server server(test::echo_connection);
  ASSERT_TRUE(slow->give_to(server));
  EXPECT_FALSE(slow->ready(server, Deadline::after(5s)));
  server.begin_stop(Deadline::now());
  EXPECT_TRUE(server.serve());
  auto client = TcpStream::connect(tcp).value();
  EXPECT_EQ(who_answers(client), '1');
}

NET_TEST(Handover, WithoutAPredecessor) {
  test::SocketDir directory;
  EXPECT_EQ(Predecessor::ask(directory.address("none")).error(),
            std::errc::no_such_file_or_directory);
  // Somebody else's socket.
  const int other = test::plain_bind(directory.address("other"));
  auto answer = std::thread([other] {
    const int peer = ::accept(other, nullptr, nullptr);
    EXPECT_EQ(::write(peer, "220 hello\r\n", 11), 11);
    ::close(peer);
  });
  EXPECT_EQ(Predecessor::ask(directory.address("other")).error(), std::errc::protocol_error);
  answer.join();
  ::close(other);
}

// Clients connect all the time, while the service is handed over again and again. None is turned
// away, or cut off.
void expect_no_connection_lost(bool reuse_port) {
  const int connects = std::getenv("RUNLOOM_FULL") ? 10'000 : test::kSanitized ? 300 : 1500;
  constexpr int kGenerations = 4;
  test::SocketDir directory;
  const auto control = directory.address("control");
  const ServerOptions options{.listen = {.reuse_port = reuse_port}};
  const HandoverOptions how{.reuse_port = reuse_port};
  auto current = std::make_unique<Process>('0', control, how, options);
  const auto tcp = current->server().listen(Address::loopback_ipv4()).value();
  current->serve();
  current->await_successor();

  std::atomic<int> left{connects};
  std::atomic<int> done{0};
  std::atomic<int> failed{0};
  JoinSet<> clients;
  for (int i = 0; i < 8; ++i)
    ASSERT_TRUE(clients.spawn([&] {
      while (left.fetch_sub(1) > 0) {
        auto client = TcpStream::connect(tcp);
        bool good = client && client->write_all(bytes("x")) && client->shutdown_write();
        if (good) {
          const auto answer = test::read_to_end(*client);
          good = answer && answer->size() == 2 && (*answer)[1] == 'x';
        }
        failed += good ? 0 : 1;
        ++done;
      }
    }));
  for (int generation = 1; generation < kGenerations; ++generation) {
    while (done < generation * connects / kGenerations)
      ASSERT_TRUE(this_fiber::sleep_for(1ms));
    auto next =
        std::make_unique<Process>(static_cast<char>('0' + generation), control, how, options);
    ASSERT_TRUE(!reuse_port || next->server().listen(tcp));
    next->take_over();
    EXPECT_TRUE(current->join());
    EXPECT_EQ(current->server().stats().cancelled, 0u);
    EXPECT_TRUE(current->join_handing());
    current = std::move(next);
    current->await_successor();
  }
  EXPECT_TRUE(clients.wait());
  EXPECT_EQ(done, connects);
  EXPECT_EQ(failed, 0);
  auto last = TcpStream::connect(tcp).value();
  EXPECT_EQ(who_answers(last), '0' + kGenerations - 1);
}

NET_TEST(Handover, NoConnectionIsLostByPassingDescriptors) {
  expect_no_connection_lost(false);
}

NET_TEST(Handover, NoConnectionIsLostByReusingThePort) {
  expect_no_connection_lost(true);
}

}  // namespace
}  // namespace runloom::net
