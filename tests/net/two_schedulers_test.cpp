// One connection, used by the fibers of two schedulers. It is registered with the hub of one of
// them, whose run may end while the other's fibers still wait.
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "support/net_test.hpp"

namespace runloom::test {
namespace {

using net::bytes;
using net::Fd;

using Maker = Result<std::unique_ptr<net::Netpoll>> (*)();

void until_parked_there(const Scheduler& scheduler, WaitReason reason) {
  for (;;) {
    for (const FiberInfo& info : scheduler.fibers())
      if (info.reason == reason) return;
    std::this_thread::yield();
  }
}

class TwoSchedulers : public testing::TestWithParam<Maker> {
 protected:
  TwoSchedulers() {
    int end[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, end), 0);
    shared = Fd::adopt(end[0]).value();
    peer = end[1];
  }
  ~TwoSchedulers() override { ::close(peer); }

  Options options() const { return {.make_driver = driver_maker(GetParam())}; }
  // Drains what was written, until `size` bytes have come.
  void drain(std::size_t size) {
    std::string buffer(64 * 1024, '\0');
    for (ssize_t got = 1; size > 0 && got > 0; size -= static_cast<std::size_t>(got))
      ASSERT_GT(got = ::recv(peer, buffer.data(), buffer.size(), 0), 0);
  }

  static constexpr std::size_t kMuch = 4 << 20;  // more than the socket holds
  HangGuard guard;
  Fd shared;
  int peer = -1;
};
INSTANTIATE_TEST_SUITE_P(Backends, TwoSchedulers,
                         testing::Values(&net::make_epoll_netpoll, &net::make_poll_netpoll));

// The writer parks where the reader's hub polls. That hub then has nothing more to do.
TEST_P(TwoSchedulers, TheRunThatPollsForTheOtherEnds) {
  Scheduler reads(options());
  Scheduler writes(options());
  std::thread reader([&] {
    EXPECT_TRUE(reads.run([&] {
      std::byte byte;
      EXPECT_EQ(shared.recv({&byte, 1}, 0, {}).value(), 1u);
    }));
  });
  until_parked_there(reads, WaitReason::io_read);
  std::thread writer([&] {
    EXPECT_TRUE(writes.run([&] { EXPECT_TRUE(shared.send_all(bytes(pattern(kMuch)), {})); }));
  });
  until_parked_there(writes, WaitReason::io_write);
  ASSERT_EQ(::send(peer, "x", 1, 0), 1);
  reader.join();  // the scheduler lives, and does not run
  drain(kMuch);
  writer.join();
}

// So does one that only watches.
TEST_P(TwoSchedulers, TheRunThatPollsForAWatcherEnds) {
  Scheduler reads(options());
  Scheduler watches(options());
  ASSERT_TRUE(watches.run([&] {
    std::string much = pattern(kMuch);
    while (shared.send(bytes(much), MSG_DONTWAIT, {})) {
    }
  }));
  std::thread reader([&] {
    EXPECT_TRUE(reads.run([&] {
      std::byte byte;
      EXPECT_EQ(shared.recv({&byte, 1}, 0, {}).value(), 1u);
    }));
  });
  until_parked_there(reads, WaitReason::io_read);
  std::thread watcher([&] {
    EXPECT_TRUE(
        watches.run([&] { EXPECT_EQ(shared.wait_ready(net::kWrite, {}).value(), net::kWrite); }));
  });
  until_parked_there(watches, WaitReason::io_poll);
  ASSERT_EQ(::send(peer, "x", 1, 0), 1);
  reader.join();
  std::string buffer(kMuch, '\0');
  ASSERT_GT(::recv(peer, buffer.data(), buffer.size(), 0), 0);
  while (::recv(peer, buffer.data(), buffer.size(), MSG_DONTWAIT) > 0) {
  }
  watcher.join();
}

// The reader waits in a scheduler that was stopped. Nobody polls there for the writer, and the
// reader still gets its byte when it runs again.
TEST_P(TwoSchedulers, TheOneThatWaitsFirstIsStopped) {
  Scheduler reads(options());
  auto reading = reads.spawn([&] {
    std::byte byte;
    return shared.recv({&byte, 1}, 0, {});
  });
  auto stops = reads.spawn([&] {
    until_parked(reading.handle(), WaitReason::io_read);
    reads.stop();
  });
  ASSERT_TRUE(reads.run());
  ASSERT_FALSE(reading.done());
  {
    Scheduler writes(options());
    std::thread writer([&] {
      EXPECT_TRUE(writes.run([&] { EXPECT_TRUE(shared.send_all(bytes(pattern(kMuch)), {})); }));
    });
    until_parked_there(writes, WaitReason::io_write);
    drain(kMuch);
    writer.join();
  }
  std::thread late([&] {
    until_parked_there(reads, WaitReason::io_read);
    EXPECT_EQ(::send(peer, "x", 1, 0), 1);
  });
  ASSERT_TRUE(reads.run());
  late.join();
  EXPECT_EQ(reading.join().value(), 1u);
}

// It goes with its waiter, whose cancellation is the last that it does.
TEST_P(TwoSchedulers, TheOneThatWaitsFirstIsDestroyed) {
  {
    Scheduler first(options());
    auto reading = first.spawn([&] {
      std::byte byte;
      EXPECT_EQ(shared.recv({&byte, 1}, 0, {}).error(), Errc::cancelled);
    });
    auto stops = first.spawn([&] {
      until_parked(reading.handle(), WaitReason::io_read);
      first.stop();
    });
    ASSERT_TRUE(first.run());
  }
  Scheduler second(options());
  std::thread sender([&] {
    until_parked_there(second, WaitReason::io_read);
    EXPECT_EQ(::send(peer, "x", 1, 0), 1);
  });
  ASSERT_TRUE(second.run([&] {
    std::byte byte;
    EXPECT_EQ(shared.recv({&byte, 1}, 0, {}).value(), 1u);
  }));
  sender.join();
}

}  // namespace
}  // namespace runloom::test
