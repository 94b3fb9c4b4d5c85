// Calls on files as operations of the ring. What files do on it is in the tests of File, which run
// on each backend; here is what concerns the ring alone.
#include <unistd.h>

#include <atomic>

#include "file_op.hpp"
#include "runloom/net/file.hpp"
#include "runloom/sched/blocking.hpp"
#include "support/child.hpp"
#include "support/files.hpp"
#include "support/kernel.hpp"
#include "support/net_test.hpp"
#include "support/race.hpp"

namespace runloom::test {
namespace {

using net::bytes;
using net::File;
using net::FileCall;
using net::FileOp;

// On a fiber of a hub with a ring: the network's, then one beside epoll.
void on_ring(int hubs, const std::function<void()>& body) {
  for (const auto make : {&net::make_uring_netpoll, &net::make_epoll_netpoll}) {
    SCOPED_TRACE(make == &net::make_epoll_netpoll ? "epoll" : "io_uring");
    Options options = fiber_test_options(hubs);
    options.make_driver = driver_maker(make);
    run_fiber_test(std::move(options), body);
  }
}

#define NEEDS_IO_URING \
  if (!net::io_uring_available()) GTEST_SKIP() << "io_uring is forbidden here"

// A file whose reads are always calls of the engine.
File never_instant(const std::string& path) {
  File file = File::open(path, O_RDWR | O_DIRECT).value();
  EXPECT_EQ(::fcntl(file.number(), F_SETFL, 0), 0);  // direct for File, not for the kernel
  return file;
}

// A read that ends when somebody writes to the pipe.
std::unique_ptr<FileOp> read_of(int pipe) {
  auto op = std::make_unique<FileOp>(FileCall::read);
  op->fd = pipe;
  op->offset = 0;  // which a pipe doesn't mind on a ring
  op->memory = net::allocate_aligned(16);
  op->own_vector = {op->memory.get(), 16};
  op->vectors = &op->own_vector;
  op->vector_count = 1;
  return op;
}

struct Pipe {
  Pipe() { EXPECT_EQ(::pipe2(end, O_CLOEXEC), 0); }
  ~Pipe() {
    ::close(end[0]);
    ::close(end[1]);
  }
  int end[2];
};

TEST(FileEngineUring, TakesNoThread) {
  NEEDS_IO_URING;
  const TempDirectory directory;
  make_file(directory / "a", pattern(100'000));
  ASSERT_TRUE(runloom::detail::retire_blocking_threads(Deadline::after(std::chrono::seconds(10))));
  on_ring(1, [&] {
    const File file = never_instant(directory / "a");
    drop_cache(directory / "a");
    std::string text(50'000, '\0');
    EXPECT_EQ(file.read_at(writable(text), 7).value(), 50'000u);
    EXPECT_EQ(text, pattern(50'000, 7));
    EXPECT_EQ(file.write_at(bytes("new"), 0).value(), 3u);
    EXPECT_TRUE(file.sync());
    EXPECT_EQ(file.status().value().size, 100'000u);
    EXPECT_EQ(threads_named("runloom-pool"), 0);
  });
  EXPECT_EQ(file_text(directory / "a").substr(0, 3), "new");
}

TEST(FileEngineUring, F04TenThousandReadsAtOnce) {
  NEEDS_IO_URING;
  const TempDirectory directory;
  make_file(directory / "a", pattern(20'000));
  for (const int hubs : {1, 2})
    on_ring(hubs, [&] {
      const File file = never_instant(directory / "a");
      std::vector<JoinHandle<void>> readers;
      for (int i = 0; i < test_fibers(kSanitized ? 2'000 : 10'000); ++i)
        readers.push_back(spawn([&, i] {
          std::string text(8, '\0');
          EXPECT_EQ(file.read_at(writable(text), i).value(), 8u);
          EXPECT_EQ(text, pattern(8, static_cast<std::size_t>(i)));
        }));
      for (auto& reader : readers)
        EXPECT_TRUE(reader.join());
    });
}

TEST(FileEngineUring, F06WhatIsLeftEndsByItself) {
  NEEDS_IO_URING;
  on_ring(1, [] {
    const Pipe pipe;
    auto reader = spawn([&] {
      auto op = read_of(pipe.end[0]);
      auto ended = net::run_or_leave(op, {});
      EXPECT_EQ(op, nullptr);
      return ended;
    });
    until_parked(reader.handle(), WaitReason::blocking);
    reader.cancel();
    EXPECT_EQ(reader.join().error(), Errc::cancelled);
  });
}

// Other code closes the eventfd by which the ring tells epoll of completions: one in flight is
// heard of all the same, and the next calls have a ring again.
TEST(FileEngineUring, ACompletionComesAfterACloseOfAllDescriptors) {
  NEEDS_IO_URING;
  const TempDirectory directory;
  make_file(directory / "a", pattern(10'000));
  const ChildEnd end = run_child([&] {
    Options options;
    options.make_driver = driver_maker(&net::make_epoll_netpoll);
    int failed = 1;
    const auto ran = runloom::run(
        [&] {
          int pipe[2];
          if (::pipe2(pipe, O_CLOEXEC) != 0) return;
          auto reader = spawn([&] {
            auto op = read_of(pipe[0]);
            return net::run_or_leave(op, {});
          });
          until_parked(reader.handle(), WaitReason::blocking);
          if (!this_fiber::sleep_for(std::chrono::milliseconds(1))) return;  // the kernel has it
          ::close_range(3, ~0u, 0);  // also the pipe's other end: the read meets the end
          const auto ended = reader.join();
          if (!ended || *ended != 0) {
            failed = 2;
            return;
          }
          const File file = never_instant(directory / "a");
          std::string text(100, '\0');
          const auto count = file.read_at(writable(text), 5);
          failed = count && *count == 100 && text == pattern(100, 5) ? 0 : 3;
        },
        options);
    return ran ? failed : 4;
  });
  EXPECT_TRUE(end.exited && end.code == 0) << end.code << " " << end.out;
}

// One outcome each, whichever comes first; the memory of what was left is the operation's own.
TEST(FileEngineUringRace, F08CancelsMeetTheEnd) {
  NEEDS_IO_URING;
  on_ring(1, [] {
    const Pipe pipe;
    ASSERT_EQ(::fcntl(pipe.end[1], F_SETFL, O_NONBLOCK), 0);  // it may fill up
    const RaceBudget budget;
    Random random(1);
    int whole = 0, cancelled = 0;
    do {
      auto reader = spawn([&] {
        auto op = read_of(pipe.end[0]);
        return net::run_or_leave(op, {});
      });
      for (std::uint32_t pause = random.below(3); pause > 0; --pause)
        this_fiber::yield();
      if (random.one_in(2)) reader.cancel();
      [[maybe_unused]] const ssize_t written = ::write(pipe.end[1], "x", 1);
      for (std::uint32_t pause = random.below(3); pause > 0; --pause)
        this_fiber::yield();
      reader.cancel();
      const auto ended = reader.join();
      if (ended) {
        EXPECT_GT(*ended, 0);
        ++whole;
      } else {
        EXPECT_EQ(ended.error(), Errc::cancelled);
        ++cancelled;
      }
    } while (!budget.spent());
    EXPECT_GT(whole + cancelled, 0);
  });
}

TEST(FileEngineUring, F10TheHubEndsWithWhatIsLeft) {
  NEEDS_IO_URING;
  const HangGuard guard;
  const Pipe pipe;
  for (int round = 0; round < 20; ++round)
    on_ring(2, [&] {
      std::vector<JoinHandle<Result<long>>> readers;
      for (int i = 0; i < 20; ++i)
        readers.push_back(spawn([&] {
          auto op = read_of(pipe.end[0]);
          return net::run_or_leave(op, {});
        }));
      for (auto& reader : readers) {
        reader.cancel();
        EXPECT_EQ(reader.join().error(), Errc::cancelled);
      }
    });
}

}  // namespace
}  // namespace runloom::test
