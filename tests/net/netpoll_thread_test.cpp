// Net objects on OS threads that run no fiber: the calls block the thread, and need no scheduler.
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "runloom/sched/cancel.hpp"
#include "support/net_test.hpp"

namespace runloom::test {
namespace {

using namespace std::chrono_literals;
using net::bytes;

TEST(NetOnThread, ConnectsAcceptsAndTransfers) {
  HangGuard guard;
  Listening listening;
  EXPECT_EQ(listening.listener.accept(Deadline::now()).error(), Errc::timed_out);
  EXPECT_EQ(listening.listener.accept(Deadline::after(2ms)).error(), Errc::timed_out);
  std::thread echo([&] {
    auto stream = listening.listener.accept().value();
    const std::string text = read_to_end(stream).value();
    EXPECT_TRUE(stream.write_all(bytes(text)));
  });
  auto client = net::TcpStream::connect(listening.address).value();
  const std::string data = pattern(1 << 20);
  ASSERT_TRUE(client.write_all(bytes(data)));
  EXPECT_EQ(read_text(client, 1, Deadline::after(2ms)).error(), Errc::timed_out);
  ASSERT_TRUE(client.shutdown_write());
  EXPECT_EQ(read_to_end(client).value(), data);
  echo.join();
}

TEST(NetOnThread, ScopesBoundTheWaits) {
  HangGuard guard;
  TcpPair pair;
  {
    CancelScope scope(Deadline::after(2ms));
    EXPECT_EQ(read_text(pair.client).error(), Errc::timed_out);
  }
  CancelScope scope;
  scope.cancel();
  EXPECT_EQ(read_text(pair.client).error(), Errc::cancelled);
  // What has arrived wins.
  ASSERT_TRUE(pair.server.write_all(bytes("x")));
  std::thread([&] { EXPECT_TRUE(pair.client.wait_readable()); }).join();
  EXPECT_EQ(read_text(pair.client).value(), "x");
}

TEST(NetOnThread, CloseEndsAWait) {
  HangGuard guard;
  TcpPair pair;
  std::thread reader([&] { EXPECT_EQ(read_text(pair.client).error(), Errc::closed); });
  std::this_thread::sleep_for(2ms);
  pair.client.close();
  reader.join();
}

// The hub's thread outside of its fibers is such a thread, too.
TEST(NetOnThread, BetweenTwoRuns) {
  HangGuard guard;
  Scheduler scheduler(fiber_test_options(1));
  scheduler.bind_thread();
  TcpPair pair;
  scheduler.run([&] { ASSERT_TRUE(pair.client.write_all(bytes("fiber"))); }).value();
  EXPECT_EQ(read_text(pair.server).value(), "fiber");
  ASSERT_TRUE(pair.server.write_all(bytes("thread")));
  scheduler.run([&] { EXPECT_EQ(read_text(pair.client).value(), "thread"); }).value();
  scheduler.unbind_thread();
}

}  // namespace
}  // namespace runloom::test
