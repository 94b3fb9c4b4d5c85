// wait_fd, and the waits on descriptors that runloom does not own.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>

#include "runloom/sched/cancel.hpp"
#include "support/net_test.hpp"
#include "support/race.hpp"
#include "support/syscall_faults.hpp"

namespace runloom::test {
namespace {

using namespace std::chrono_literals;
using net::kRead;
using net::kWrite;
using net::wait_fd;

// Two connected sockets in blocking mode, as another library would have them.
struct SocketPair {
  explicit SocketPair(int type = SOCK_STREAM) {
    EXPECT_EQ(::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, end), 0);
  }
  ~SocketPair() {
    for (const int fd : end)
      if (fd >= 0) ::close(fd);
  }
  void close(int which) {
    ::close(end[which]);
    end[which] = -1;
  }
  int end[2];
};

NET_TEST(WaitFd, ReportsWhatIsReady) {
  SocketPair pair;
  EXPECT_EQ(wait_fd(pair.end[0], kRead | kWrite).value(), kWrite);
  EXPECT_EQ(wait_fd(pair.end[0], kRead, Deadline::now()).value(), 0u);
  EXPECT_EQ(wait_fd(pair.end[0], kRead, Deadline::after(2ms)).value(), 0u);
  ASSERT_EQ(::write(pair.end[1], "x", 1), 1);
  EXPECT_EQ(wait_fd(pair.end[0], kRead).value(), kRead);
  EXPECT_EQ(wait_fd(pair.end[0], kRead | kWrite).value(), kRead | kWrite);
}

NET_TEST(WaitFd, WaitsForData) {
  SocketPair pair;
  auto waiter = spawn([&] { return wait_fd(pair.end[0], kRead); });
  until_parked(waiter.handle(), WaitReason::io_poll);
  ASSERT_EQ(::write(pair.end[1], "x", 1), 1);
  EXPECT_EQ(waiter.join().value(), kRead);
}

NET_TEST(WaitFd, PeerCloseIsReadable) {
  SocketPair pair;
  auto waiter = spawn([&] { return wait_fd(pair.end[0], kRead); });
  until_parked(waiter.handle(), WaitReason::io_poll);
  pair.close(1);
  EXPECT_EQ(waiter.join().value(), kRead);
  EXPECT_EQ(wait_fd(pair.end[0], kRead).value(), kRead);
}

NET_TEST(WaitFd, Refuses) {
  EXPECT_EQ(wait_fd(-1, kRead).error(), errno_code(EBADF));
  EXPECT_EQ(wait_fd(19'999, kRead).error(), errno_code(EBADF));
  EXPECT_EQ(wait_fd(0, 0).error(), errno_code(EINVAL));
  EXPECT_EQ(wait_fd(0, 4).error(), errno_code(EINVAL));
  for (const char* path : {"/proc/self/exe", "/"}) {
    const int file = ::open(path, O_RDONLY | O_CLOEXEC);
    EXPECT_EQ(wait_fd(file, kRead).error(), errno_code(EPERM));
    EXPECT_EQ(wait_fd(file, kRead, Deadline::now()).error(), errno_code(EPERM));
    ::close(file);
  }
}

NET_TEST(WaitFd, ScopeDeadlineIsAnErrorTheOwnIsAnAnswer) {
  SocketPair pair;
  CancelScope scope(Deadline::after(3ms));
  EXPECT_EQ(wait_fd(pair.end[0], kRead).error(), Errc::timed_out);
}

NET_TEST(WaitFd, CancelEndsIt) {
  SocketPair pair;
  auto waiter = spawn([&] { return wait_fd(pair.end[0], kRead); });
  until_parked(waiter.handle(), WaitReason::io_poll);
  waiter.cancel();
  EXPECT_EQ(waiter.join().error(), Errc::cancelled);
}

// All waiters on one descriptor, in any mix of directions, are served by one registration.
NET_TEST(WaitFd, MergesTheWaitersOfADescriptor) {
  SocketPair pair;
  char junk[4096] = {};
  while (::send(pair.end[0], junk, sizeof junk, MSG_DONTWAIT) > 0) {
  }
  std::vector<JoinHandle<Result<unsigned>>> readers, writers;
  for (int i = 0; i < 3; ++i) {
    readers.push_back(spawn([&] { return wait_fd(pair.end[0], kRead); }));
    writers.push_back(spawn([&] { return wait_fd(pair.end[0], kWrite); }));
    until_parked(readers.back().handle(), WaitReason::io_poll);
    until_parked(writers.back().handle(), WaitReason::io_poll);
  }
  auto both = spawn([&] { return wait_fd(pair.end[0], kRead | kWrite); });
  until_parked(both.handle(), WaitReason::io_poll);
  ASSERT_EQ(::write(pair.end[1], "x", 1), 1);
  for (auto& reader : readers)
    EXPECT_EQ(reader.join().value(), kRead);
  EXPECT_EQ(both.join().value(), kRead);
  // The writers go on waiting.
  for (auto& writer : writers)
    EXPECT_EQ(writer.join(Deadline::now()).error(), Errc::timed_out);
  while (::recv(pair.end[1], junk, sizeof junk, MSG_DONTWAIT) > 0) {
  }
  for (auto& writer : writers)
    EXPECT_EQ(writer.join().value(), kWrite);
}

// The registration goes with the last waiter: nothing is left that could spin or go stale (T21,
// T22).
NET_TEST(WaitFd, LeavesNothingArmedT22) {
  SocketPair pair;
  auto waiter = spawn([&] { return wait_fd(pair.end[0], kRead); });
  until_parked(waiter.handle(), WaitReason::io_poll);
  ASSERT_EQ(::write(pair.end[1], "unread", 6), 6);
  EXPECT_EQ(waiter.join().value(), kRead);
  EXPECT_EQ(wait_fd(pair.end[0], kRead, Deadline::after(1ms)).value(), kRead);
  const auto before = Scheduler::current()->stats();
  ASSERT_TRUE(this_fiber::sleep_for(50ms));
  EXPECT_LT(Scheduler::current()->stats().polls - before.polls, 20u);
}

NET_TEST(WaitFd, FlagsAreLeftAlone) {
  SocketPair pair;
  auto waiter = spawn([&] { return wait_fd(pair.end[0], kRead); });
  until_parked(waiter.handle(), WaitReason::io_poll);
  EXPECT_EQ(::fcntl(pair.end[0], F_GETFL) & O_NONBLOCK, 0);
  pair.close(1);
  EXPECT_TRUE(waiter.join());
}

// A number that a net object owns waits there.
NET_TEST(WaitFd, ParksOnTheOwnersDescriptor) {
  TcpPair pair;
  const int number = pair.client.fd().number();
  EXPECT_EQ(wait_fd(number, kRead | kWrite).value(), kWrite);
  auto waiter = spawn([&] { return wait_fd(number, kRead); });
  until_parked(waiter.handle(), WaitReason::io_poll);
  ASSERT_TRUE(pair.server.write_all(net::bytes("x")));
  EXPECT_EQ(waiter.join().value(), kRead);
  EXPECT_EQ(read_text(pair.client).value(), "x");
  auto other = spawn([&] { return wait_fd(number, kRead); });
  until_parked(other.handle(), WaitReason::io_poll);
  pair.client.close();
  EXPECT_EQ(other.join().error(), Errc::closed);
}

NET_TEST(WaitFd, EndWaitsWakesThoseOfAForeignDescriptor) {
  SocketPair pair;
  for (const Errc error : {Errc::closed, Errc::cancelled}) {
    std::vector<JoinHandle<Result<unsigned>>> waiters;
    for (int hub = 0; hub < 2; ++hub) {
      waiters.push_back(spawn([&] { return wait_fd(pair.end[0], kRead); }, {.hub = hub}));
      until_parked(waiters.back().handle(), WaitReason::io_poll);
    }
    EXPECT_EQ(net::end_waits(pair.end[0], error), 2u);
    for (auto& waiter : waiters)
      EXPECT_EQ(waiter.join().error(), error);
    EXPECT_EQ(net::end_waits(pair.end[0], error), 0u);
  }
  // And it can be waited on again.
  EXPECT_EQ(wait_fd(pair.end[0], kRead, Deadline::after(1ms)).value(), 0u);
}

NET_TEST(WaitFd, EndWaitsWakesThoseOfAnOwnedDescriptor) {
  TcpPair pair;
  auto reader = spawn([&] { return read_text(pair.client); });
  until_parked(reader.handle(), WaitReason::io_read);
  auto waiter = spawn([&] { return pair.client.wait_readable(); });
  until_parked(waiter.handle(), WaitReason::io_poll);
  EXPECT_EQ(net::end_waits(pair.client.fd().number(), Errc::cancelled), 2u);
  EXPECT_EQ(reader.join().error(), Errc::cancelled);
  EXPECT_EQ(waiter.join().error(), Errc::cancelled);
  // The connection is as good as before.
  ASSERT_TRUE(pair.server.write_all(net::bytes("x")));
  EXPECT_EQ(read_text(pair.client).value(), "x");
}

// A descriptor that was closed behind our back, whose number is then one of ours: the end of the
// old wait must not touch the new registration.
NET_TEST(WaitFd, NumberReusedByAnOwnedDescriptorT11) {
  SocketPair pair;
  const int number = pair.end[0];
  auto waiter = spawn([&] { return wait_fd(number, kRead, Deadline::after(30ms)); }, {.hub = 0});
  until_parked(waiter.handle(), WaitReason::io_poll);
  TcpPair tcp;
  const int fd = tcp.client.detach().value();
  ASSERT_EQ(::dup2(fd, number), number);  // closes the waiter's socket
  ::close(fd);
  auto stream = net::TcpStream::adopt(number).value();
  pair.end[0] = -1;
  auto reader = spawn([&] { return read_text(stream); }, {.hub = 0});
  until_parked(reader.handle(), WaitReason::io_read);
  EXPECT_EQ(waiter.join().value(), 0u);
  ASSERT_TRUE(tcp.server.write_all(net::bytes("mine")));
  EXPECT_EQ(reader.join().value(), "mine");
}

// As before, reused by another foreign one.
NET_TEST(WaitFd, NumberReusedByAForeignDescriptorT11) {
  SocketPair one, two;
  const int number = one.end[0];
  auto old = spawn([&] { return wait_fd(number, kRead, Deadline::after(20ms)); }, {.hub = 0});
  until_parked(old.handle(), WaitReason::io_poll);
  ASSERT_EQ(::dup2(two.end[0], number), number);
  auto fresh = spawn([&] { return wait_fd(number, kRead | kWrite); }, {.hub = 0});
  EXPECT_EQ(fresh.join().value(), kWrite);
  auto reader = spawn([&] { return wait_fd(number, kRead); }, {.hub = 0});
  until_parked(reader.handle(), WaitReason::io_poll);
  ASSERT_EQ(::write(two.end[1], "x", 1), 1);
  EXPECT_EQ(reader.join().value(), kRead);
  EXPECT_TRUE(old.join());
}

NET_TEST(WaitFd, TroubleWithTheKernelReachesTheCaller) {
  SocketPair pair;
  // Only epoll makes a call that can fail.
  const Fault fault(Call::epoll_ctl, ENOSPC);
  const auto ready = wait_fd(pair.end[0], kRead, Deadline::after(1ms));
  if (fault.failed() != 0) {
    EXPECT_EQ(ready.error(), errno_code(ENOSPC));
  } else {
    EXPECT_EQ(ready.value(), 0u);
  }
  EXPECT_EQ(wait_fd(pair.end[0], kRead, Deadline::after(1ms)).value(), 0u);
}

// ---------------------------------------------------------------- OS threads

NET_TEST(WaitFd, OnAnOsThread) {
  SocketPair pair;
  std::atomic<bool> waits{false};
  ForeignThreads threads;
  threads.start([&] {
    EXPECT_EQ(wait_fd(pair.end[0], kRead, Deadline::now()).value(), 0u);
    EXPECT_EQ(wait_fd(pair.end[0], kRead, Deadline::after(2ms)).value(), 0u);
    waits = true;
    EXPECT_EQ(wait_fd(pair.end[0], kRead).value(), kRead);
    CancelScope scope(Deadline::after(2ms));
    EXPECT_EQ(wait_fd(pair.end[1], kRead).error(), Errc::timed_out);
    EXPECT_EQ(wait_fd(-1, kRead).error(), errno_code(EBADF));
  });
  yield_until([&] { return waits.load(); });
  ASSERT_EQ(::write(pair.end[1], "x", 1), 1);
  threads.join();
}

}  // namespace
}  // namespace runloom::test
