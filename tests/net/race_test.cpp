// Races between operations, closes, events and OS threads. Suites ending in Race also run under
// tsan.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "support/net_test.hpp"
#include "support/race.hpp"

namespace runloom::test {
namespace {

using namespace std::chrono_literals;
using net::bytes;
using net::Fd;

struct UnixPair {
  UnixPair() {
    int end[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, end), 0);
    one = Fd::own(end[0], net::FdKind::stream).value();
    two = Fd::own(end[1], net::FdKind::stream).value();
  }
  Fd one, two;
};

// A close that lands between the look and the park: nobody is left parked on a dead descriptor.
NET_TEST(StreamRace, CloseAgainstAReaderT07) {
  Random random(1);
  for (RaceBudget budget; !budget.spent();) {
    UnixPair pair;
    auto reader = spawn(
        [&] {
          std::byte byte;
          return pair.one.recv({&byte, 1}, 0, {});
        },
        {.hub = 1});
    for (std::uint32_t i = random.below(4); i > 0; --i)
      this_fiber::yield();
    if (random.one_in(3)) {
      EXPECT_TRUE(pair.two.send(bytes("x"), 0, {}));
    }
    pair.one.close();
    const auto got = reader.join();
    if (!got) {
      EXPECT_EQ(got.error(), Errc::closed);
    }
  }
}

// Data, a deadline and a cancel at the same moment: one outcome, and no byte is lost.
NET_TEST(StreamRace, DataAgainstDeadlineAndCancel) {
  Random random(2);
  for (RaceBudget budget; !budget.spent();) {
    UnixPair pair;
    const std::chrono::microseconds patience(random.below(50));
    auto reader = spawn(
        [&] {
          std::byte byte;
          return pair.one.recv({&byte, 1}, 0, Deadline::after(patience));
        },
        {.hub = 1});
    for (std::uint32_t i = random.below(4); i > 0; --i)
      this_fiber::yield();
    if (random.one_in(2)) reader.cancel();
    EXPECT_EQ(pair.two.send(bytes("x"), 0, {}).value(), 1u);
    const auto got = reader.join();
    std::byte byte;
    const auto rest = pair.one.recv({&byte, 1}, MSG_DONTWAIT, {});
    EXPECT_EQ(got.has_value() ? 1 : 0, rest.has_value() ? 0 : 1);
  }
}

// One fiber reads and one writes the same descriptor on different hubs: arming one direction never
// disarms the other.
NET_TEST(StreamRace, ReaderAndWriterOfOneDescriptorT23) {
  UnixPair pair;
  std::atomic<bool> over{false};
  const auto pump = [&](const Fd& fd, bool writes) {
    std::string piece(777, 'p');
    std::size_t total = 0;
    for (;;) {
      const auto moved = writes ? fd.send(bytes(piece), 0, {}) : fd.recv(writable(piece), 0, {});
      EXPECT_TRUE(moved);
      if (!moved || *moved == 0) return total;
      total += *moved;
      if (writes && over) break;
    }
    EXPECT_TRUE(fd.shutdown(SHUT_WR));
    return total;
  };
  auto r1 = spawn([&] { return pump(pair.one, false); }, {.hub = 0});
  auto w1 = spawn([&] { return pump(pair.one, true); }, {.hub = 1});
  auto r2 = spawn([&] { return pump(pair.two, false); }, {.hub = 1});
  auto w2 = spawn([&] { return pump(pair.two, true); }, {.hub = 0});
  RaceBudget budget;
  while (!budget.spent())
    ASSERT_TRUE(this_fiber::sleep_for(1ms));
  over = true;
  EXPECT_EQ(w1.join().value(), r2.join().value());
  EXPECT_EQ(w2.join().value(), r1.join().value());
}

// A datagram socket that is just being registered for its reader, on one hub, is also waited on by
// a writer on another: the writer hears of room.
NET_TEST(DatagramRace, AWriterComesWhileItIsRegisteredForAReader) {
  Random random(17);
  for (RaceBudget budget; !budget.spent();) {
    int end[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, end), 0);
    Fd one = Fd::own(end[0], net::FdKind::datagram).value();
    Fd two = Fd::own(end[1], net::FdKind::datagram).value();
    constexpr int kDatagrams = 40;  // more than fit into the queue
    auto reader = spawn(
        [&] {
          std::byte byte;
          return one.recv({&byte, 1}, 0, {});
        },
        {.hub = 0});
    auto writer = spawn(
        [&] {
          for (int i = 0; i < kDatagrams; ++i)
            EXPECT_TRUE(one.send(bytes("x"), 0, {}));
        },
        {.hub = 1});
    for (std::uint32_t i = random.below(4); i > 0; --i)
      this_fiber::yield();
    for (int i = 0; i < kDatagrams; ++i) {
      std::byte byte;
      EXPECT_TRUE(two.recv({&byte, 1}, 0, {}));
    }
    EXPECT_TRUE(writer.join());
    EXPECT_TRUE(two.send(bytes("y"), 0, {}));
    EXPECT_TRUE(reader.join());
  }
}

