#include "runloom/sched/spin_lock.hpp"

#include <gtest/gtest.h>

#include <mutex>
#include <thread>
#include <vector>

#include "runloom/sched/scheduler.hpp"

namespace runloom::detail {
namespace {

TEST(SpinLockRace, ExcludesThreads) {
  SpinLock lock(LockRank::primitive);
  long count = 0;  // guarded by lock
  std::vector<std::thread> threads;
  constexpr int kThreads = 4, kRounds = 20'000;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < kRounds; ++i) {
        std::lock_guard hold(lock);
        ++count;
      }
    });
  for (auto& thread : threads)
    thread.join();
  EXPECT_EQ(count, kThreads * kRounds);
}

TEST(SpinLock, TryLock) {
  SpinLock lock(LockRank::primitive);
  EXPECT_TRUE(lock.try_lock());
  std::thread([&] { EXPECT_FALSE(lock.try_lock()); }).join();
  lock.unlock();
  EXPECT_TRUE(lock.try_lock());
  lock.unlock();
}

#ifdef RUNLOOM_DEBUG
TEST(SpinLock, RanksMustGrow) {
  SpinLock low(LockRank::primitive), high(LockRank::fiber), peer(LockRank::fiber);
  {
    std::lock_guard first(low);
    std::lock_guard second(high);
  }
  EXPECT_DEATH(
      {
        std::lock_guard first(high);
        std::lock_guard second(low);
      },
      "lock of rank 20 taken while rank 40 is held");
  EXPECT_DEATH(
      {
        std::lock_guard first(high);
        std::lock_guard second(peer);
      },
      "lock of rank 40 taken while rank 40 is held");
}

TEST(SpinLock, TryLockMayBreakTheOrder) {
  // It can't wait, so it can't deadlock: signal handlers depend on it.
  SpinLock low(LockRank::primitive), high(LockRank::fiber);
  std::lock_guard first(high);
  ASSERT_TRUE(low.try_lock());
  low.unlock();
}

TEST(SpinLock, ReleaseInAnyOrder) {
  SpinLock low(LockRank::primitive), middle(LockRank::fiber), high(LockRank::queue);
  low.lock();
  middle.lock();
  low.unlock();
  high.lock();
  middle.unlock();
  high.unlock();
  check_no_lock_held("the end of the test");
}

TEST(SpinLock, I4_ParkWithALockHeldAborts) {
  EXPECT_DEATH(
      {
        Scheduler scheduler;
        (void)scheduler.run([] {
          SpinLock lock(LockRank::primitive);
          std::lock_guard hold(lock);
          auto other = spawn([] {});
          this_fiber::yield();
        });
      },
      "switch with a spin lock of rank 20 held");
}
#endif

}  // namespace
}  // namespace runloom::detail
