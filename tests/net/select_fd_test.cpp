#include "runloom/net/select_fd.hpp"

#include <fcntl.h>
#include <unistd.h>

#include "runloom/sched/select.hpp"
#include "support/net_test.hpp"
#include "support/race.hpp"

namespace runloom::test {
namespace {

using namespace std::chrono_literals;
using net::bytes;
using net::FdCase;
using net::kRead;
using net::kWrite;

struct Pipe {
  Pipe() { EXPECT_EQ(::pipe2(end, O_CLOEXEC), 0); }
  ~Pipe() {
    for (const int fd : end)
      if (fd >= 0) ::close(fd);
  }
  int end[2];
};

NET_TEST(SelectFd, WhatIsReadyFiresAtOnce) {
  TcpPair pair;
  FdCase readable(pair.client.fd(), kRead), writable_case(pair.client.fd(), kWrite);
  EXPECT_EQ(select({&readable, &writable_case}).value(), 1u);
  EXPECT_EQ(writable_case.ready().value(), kWrite);
  FdCase both(pair.client.fd(), kRead | kWrite);
  ASSERT_TRUE(pair.server.write_all(bytes("x")));
  ASSERT_TRUE(pair.client.wait_readable());
  EXPECT_EQ(select({&both}, Deadline::now()).value(), 0u);
  EXPECT_EQ(both.ready().value(), kRead | kWrite);
}

NET_TEST(SelectFd, WaitsForDescriptorsChannelsAndTime) {
  TcpPair pair;
  Pipe pipe;
  Channel<int> channel;
  FdCase stream(pair.client.fd(), kRead), foreign(pipe.end[0], kRead);
  RecvCase message(channel);
  const auto choose = [&](Deadline deadline = {}) {
    return select({&stream, &foreign, &message}, deadline);
  };
  EXPECT_EQ(choose(Deadline::after(2ms)).error(), Errc::timed_out);
  for (int i = 0; i < 3; ++i) {
    auto selecting = spawn([&] { return choose(); });
    until_parked(selecting.handle(), WaitReason::select);
    ASSERT_TRUE(pair.server.write_all(bytes("x")));
    EXPECT_EQ(selecting.join().value(), 0u);
    EXPECT_EQ(stream.ready().value(), kRead);
    EXPECT_EQ(read_text(pair.client).value(), "x");

    selecting = spawn([&] { return choose(); });
    until_parked(selecting.handle(), WaitReason::select);
    ASSERT_EQ(::write(pipe.end[1], "y", 1), 1);
    EXPECT_EQ(selecting.join().value(), 1u);
    EXPECT_EQ(foreign.ready().value(), kRead);
    char got;
    ASSERT_EQ(::read(pipe.end[0], &got, 1), 1);

    selecting = spawn([&] { return choose(); });
    until_parked(selecting.handle(), WaitReason::select);
    ASSERT_TRUE(channel.send(7));
    EXPECT_EQ(selecting.join().value(), 2u);
    EXPECT_EQ(message.take().value(), 7);
  }
}

NET_TEST(SelectFd, CloseFiresTheCaseAndNothingElse) {
  TcpPair pair;
  Channel<int> channel;
  FdCase stream(pair.client.fd(), kRead);
  RecvCase message(channel);
  auto selecting = spawn([&] { return select({&message, &stream}); });
  until_parked(selecting.handle(), WaitReason::select);
  pair.client.close();
  EXPECT_EQ(selecting.join().value(), 1u);
  EXPECT_EQ(stream.ready().error(), Errc::closed);
  // It is closed already.
  EXPECT_EQ(select({&message, &stream}).value(), 1u);
  EXPECT_EQ(stream.ready().error(), Errc::closed);
}

NET_TEST(SelectFd, EndWaitsFiresTheCase) {
  Pipe pipe;
  FdCase foreign(pipe.end[0], kRead);
  auto selecting = spawn([&] { return select({&foreign}); });
  until_parked(selecting.handle(), WaitReason::select);
  EXPECT_EQ(net::end_waits(pipe.end[0], Errc::cancelled), 1u);
  EXPECT_EQ(selecting.join().value(), 0u);
  EXPECT_EQ(foreign.ready().error(), Errc::cancelled);
}

NET_TEST(SelectFd, WhatCannotBeWaitedForFiresWithTheReason) {
  FdCase bad(-1, kRead);
  EXPECT_EQ(select({&bad}).value(), 0u);
  EXPECT_EQ(bad.ready().error(), errno_code(EBADF));
  const int file = ::open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  FdCase regular(file, kRead);
  EXPECT_EQ(select({&regular}).value(), 0u);
  EXPECT_EQ(regular.ready().error(), errno_code(EPERM));
  ::close(file);
}

NET_TEST(SelectFd, OnAnOsThread) {
  Pipe pipe;
  ForeignThreads threads;
  threads.start([&] {
    FdCase foreign(pipe.end[0], kRead);
    EXPECT_EQ(select({&foreign}).value(), 0u);
    EXPECT_EQ(foreign.ready().error(), Errc::not_in_fiber);
  });
  threads.join();
}

// Data, a close, a channel and a deadline at the same moment.
NET_TEST(SelectFdRace, OneOutcome) {
  Random random(1);
  for (RaceBudget budget; !budget.spent();) {
    TcpPair pair;
    Pipe pipe;
    Channel<int> channel(1);
    const std::chrono::microseconds patience(random.below(100));
    auto selecting = spawn(
        [&] {
          FdCase stream(pair.client.fd(), kRead), foreign(pipe.end[0], kRead);
          RecvCase message(channel);
          const auto fired = select({&stream, &foreign, &message}, Deadline::after(patience));
          if (fired && *fired == 0 && stream.ready()) {
            EXPECT_EQ(*stream.ready(), kRead);
          }
          if (fired && *fired == 1) {
            EXPECT_EQ(foreign.ready().value(), kRead);
          }
          if (!fired) {
            EXPECT_EQ(fired.error(), Errc::timed_out);
          }
        },
        {.hub = 1});
    for (std::uint32_t i = random.below(4); i > 0; --i)
      this_fiber::yield();
    if (random.one_in(3)) {
      EXPECT_TRUE(pair.server.write_all(bytes("x")));
    }
    if (random.one_in(3)) {
      EXPECT_EQ(::write(pipe.end[1], "x", 1), 1);
    }
    if (random.one_in(3)) {
      EXPECT_TRUE(channel.send(1));
    }
    if (random.one_in(3)) pair.client.close();
    EXPECT_TRUE(selecting.join());
  }
}

}  // namespace
}  // namespace runloom::test