// Many readers of one stream on two hubs, with deadlines that expire in the queue: nobody is
// forgotten, no byte is lost or read twice.
NET_TEST(StreamRace, ReadersQueueWithDeadlines) {
  UnixPair pair;
  std::atomic<bool> over{false};
  std::atomic<std::uint64_t> read{0};
  std::vector<JoinHandle<void>> readers;
  for (int i = 0; i < 8; ++i)
    readers.push_back(spawn(
        [&, i] {
          Random random(10 + static_cast<std::uint64_t>(i));
          while (!over) {
            std::byte piece[3];
            const auto got = pair.one.recv(
                piece, 0, Deadline::after(std::chrono::microseconds(random.below(300))));
            if (got) {
              read += *got;
            } else {
              EXPECT_EQ(got.error(), Errc::timed_out);
            }
          }
        },
        {.hub = i}));
  std::uint64_t written = 0;
  for (RaceBudget budget; !budget.spent();) {
    EXPECT_TRUE(pair.two.send(bytes("0123456789"), 0, {}));
    written += 10;
    if (written % 100 == 0) {
      EXPECT_TRUE(this_fiber::sleep_for(50us));
    }
  }
  while (read != written)
    ASSERT_TRUE(this_fiber::sleep_for(1ms));
  over = true;
  for (auto& reader : readers)
    EXPECT_TRUE(reader.join());
}

// Sockets are opened and closed as fast as can be, numbers and PollDescs are reused all the time,
// and each socket carries its own id: nothing of an old owner reaches a new one.
NET_TEST(StreamRace, NumbersAreReusedT11) {
  constexpr int kFibers = 16;
  std::atomic<bool> over{false};
  std::vector<JoinHandle<void>> fibers;
  for (int i = 0; i < kFibers; ++i)
    fibers.push_back(spawn(
        [&, i] {
          Random random(100 + static_cast<std::uint64_t>(i));
          for (std::uint32_t round = 0; !over; ++round) {
            UnixPair pair;
            const std::uint32_t id = static_cast<std::uint32_t>(i) << 24 | round;
            std::uint32_t got = 0;
            const auto memory = std::as_writable_bytes(std::span(&got, 1));
            const bool early = random.one_in(2);
            // Half of them wait for nothing and are then closed under the wait.
            if (early) {
              auto waiter = spawn([&] {
                std::byte byte;
                return pair.one.recv({&byte, 1}, 0, Deadline::after(1ms));
              });
              this_fiber::yield();
              pair.one.close();
              const auto result = waiter.join();
              EXPECT_FALSE(result);
              continue;
            }
            auto reader = spawn([&] { return pair.one.recv(memory, 0, {}); });
            this_fiber::yield();
            EXPECT_TRUE(pair.two.send(std::as_bytes(std::span(&id, 1)), 0, {}));
            EXPECT_EQ(reader.join().value(), sizeof id);
            EXPECT_EQ(got, id);
          }
        },
        {.hub = i}));
  std::vector<JoinHandle<void>> waiters;
  for (int i = 0; i < kFibers; ++i)
    waiters.push_back(spawn(
        [&] {
          UnixPair pair;
          std::byte byte;
          while (!over)
            EXPECT_EQ(pair.one.recv({&byte, 1}, 0, Deadline::after(1ms)).error(), Errc::timed_out);
        },
        {.hub = i}));
  RaceBudget budget;
  while (!budget.spent())
    ASSERT_TRUE(this_fiber::sleep_for(1ms));
  over = true;
  for (auto& fiber : fibers)
    EXPECT_TRUE(fiber.join());
  for (auto& waiter : waiters)
    EXPECT_TRUE(waiter.join());
}

// A stream is closed by several at once, while others use it in every way.
NET_TEST(StreamRace, EverybodyAgainstClose) {
  Random random(3);
  for (RaceBudget budget; !budget.spent();) {
    UnixPair pair;
    std::vector<JoinHandle<void>> users;
    for (int i = 0; i < 6; ++i)
      users.push_back(spawn(
          [&pair, i, before = random.below(50)] {
            std::byte byte;
            switch (i) {
              case 0:
                while (pair.one.recv({&byte, 1}, 0, {})) {
                }
                break;
              case 1:
                while (pair.one.send(bytes("y"), 0, {})) {
                }
                break;
              case 2:
                while (pair.one.wait_ready(net::kRead, Deadline::after(10us)) || pair.one) {
                }
                break;
              case 3:
                while (const Fd::Use use{pair.one})
                  this_fiber::yield();
                break;
              default:
                for (std::uint32_t k = before; k > 0; --k)
                  this_fiber::yield();
                pair.one.close_wait();
            }
          },
          {.hub = i}));
    for (auto& user : users)
      EXPECT_TRUE(user.join());
    EXPECT_FALSE(pair.one);
  }
}

