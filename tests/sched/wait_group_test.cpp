#include "runloom/sched/wait_group.hpp"

#include <atomic>
#include <chrono>
#include <limits>
#include <memory>
#include <vector>

#include "runloom/sched/cancel.hpp"
#include "support/fiber_test.hpp"
#include "support/race.hpp"

namespace runloom {
namespace {

using namespace std::chrono_literals;
using test::until_parked;

FIBER_TEST(WaitGroup, WaitsForAll) {
  WaitGroup group;
  EXPECT_TRUE(group.wait(Deadline::now()));  // zero already
  std::atomic<int> done{0};
  group.add(10);
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(go([&] {
      this_fiber::yield();
      done.fetch_add(1);
      group.done();
    }));
  }
  EXPECT_TRUE(group.wait());
  EXPECT_EQ(done.load(), 10);
  EXPECT_EQ(group.count(), 0);
}

FIBER_TEST(WaitGroup, BelowZeroIsRefused) {
  WaitGroup group(1);
  EXPECT_EQ(group.try_add(-2).error(), Errc::over_release);
  EXPECT_EQ(group.count(), 1);
  EXPECT_TRUE(group.try_add(-1));
  EXPECT_EQ(group.try_add(-1).error(), Errc::over_release);
  EXPECT_TRUE(group.try_add(std::numeric_limits<std::int64_t>::max()));
  EXPECT_EQ(group.try_add(1).error(), Errc::over_release);
  EXPECT_EQ(group.try_add(std::numeric_limits<std::int64_t>::min()).error(), Errc::over_release);
}

FIBER_TEST(WaitGroup, ReleasesItsWaitersAlsoWhenUsedAgainAtOnce) {
  WaitGroup group(1);
  std::vector<JoinHandle<Result<void>>> waiters;
  for (int i = 0; i < 3; ++i) {
    waiters.push_back(spawn([&] { return group.wait(); }));
    until_parked(waiters.back().handle(), WaitReason::wait_group);
  }
  group.done();
  group.add();
  for (auto& waiter : waiters)
    EXPECT_TRUE(waiter.join());
  EXPECT_EQ(group.wait(Deadline::after(1ms)).error(), Errc::timed_out);
  group.done();
}

FIBER_TEST(WaitGroup, CancelledWaiterLeaves) {
  WaitGroup group(1);
  auto waiter = spawn([&] { return group.wait(); });
  until_parked(waiter.handle(), WaitReason::wait_group);
  waiter.cancel();
  EXPECT_EQ(waiter.join().error(), Errc::cancelled);
  group.done();
  EXPECT_TRUE(group.wait());
}

FIBER_TEST(WaitGroup, OsThreadsCountAndWait) {
  WaitGroup group(2);
  test::ForeignThreads threads;
  threads.start([&] {
    group.done();
    EXPECT_TRUE(group.wait());
  });
  threads.start([&] { EXPECT_TRUE(group.wait()); });
  group.done();
  threads.join();
}

TEST(WaitGroupDeathTest, BelowZero) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(WaitGroup().done(), "fell below zero");
}

// The waiter takes the group away as soon as it may, while the last done() may still be inside.
FIBER_TEST(WaitGroupRace, WaiterDestroysTheGroup) {
  const test::RaceBudget budget;
  test::Random random(0);
  do {
    auto group = std::make_unique<WaitGroup>(3);
    auto work = [target = group.get()] { target->done(); };
    auto first = spawn(work, {.hub = 0});
    auto second = spawn(work, {.hub = 1});
    test::ForeignThreads threads;
    threads.start(work);
    for (std::uint32_t i = random.below(4); i > 0; --i)
      this_fiber::yield();
    EXPECT_TRUE(group->wait());
    group.reset();
    threads.join();
    EXPECT_TRUE(first.join());
    EXPECT_TRUE(second.join());
  } while (!budget.spent());
}

// Rounds of work with several waiters, some of which give up.
FIBER_TEST(WaitGroupRace, Rounds) {
  const test::RaceBudget budget;
  do {
    WaitGroup group;
    std::atomic<int> finished{0};
    std::vector<JoinHandle<void>> fibers;
    group.add(8);
    for (int i = 0; i < 8; ++i) {
      fibers.push_back(spawn(
          [&] {
            finished.fetch_add(1);
            group.done();
          },
          {.hub = i}));
    }
    for (int i = 0; i < 3; ++i) {
      fibers.push_back(spawn(
          [&] {
            test::Random random(static_cast<std::uint64_t>(finished.load()));
            const auto limit = std::chrono::microseconds(random.below(20));
            if (group.wait(Deadline::after(limit))) {
              EXPECT_EQ(finished.load(), 8);
            }
          },
          {.hub = i}));
    }
    EXPECT_TRUE(group.wait());
    EXPECT_EQ(finished.load(), 8);
    for (auto& fiber : fibers)
      EXPECT_TRUE(fiber.join());
  } while (!budget.spent());
}

}  // namespace
}  // namespace runloom
