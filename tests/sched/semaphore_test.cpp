#include "runloom/sched/semaphore.hpp"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "runloom/sched/cancel.hpp"
#include "support/fiber_test.hpp"
#include "support/race.hpp"

namespace runloom {
namespace {

using namespace std::chrono_literals;
using test::until_parked;

FIBER_TEST(Semaphore, CountsItsPermits) {
  Semaphore semaphore(3);
  EXPECT_EQ(semaphore.capacity(), 3u);
  EXPECT_TRUE(semaphore.acquire(2));
  EXPECT_EQ(semaphore.available(), 1u);
  EXPECT_FALSE(semaphore.try_acquire(2));
  EXPECT_TRUE(semaphore.try_acquire());
  EXPECT_FALSE(semaphore.try_acquire());
  EXPECT_TRUE(semaphore.acquire(0));
  EXPECT_EQ(semaphore.acquire(1, Deadline::after(1ms)).error(), Errc::timed_out);
  semaphore.release(3);
  EXPECT_EQ(semaphore.available(), 3u);
}

FIBER_TEST(Semaphore, RefusesWhatCanNeverBe) {
  Semaphore semaphore(1, 2);
  EXPECT_EQ(semaphore.acquire(3).error(), std::errc::invalid_argument);
  EXPECT_FALSE(semaphore.try_acquire(3));
  EXPECT_EQ(semaphore.try_release(2).error(), Errc::over_release);
  EXPECT_EQ(semaphore.try_release(~std::uint32_t{0}).error(), Errc::over_release);
  EXPECT_EQ(semaphore.available(), 1u);  // nothing changed
  EXPECT_TRUE(semaphore.try_release());
  Semaphore unbounded(0, Semaphore::kUnbounded);
  EXPECT_TRUE(unbounded.try_release(Semaphore::kUnbounded));
  EXPECT_EQ(unbounded.try_release().error(), Errc::over_release);
}

FIBER_TEST(Semaphore, WhoWantsManyIsNotOvertaken) {
  Semaphore semaphore(0, 4);
  std::vector<int> order;
  auto wait_for = [&](std::uint32_t count, int id) {
    auto fiber = spawn([&, count, id] {
      EXPECT_TRUE(semaphore.acquire(count));
      order.push_back(id);
    });
    until_parked(fiber.handle(), WaitReason::semaphore);
    return fiber;
  };
  auto many = wait_for(3, 0);
  auto few = wait_for(1, 1);
  semaphore.release(2);
  EXPECT_FALSE(semaphore.try_acquire());  // two are there, but they are the first one's
  until_parked(many.handle(), WaitReason::semaphore);
  until_parked(few.handle(), WaitReason::semaphore);
  semaphore.release(1);
  EXPECT_TRUE(many.join());
  EXPECT_EQ(order, std::vector<int>{0});
  semaphore.release(1);
  EXPECT_TRUE(few.join());
  EXPECT_EQ(order, (std::vector<int>{0, 1}));
  EXPECT_EQ(semaphore.available(), 0u);
}

FIBER_TEST(Semaphore, WhoGivesUpLetsTheOthersPass) {
  Semaphore semaphore(0, 4);
  semaphore.release(1);
  auto many = spawn([&] { return semaphore.acquire(2); });
  until_parked(many.handle(), WaitReason::semaphore);
  auto few = spawn([&] { return semaphore.acquire(1); });
  until_parked(few.handle(), WaitReason::semaphore);
  many.cancel();
  EXPECT_EQ(many.join().error(), Errc::cancelled);
  EXPECT_TRUE(few.join());  // the permit was there, behind the one who wanted two
}

FIBER_TEST(Semaphore, OneReleaseServesSeveral) {
  Semaphore semaphore(0, 10);
  std::vector<JoinHandle<Result<void>>> waiters;
  for (std::uint32_t count : {1u, 2u, 3u, 4u}) {
    waiters.push_back(spawn([&semaphore, count] { return semaphore.acquire(count); }));
    until_parked(waiters.back().handle(), WaitReason::semaphore);
  }
  semaphore.release(6);
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_TRUE(waiters[i].join());
  EXPECT_FALSE(waiters[3].done());
  semaphore.release(4);
  EXPECT_TRUE(waiters[3].join());
}

FIBER_TEST(Semaphore, OsThreadsWaitToo) {
  Semaphore semaphore(0, 1);
  test::ForeignThreads threads;
  std::atomic<bool> refused{false};
  threads.start([&] {
    EXPECT_EQ(semaphore.acquire(1, Deadline::after(1ms)).error(), Errc::timed_out);
    refused.store(true);
    EXPECT_TRUE(semaphore.acquire());
  });
  test::yield_until([&] { return refused.load(); });
  semaphore.release();
  threads.join();
  EXPECT_EQ(semaphore.available(), 0u);
}

TEST(SemaphoreDeathTest, OverRelease) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(Semaphore(1).release(), "more permits than its capacity");
}

// Permits in use never pass the capacity, and all are back at the end: none was lost to a waiter
// that gave up while it was being served.
FIBER_TEST(SemaphoreRace, GivingUpAgainstRelease) {
  constexpr std::uint32_t kCapacity = 5;
  Semaphore semaphore(kCapacity);
  std::atomic<std::uint32_t> in_use{0};
  std::atomic<std::uint64_t> served{0};
  const test::RaceBudget budget;
  auto work = [&](std::uint32_t id) {
    test::Random random(id);
    while (!budget.spent()) {
      const std::uint32_t count = 1 + random.below(kCapacity);
      bool got = false;
      if (random.one_in(4)) {
        got = semaphore.try_acquire(count);
      } else if (random.one_in(2)) {
        const auto limit = std::chrono::microseconds(random.below(40));
        got = semaphore.acquire(count, Deadline::after(limit)).has_value();
      } else {
        CancelScope scope;
        if (random.one_in(8)) scope.cancel();
        got = semaphore.acquire(count).has_value();
      }
      if (!got) {
        this_fiber::yield();
        continue;
      }
      EXPECT_LE(in_use.fetch_add(count) + count, kCapacity);
      served.fetch_add(1, std::memory_order_relaxed);
      if (random.one_in(2)) this_fiber::yield();
      in_use.fetch_sub(count);
      semaphore.release(count);
    }
  };
  test::ForeignThreads threads;
  std::vector<JoinHandle<void>> fibers;
  for (std::uint32_t id = 0; id < 6; ++id)
    fibers.push_back(spawn([&, id] { work(id); }, {.hub = static_cast<int>(id)}));
  threads.start([&] { work(100); });
  threads.start([&] { work(101); });
  fibers[0].cancel();
  fibers[1].cancel();
  threads.join();
  for (auto& fiber : fibers)
    EXPECT_TRUE(fiber.join());
  EXPECT_EQ(semaphore.available(), kCapacity);
  EXPECT_GT(served.load(), 0u);
}

}  // namespace
}  // namespace runloom
