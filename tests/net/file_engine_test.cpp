// What cancellation, deadlines and many callers meet when calls are made elsewhere.
#include "file_engine.hpp"

#include <sys/stat.h>

#include <atomic>

#include "runloom/net/file.hpp"
#include "runloom/sched/blocking.hpp"
#include "runloom/sched/cancel.hpp"
#include "support/files.hpp"
#include "support/kernel.hpp"
#include "support/net_test.hpp"
#include "support/on_pool.hpp"
#include "support/race.hpp"
#include "support/syscall_faults.hpp"

namespace runloom::test {
namespace {

using namespace std::chrono_literals;
using net::bytes;
using net::File;

// A file whose reads and writes are never tried on the calling thread.
struct SlowFile {
  SlowFile() {
    make_file(path, pattern(100'000));
    file = File::open(path, O_RDWR | O_DIRECT | O_CREAT).value();
    EXPECT_EQ(::fcntl(file.number(), F_SETFL, 0), 0);  // direct for File, not for the kernel
  }
  // Also of the operations that were left behind.
  ~SlowFile() { EXPECT_TRUE(file.close()); }
  TempDirectory directory;
  const std::string path = directory / "slow";
  File file;
};

NET_TEST(FileEngine, F06ACancelledReadLeavesAtOnce) {
  const OnPool on_pool;
  const SlowFile slow;
  Hold hold(Call::preadv2);
  auto buffer = std::make_unique<std::string>(5'000, '\1');
  auto reader = spawn([&] { return slow.file.read_at(writable(*buffer), 0); });
  yield_until([&] { return hold.held() == 1; });
  reader.cancel();
  EXPECT_EQ(reader.join().error(), Errc::cancelled);
  EXPECT_EQ(hold.held(), 1);  // it is still under way
  EXPECT_EQ(*buffer, std::string(5'000, '\1'));
  buffer.reset();  // the memory is the caller's again
  hold.release();
  std::string text(10, '\0');
  EXPECT_EQ(slow.file.read_at(writable(text), 5).value(), 10u);
  EXPECT_EQ(text, pattern(10, 5));
}

NET_TEST(FileEngine, ADeadlineDoesTheSame) {
  const OnPool on_pool;
  const SlowFile slow;
  std::string text(10, '\0');
  EXPECT_EQ(slow.file.read_at(writable(text), 0, Deadline::now()).error(), Errc::timed_out);
  Hold hold(Call::preadv2);
  EXPECT_EQ(slow.file.read_at(writable(text), 0, Deadline::after(1ms)).error(), Errc::timed_out);
  {
    const CancelScope scope(Deadline::after(1ms));
    EXPECT_EQ(slow.file.read_at(writable(text), 0).error(), Errc::timed_out);
  }
  yield_until([&] { return hold.held() == 2; });
}

NET_TEST(FileEngine, F08ACancelledWriteIsWaitedFor) {
  const OnPool on_pool;
  const SlowFile slow;
  Hold hold(Call::pwritev2);
  const std::string data(3 << 20, 'x');  // three pieces
  auto writer = spawn([&] { return slow.file.write_at(bytes(data), 0); });
  yield_until([&] { return hold.held() == 1; });
  writer.cancel();
  for (int i = 0; i < 100; ++i)
    this_fiber::yield();
  EXPECT_FALSE(writer.done());
  hold.release();
  // What has begun counts; there is no more of it.
  EXPECT_EQ(writer.join().value(), std::size_t{1} << 20);
  EXPECT_EQ(slow.file.status().value().size, std::uint64_t{1} << 20);
}

NET_TEST(FileEngine, F08AReadAtThePositionIsWaitedFor) {
  const OnPool on_pool;
  const SlowFile slow;
  Hold hold(Call::preadv2);
  std::string text(10, '\0');
  auto reader = spawn([&] { return slow.file.read(writable(text)); });
  yield_until([&] { return hold.held() == 1; });
  reader.cancel();
  hold.release();
  EXPECT_EQ(reader.join().value(), 10u);
  EXPECT_EQ(text, pattern(10));
  EXPECT_EQ(slow.file.position().value(), 10);
}

NET_TEST(FileEngine, AnOpenThatWasLeftClosesItsFile) {
  const OnPool on_pool;
  const TempDirectory directory;
  make_file(directory / "a", "x");
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                         std::filesystem::directory_iterator());
  };
  const auto before = descriptors();
  {
    Hold hold(Call::openat);
    auto opener = spawn([&] { return File::open(directory / "a"); });
    yield_until([&] { return hold.held() == 1; });
    opener.cancel();
    EXPECT_EQ(opener.join().error(), Errc::cancelled);
  }
  yield_until([&] { return descriptors() == before; });
}

// A file that appears after its maker was told that it had been cancelled is nobody's.
NET_TEST(FileEngine, AnOpenThatMakesAFileIsWaitedFor) {
  const OnPool on_pool;
  const TempDirectory directory;
  Hold hold(Call::openat);
  auto maker = spawn([&] { return File::open(directory / "a", O_WRONLY | O_CREAT, 0600); });
  yield_until([&] { return hold.held() == 1; });
  maker.cancel();
  hold.release();
  EXPECT_TRUE(maker.join().has_value());
  EXPECT_TRUE(std::filesystem::exists(directory / "a"));
}

NET_TEST(FileEngine, WhatWaitsForATurnIsTakenBack) {
  const OnPool on_pool;
  const SlowFile slow;
  const std::size_t threads = Scheduler::current()->options().blocking_threads;
  Hold hold(Call::preadv2);
  std::vector<JoinHandle<Result<std::size_t>>> readers;
  std::vector<std::string> texts(threads, std::string(10, '\0'));
  for (std::string& text : texts)
    readers.push_back(spawn([&] { return slow.file.read_at(writable(text), 0); }));
  yield_until([&] { return hold.held() == static_cast<int>(threads); });
  std::string text(10, '\0');
  auto late = spawn([&] { return slow.file.read(writable(text)); });
  auto writer = spawn([&] { return slow.file.write_at(bytes("never"), 0); });
  until_parked(late.handle(), WaitReason::blocking);
  until_parked(writer.handle(), WaitReason::blocking);
  late.cancel();
  writer.cancel();
  EXPECT_EQ(late.join().error(), Errc::cancelled);
  EXPECT_EQ(writer.join().error(), Errc::cancelled);
  hold.release();
  for (auto& reader : readers)
    EXPECT_EQ(reader.join().value(), 10u);
  EXPECT_EQ(slow.file.position().value(), 0);
  EXPECT_EQ(file_text(slow.path), pattern(100'000));
}

// Far more reads than threads: they queue, and everything else goes on.
NET_TEST(FileEngine, F04ManyReadsShareFewThreads) {
  const OnPool on_pool;
  const SlowFile slow;
  const std::size_t threads = Scheduler::current()->options().blocking_threads;
  const int reads = test_fibers(kSanitized ? 2'000 : 10'000);
  Hold hold(Call::preadv2);
  std::vector<JoinHandle<void>> readers;
  for (int i = 0; i < reads; ++i)
    readers.push_back(spawn([&, i] {
      std::string text(8, '\0');
      const auto at = static_cast<std::size_t>(i);
      EXPECT_EQ(slow.file.read_at(writable(text), i).value(), 8u);
      EXPECT_EQ(text, pattern(8, at));
    }));
  yield_until([&] { return hold.held() == static_cast<int>(threads); });
  // The network ticks meanwhile.
  TcpPair pair;
  ASSERT_TRUE(pair.client.write_all(bytes("ping")));
  EXPECT_EQ(read_text(pair.server).value(), "ping");
  EXPECT_LE(threads_named("runloom-pool"), static_cast<int>(threads));
  hold.release();
  for (auto& reader : readers)
    EXPECT_TRUE(reader.join());
  EXPECT_LE(threads_named("runloom-pool"), static_cast<int>(threads));
}

NET_TEST(FileEngine, TheThreadsMayHaveLeft) {
  const OnPool on_pool;
  const SlowFile slow;
  ASSERT_TRUE(runloom::detail::retire_blocking_threads(Deadline::after(10s)));
  std::string text(10, '\0');
  EXPECT_EQ(slow.file.read_at(writable(text), 0).value(), 10u);
}

// Reads are cancelled at any moment, also that of their end: each ends once, and brings its bytes
// or nothing. Their memory is freed at once.
void cancel_storm(bool at_position) {
  const SlowFile slow;
  const RaceBudget budget;
  std::atomic<std::size_t> brought{0};
  Random random(1);
  std::size_t started = 0;
  do {
    std::vector<JoinHandle<void>> readers;
    for (int i = 0; i < 50; ++i, ++started)
      readers.push_back(spawn([&, i] {
        auto text = std::make_unique<std::string>(100, '\1');
        const auto count =
            at_position ? slow.file.read(writable(*text)) : slow.file.read_at(writable(*text), i);
        if (!count) {
          EXPECT_EQ(count.error(), Errc::cancelled);
          EXPECT_EQ(*text, std::string(100, '\1'));
          return;
        }
        brought += *count;
        if (!at_position) {
          EXPECT_EQ(*text, pattern(100, static_cast<std::size_t>(i)));
        }
      }));
    for (auto& reader : readers) {
      for (std::uint32_t pause = random.below(4); pause > 0; --pause)
        this_fiber::yield();
      if (random.one_in(2)) reader.cancel();
    }
    for (auto& reader : readers)
      EXPECT_TRUE(reader.join());
    if (at_position) {
      // No byte was lost, none came twice.
      EXPECT_EQ(slow.file.position().value(), static_cast<off_t>(brought.load()));
      ASSERT_TRUE(slow.file.seek(0));
      brought = 0;
    }
  } while (!budget.spent());
  EXPECT_GT(started, 0u);
}

NET_TEST(FileEngineRace, F08CancelsMeetTheEndOfReads) {
  cancel_storm(false);
}
NET_TEST(FileEngineRace, F08CancelsMeetTheEndOfReadsAtThePosition) {
  cancel_storm(true);
}

// A write that was cancelled has happened, and counts, or it has not and never will.
NET_TEST(FileEngineRace, F08CancelsMeetTheEndOfWrites) {
  const SlowFile slow;
  const RaceBudget budget;
  Random random(2);
  do {
    ASSERT_TRUE(slow.file.truncate(0));
    std::vector<JoinHandle<bool>> writers;
    for (int i = 0; i < 20; ++i)
      writers.push_back(spawn([&, i] {
        const std::string data(10, static_cast<char>('a' + i));
        const auto count = slow.file.write_at(bytes(data), i * 10);
        return count && *count == 10;
      }));
    for (auto& writer : writers) {
      if (random.one_in(2)) this_fiber::yield();
      if (random.one_in(2)) writer.cancel();
    }
    std::string expected(200, '\0');
    for (std::size_t i = 0; i < writers.size(); ++i)
      if (writers[i].join().value()) expected.replace(i * 10, 10, 10, static_cast<char>('a' + i));
    std::string found = file_text(slow.path);
    found.resize(200);
    EXPECT_EQ(found, expected);
  } while (!budget.spent());
}

// F10: the scheduler ends while calls are under way, and after all are done.
TEST(FileEngineEnd, F10NothingIsWaitedForThatDoesNotCome) {
  const OnPool on_pool;
  for (const bool in_flight : {false, true}) {
    const HangGuard guard;
    const SlowFile slow;
    std::optional<Hold> hold;
    if (in_flight) hold.emplace(Call::preadv2);
    const auto ran = run([&] {
      std::string text(10, '\0');
      auto reader = spawn([&] { return slow.file.read_at(writable(text), 0); });
      if (in_flight) {
        yield_until([&] { return hold->held() == 1; });
        reader.cancel();
      }
      EXPECT_EQ(static_cast<bool>(reader.join()), !in_flight);
    });
    EXPECT_TRUE(ran);
    if (in_flight) {
      EXPECT_EQ(hold->held(), 1);
      hold->release();
      while (hold->held() != 0)
        std::this_thread::yield();
    }
  }
}

}  // namespace
}  // namespace runloom::test