// ---------------------------------------------------------------- OS threads

NET_TEST(ThreadRace, FibersAndThreadsShareAStream) {
  TcpPair pair;
  constexpr std::size_t kSize = 200'000;
  ForeignThreads threads;
  threads.start([&] { EXPECT_TRUE(pair.client.write_all(bytes(pattern(kSize)))); });
  threads.start([&] {
    std::string got(kSize, '\0');
    EXPECT_EQ(pair.client.read_full(writable(got)).value(), kSize);
    EXPECT_EQ(got, pattern(kSize, 5));
  });
  auto writer = spawn([&] { return pair.server.write_all(bytes(pattern(kSize, 5))); });
  std::string got(kSize, '\0');
  EXPECT_EQ(pair.server.read_full(writable(got)).value(), kSize);
  EXPECT_EQ(got, pattern(kSize));
  EXPECT_TRUE(writer.join());
  threads.join();
}

// Readers queue for the stream, whatever they are.
NET_TEST(ThreadRace, ThreadsAndFibersQueueForAStream) {
  TcpPair pair;
  std::atomic<int> read{0};
  const auto reader = [&] {
    std::byte byte;
    for (;;) {
      const auto got = pair.client.read_some({&byte, 1});
      EXPECT_TRUE(got);
      if (!got || *got == 0) return;
      ++read;
    }
  };
  ForeignThreads threads;
  for (int i = 0; i < 2; ++i)
    threads.start(reader);
  std::vector<JoinHandle<void>> fibers;
  for (int i = 0; i < 2; ++i)
    fibers.push_back(spawn(reader, {.hub = i}));
  int written = 0;
  for (RaceBudget budget; !budget.spent(); written += 3) {
    ASSERT_TRUE(pair.server.write_all(bytes("abc")));
    if (written % 30 == 0) {
      ASSERT_TRUE(this_fiber::sleep_for(20us));
    }
  }
  pair.server.close();
  for (auto& fiber : fibers)
    EXPECT_TRUE(fiber.join());
  threads.join();
  EXPECT_EQ(read, written);
}

NET_TEST(ThreadRace, CloseWakesAThread) {
  for (RaceBudget budget; !budget.spent();) {
    UnixPair pair;
    ForeignThreads threads;
    threads.start([&] {
      std::byte byte;
      EXPECT_EQ(pair.one.recv({&byte, 1}, 0, {}).error(), Errc::closed);
    });
    threads.start([&] { EXPECT_EQ(pair.one.wait_ready(net::kRead, {}).error(), Errc::closed); });
    EXPECT_TRUE(this_fiber::sleep_for(50us));
    pair.one.close();
    threads.join();
  }
}

NET_TEST(ThreadRace, AThreadClosesUnderFibers) {
  for (RaceBudget budget; !budget.spent();) {
    UnixPair pair;
    auto reader = spawn([&] {
      std::byte byte;
      return pair.one.recv({&byte, 1}, 0, {});
    });
    ForeignThreads threads;
    threads.start([&] { pair.one.close_wait(); });
    EXPECT_EQ(reader.join().error(), Errc::closed);
    threads.join();
  }
}

// A reader and a writer of two schedulers wait on one stream. Whichever scheduler it is registered
// with ends first, and the other one's wait goes on.
TEST(SchedulersRace, AWaitOutlivesTheOtherSchedulerT23) {
  constexpr int kRounds = 20;
  constexpr std::size_t kMuch = 4'000'000;
  HangGuard guard;
  for (int i = 0; i < kRounds; ++i) {
    UnixPair pair;
    const auto on_a_thread = [](auto work) {
      return std::thread([work] {
        Scheduler scheduler(fiber_test_options(1));
        scheduler.run(work).value();
      });
    };
    std::atomic<bool> reads{false};
    // Its end is registered first, is waited on while the reader comes, and goes before it.
    std::thread writer = on_a_thread([&] {
      const std::vector<std::byte> much(kMuch);
      EXPECT_TRUE(pair.one.send_all(much, {}));
    });
    std::thread reader = on_a_thread([&] {
      reads = true;
      std::byte byte;
      EXPECT_EQ(pair.one.recv({&byte, 1}, 0, {}).value(), 1u);
    });
    on_a_thread([&] {
      while (!reads)
        this_fiber::yield();
      std::vector<std::byte> some(65'536);
      for (std::size_t left = kMuch; left > 0;)
        left -= pair.two.recv({some.data(), std::min(left, some.size())}, 0, {}).value();
    }).join();
    writer.join();
    on_a_thread([&] { EXPECT_TRUE(pair.two.send(bytes("x"), 0, {})); }).join();
    reader.join();
  }
}

}  // namespace
}  // namespace runloom::test
