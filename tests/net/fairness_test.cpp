// Fibers that are always ready don't keep a socket waiting. Counted in switches, which load on the
// machine doesn't change.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "runloom/sched/channel.hpp"
#include "support/net_test.hpp"

namespace runloom::test {
namespace {

using net::bytes;

// The most switches between the arrival of a byte and the run of the fiber that waits for it, while
// `yielders` fibers do nothing but yield.
std::uint64_t most_switches_until_read(int yielders) {
  constexpr int kBytes = 20;
  const SpawnOptions here{.hub = Hub::current()->index()};
  std::uint64_t yields = 0, sent_at = 0, most = 0;
  bool stop = false;
  Channel<int> was_read(1);
  TcpPair pair;
  std::vector<JoinHandle<void>> fibers;
  fibers.push_back(spawn(
      [&] {
        for (int i = 0; i < kBytes; ++i) {
          EXPECT_EQ(read_text(pair.server, 1).value(), "x");
          most = std::max(most, yields - sent_at);
          EXPECT_TRUE(was_read.send(i));
        }
      },
      here));
  for (int i = 0; i < yielders; ++i)
    fibers.push_back(spawn(
        [&] {
          while (!stop) {
            ++yields;
            this_fiber::yield();
          }
        },
        here));
  for (int i = 0; i < kBytes; ++i) {
    for (int skew = 0; skew < i; ++skew)  // it comes at another place of the turn each time
      this_fiber::yield();
    sent_at = yields;
    EXPECT_TRUE(pair.client.write_all(bytes("x")));
    EXPECT_TRUE(was_read.recv());
  }
  stop = true;
  for (auto& fiber : fibers)
    EXPECT_TRUE(fiber.join());
  return most;
}

NET_TEST(Fairness, AReadySocketRunsBeforeThe200thSwitch) {
  EXPECT_LT(most_switches_until_read(2), 200u);
}

NET_TEST(Fairness, AReadySocketWaitsItsTurnBehindManyReadyFibers) {
  constexpr int kYielders = 1'000;
  EXPECT_LT(most_switches_until_read(kYielders), kYielders + 200u);
}

// A wake by an event costs one look for events, not another one before the fiber runs.
NET_TEST(Fairness, OnePollAWake) {
  constexpr std::uint64_t kMessages = 200;
  if (Scheduler::current()->hubs() != 1) GTEST_SKIP() << "the polls of the other hub count, too";
  Listening listening;
  const int client = plain_connect(listening.address);  // not one of our poller's
  net::TcpStream server = listening.listener.accept().value();
  auto peer = std::thread([fd = client] {
    char byte = 'x';
    for (std::uint64_t i = 0; i < kMessages; ++i) {
      pollfd request{fd, POLLIN, 0};
      EXPECT_EQ(::write(fd, &byte, 1), 1);
      while (::recv(fd, &byte, 1, MSG_DONTWAIT) != 1)
        ::poll(&request, 1, -1);
    }
    ::close(fd);
  });
  const std::uint64_t before = Scheduler::current()->stats().polls;
  for (std::uint64_t i = 0; i < kMessages; ++i) {
    EXPECT_EQ(read_text(server, 1).value(), "x");
    EXPECT_TRUE(server.write_all(bytes("x")));
  }
  const std::uint64_t polls = Scheduler::current()->stats().polls - before;
  peer.join();
  EXPECT_LT(polls, kMessages + kMessages / 4);
}

}  // namespace
}  // namespace runloom::test
