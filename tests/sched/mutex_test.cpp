#include "runloom/sched/mutex.hpp"

#include <atomic>
#include <chrono>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "runloom/sched/cancel.hpp"
#include "support/fiber_test.hpp"
#include "support/race.hpp"

namespace runloom {
namespace {

using namespace std::chrono_literals;
using test::until_parked;

FIBER_TEST(Mutex, WorksWithLockGuard) {
  Mutex mutex;
  {
    std::lock_guard hold(mutex);
    EXPECT_TRUE(mutex.locked());
    EXPECT_FALSE(mutex.try_lock());
  }
  EXPECT_FALSE(mutex.locked());
  std::unique_lock hold(mutex, std::try_to_lock);
  EXPECT_TRUE(hold.owns_lock());
}

FIBER_TEST(Mutex, HandsOverInOrder) {
  Mutex mutex;
  mutex.lock();
  std::vector<int> order;
  std::vector<JoinHandle<void>> waiters;
  for (int i = 0; i < 5; ++i) {
    waiters.push_back(spawn(
        [&, i] {
          std::lock_guard hold(mutex);
          order.push_back(i);
        },
        {.hub = Hub::current()->index()}));
    until_parked(waiters.back().handle(), WaitReason::mutex);
  }
  mutex.unlock();
  EXPECT_TRUE(mutex.locked());  // handed over: nobody can overtake
  EXPECT_FALSE(mutex.try_lock());
  for (auto& waiter : waiters)
    EXPECT_TRUE(waiter.join());
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
  EXPECT_FALSE(mutex.locked());
}

FIBER_TEST(Mutex, LockWithDeadline) {
  Mutex mutex;
  EXPECT_TRUE(mutex.lock(Deadline::now()));  // free: need not park
  EXPECT_EQ(mutex.lock(Deadline::now()).error(), Errc::timed_out);
  EXPECT_EQ(mutex.lock(Deadline::after(1ms)).error(), Errc::timed_out);
  mutex.unlock();
  EXPECT_FALSE(mutex.locked());  // not left to the waiter that gave up
}

FIBER_TEST(Mutex, CancelledWaiterLetsTheNextHaveIt) {
  Mutex mutex;
  mutex.lock();
  auto first = spawn([&] { return mutex.lock(Deadline::never()); });
  until_parked(first.handle(), WaitReason::mutex);
  auto second = spawn([&] {
    auto locked = mutex.lock(Deadline::never());
    mutex.unlock();
    return locked;
  });
  until_parked(second.handle(), WaitReason::mutex);
  first.cancel();
  EXPECT_EQ(first.join().error(), Errc::cancelled);
  mutex.unlock();
  EXPECT_TRUE(second.join());
  EXPECT_FALSE(mutex.locked());
}

FIBER_TEST(Mutex, LockForAGuardIsNoCancelPoint) {
  Mutex mutex;
  mutex.lock();
  auto waiter = spawn([&] {
    CancelScope scope(Deadline::now());
    scope.cancel();
    std::lock_guard hold(mutex);
    return this_fiber::check_cancelled();
  });
  until_parked(waiter.handle(), WaitReason::mutex);
  waiter.cancel();
  this_fiber::yield();
  until_parked(waiter.handle(), WaitReason::mutex);
  mutex.unlock();
  EXPECT_EQ(waiter.join().error(), Errc::cancelled);
}

FIBER_TEST(Mutex, WhereParkingIsForbidden) {
  Mutex mutex;
  mutex.lock();
  auto refused = spawn(
      [&] {
        EXPECT_EQ(mutex.lock(Deadline::never()).error(), Errc::park_forbidden);
        EXPECT_THROW(std::lock_guard hold(mutex), std::system_error);
      },
      {.noyield = true});
  EXPECT_TRUE(refused.join());
  mutex.unlock();
  auto granted = spawn([&] { std::lock_guard hold(mutex); }, {.noyield = true});
  EXPECT_TRUE(granted.join());
  EXPECT_FALSE(mutex.locked());
}

FIBER_TEST(Mutex, AnotherFiberMayUnlock) {
  Mutex mutex;
  mutex.lock();
  auto other = spawn([&] { mutex.unlock(); });
  EXPECT_TRUE(mutex.lock(Deadline::never()));
  EXPECT_TRUE(other.join());
  EXPECT_TRUE(mutex.try_unlock());
  EXPECT_FALSE(mutex.try_unlock());
}

// A cooperative lock in the hands of plain OS threads, on its own and against fibers.
FIBER_TEST(Mutex, OsThreadsWaitToo) {
  Mutex mutex;
  mutex.lock();
  test::ForeignThreads threads;
  std::atomic<int> entered{0};
  for (int i = 0; i < 2; ++i) {
    threads.start([&] {
      EXPECT_EQ(mutex.lock(Deadline::after(1ms)).error(), Errc::timed_out);
      entered.fetch_add(1);
      std::lock_guard hold(mutex);
    });
  }
  test::yield_until([&] { return entered.load() == 2; });
  mutex.unlock();
  threads.join();
  EXPECT_TRUE(mutex.try_lock());
}

// All fibers wait for a mutex that a thread has: that is no deadlock.
FIBER_TEST(Mutex, AThreadThatHasItIsWaitedFor) {
  Mutex mutex;
  std::atomic<bool> locked{false};
  std::thread holder([&] {
    std::lock_guard hold(mutex);
    locked.store(true);
    std::this_thread::sleep_for(20ms);
  });
  test::yield_until([&] { return locked.load(); });
  { std::lock_guard hold(mutex); }
  holder.join();
}

TEST(MutexDeathTest, UnlockOfAFreeMutex) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(Mutex().unlock(), "unlock of a mutex that is not locked");
}

// ---------------------------------------------------------------- RecursiveMutex

FIBER_TEST(RecursiveMutex, M12_CountsItsLocks) {
  RecursiveMutex mutex;
  mutex.lock();
  EXPECT_TRUE(mutex.try_lock());
  EXPECT_TRUE(mutex.lock(Deadline::now()));
  for (int left = 3; left > 0; --left) {
    EXPECT_TRUE(mutex.owned());
    EXPECT_TRUE(mutex.locked());
    mutex.unlock();
  }
  EXPECT_FALSE(mutex.owned());
  EXPECT_FALSE(mutex.locked());
  EXPECT_FALSE(mutex.try_unlock());
}

// Both fibers run on one OS thread.
FIBER_TEST(RecursiveMutex, M02_TheFiberIsTheOwnerNotItsThread) {
  RecursiveMutex mutex;
  std::lock_guard hold(mutex);
  auto other = spawn(
      [&] {
        EXPECT_FALSE(mutex.owned());
        EXPECT_FALSE(mutex.try_lock());
        EXPECT_FALSE(mutex.try_unlock());
        EXPECT_EQ(mutex.lock(Deadline::after(1ms)).error(), Errc::timed_out);
      },
      {.hub = Hub::current()->index()});
  EXPECT_TRUE(other.join());
  EXPECT_TRUE(mutex.owned());
}

FIBER_TEST(RecursiveMutex, OwnershipIsNotInherited) {
  RecursiveMutex mutex;
  auto leaver = spawn([&] { mutex.lock(); }, {.hub = 0});
  EXPECT_TRUE(leaver.join());
  // These take the leaver's stack over, and with it its address.
  for (int i = 0; i < 8; ++i) {
    auto heir = spawn(
        [&] {
          EXPECT_FALSE(mutex.owned());
          EXPECT_FALSE(mutex.try_lock());
        },
        {.hub = 0});
    EXPECT_TRUE(heir.join());
  }
}

FIBER_TEST(RecursiveMutex, OsThreadsOwnItToo) {
  RecursiveMutex mutex;
  mutex.lock();
  test::ForeignThreads threads;
  std::atomic<bool> refused{false};
  threads.start([&] {
    EXPECT_FALSE(mutex.try_lock());
    refused.store(true);
    mutex.lock();
    mutex.lock();
    EXPECT_TRUE(mutex.owned());
    mutex.unlock();
    mutex.unlock();
  });
  test::yield_until([&] { return refused.load(); });
  mutex.unlock();
  threads.join();
  EXPECT_FALSE(mutex.locked());
}

TEST(RecursiveMutexThread, OwnershipIsNotInheritedByThreads) {
  test::HangGuard guard;
  RecursiveMutex mutex;
  std::thread([&] { mutex.lock(); }).join();
  std::thread([&] {
    EXPECT_FALSE(mutex.owned());
    EXPECT_FALSE(mutex.try_lock());
  }).join();
}

FIBER_TEST(RecursiveMutex, UnlockAllKeepsTheDepth) {
  RecursiveMutex mutex;
  mutex.lock();
  mutex.lock();
  const std::uint32_t depth = mutex.unlock_all();
  EXPECT_EQ(depth, 2u);
  EXPECT_FALSE(mutex.locked());
  mutex.lock_to(depth);
  mutex.unlock();
  EXPECT_TRUE(mutex.owned());
  mutex.unlock();
  EXPECT_FALSE(mutex.locked());
}

// ---------------------------------------------------------------- races

// Fibers on both hubs and OS threads lock in every way there is, and are cancelled and timed out
// while they wait. The counter is plain: whoever is inside is alone. At the end nobody has it.
template <class M>
void contend() {
  M mutex;
  std::int64_t counter = 0;
  std::atomic<std::int64_t> entered{0};
  const test::RaceBudget budget;
  auto work = [&](std::uint32_t id) {
    test::Random random(id);
    while (!budget.spent()) {
      bool locked = true;
      switch (random.below(4)) {
        case 0:
          locked = mutex.try_lock();
          break;
        case 1: {
          CancelScope scope;
          if (random.one_in(4)) scope.cancel();
          const auto limit = std::chrono::microseconds(random.below(40));
          locked = mutex.lock(Deadline::after(limit)).has_value();
          break;
        }
        case 2:
          locked = mutex.lock(Deadline::never()).has_value();
          break;
        default:
          mutex.lock();
      }
      if (locked) {
        ++counter;
        entered.fetch_add(1, std::memory_order_relaxed);
        if (random.one_in(3)) this_fiber::yield();
        mutex.unlock();
      }
      if (random.one_in(3)) this_fiber::yield();
    }
  };
  test::ForeignThreads threads;
  std::vector<JoinHandle<void>> fibers;
  for (std::uint32_t id = 0; id < 6; ++id)
    fibers.push_back(spawn([&, id] { work(id); }, {.hub = static_cast<int>(id)}));
  threads.start([&] { work(100); });
  threads.start([&] { work(101); });
  // Cancelled in the middle: those fibers go on, with lock() and try_lock() only.
  for (std::size_t i = 0; i < 2; ++i)
    fibers[i].cancel();
  threads.join();
  for (auto& fiber : fibers)
    EXPECT_TRUE(fiber.join());
  EXPECT_EQ(counter, entered.load());
  EXPECT_GT(counter, 0);
  EXPECT_TRUE(mutex.try_lock());
  mutex.unlock();
}

FIBER_TEST(MutexRace, Contention) {
  contend<Mutex>();
}
FIBER_TEST(MutexRace, RecursiveContention) {
  contend<RecursiveMutex>();
}

// The hand-off and the cancel arrive together. Who was handed the mutex has it.
FIBER_TEST(MutexRace, CancelAgainstHandOff) {
  const test::RaceBudget budget;
  test::Random random(0);
  do {
    Mutex mutex;
    mutex.lock();
    auto waiter = spawn(
        [&] {
          const auto locked = mutex.lock(Deadline::never());
          if (locked) mutex.unlock();
          return locked;
        },
        {.hub = 1});
    auto canceller = spawn([handle = waiter.handle()] { handle.cancel(); }, {.hub = 2});
    for (std::uint32_t i = random.below(4); i > 0; --i)
      this_fiber::yield();
    mutex.unlock();
    const auto locked = waiter.join();
    EXPECT_TRUE(canceller.join());
    EXPECT_EQ(locked.error(), locked ? std::error_code() : make_error_code(Errc::cancelled));
    EXPECT_TRUE(mutex.try_lock()) << "leaked";
  } while (!budget.spent());
}

}  // namespace
}  // namespace runloom
