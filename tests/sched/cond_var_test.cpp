#include "runloom/sched/cond_var.hpp"

#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "runloom/sched/cancel.hpp"
#include "support/fiber_test.hpp"
#include "support/race.hpp"

namespace runloom {
namespace {

using namespace std::chrono_literals;
using test::until_parked;

FIBER_TEST(CondVar, WakesInOrder) {
  Mutex mutex;
  CondVar changed;
  std::vector<int> order;
  std::vector<JoinHandle<void>> waiters;
  for (int i = 0; i < 4; ++i) {
    waiters.push_back(spawn(
        [&, i] {
          std::unique_lock hold(mutex);
          EXPECT_TRUE(changed.wait(hold));
          EXPECT_TRUE(mutex.locked());
          order.push_back(i);
        },
        {.hub = Hub::current()->index()}));
    until_parked(waiters.back().handle(), WaitReason::cond_var);
  }
  changed.notify_one();
  EXPECT_TRUE(waiters[0].join());
  EXPECT_EQ(order, std::vector<int>{0});
  changed.notify(2);
  EXPECT_TRUE(waiters[1].join());
  EXPECT_TRUE(waiters[2].join());
  until_parked(waiters[3].handle(), WaitReason::cond_var);
  changed.notify_all();
  EXPECT_TRUE(waiters[3].join());
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3}));
  changed.notify_all();  // nobody is there
}

FIBER_TEST(CondVar, UnlocksWhileItWaits) {
  Mutex mutex;
  CondVar changed;
  bool ready = false;
  auto setter = spawn([&] {
    std::lock_guard hold(mutex);
    ready = true;
    changed.notify_one();
  });
  std::unique_lock hold(mutex);
  EXPECT_TRUE(changed.wait_until(hold, [&] { return ready; }));
  EXPECT_TRUE(setter.join());
}

FIBER_TEST(CondVar, HasTheMutexWhenTheWaitFails) {
  Mutex mutex;
  CondVar changed;
  std::unique_lock hold(mutex);
  EXPECT_EQ(changed.wait(hold, Deadline::after(1ms)).error(), Errc::timed_out);
  EXPECT_TRUE(mutex.locked());
  EXPECT_EQ(changed
                .wait_until(
                    hold, [] { return false; }, Deadline::after(1ms))
                .error(),
            Errc::timed_out);
  EXPECT_TRUE(changed.wait_until(
      hold, [] { return true; }, Deadline::now()));
  hold.unlock();

  auto waiter = spawn([&] {
    std::unique_lock inner(mutex);
    const auto woken = changed.wait(inner);
    EXPECT_TRUE(mutex.locked());
    return woken;
  });
  until_parked(waiter.handle(), WaitReason::cond_var);
  mutex.lock();
  waiter.cancel();
  // It must wait for the mutex, although it is cancelled.
  until_parked(waiter.handle(), WaitReason::mutex);
  mutex.unlock();
  EXPECT_EQ(waiter.join().error(), Errc::cancelled);
  EXPECT_FALSE(mutex.locked());
}

FIBER_TEST(CondVar, ReleasesARecursiveMutexWhole) {
  RecursiveMutex mutex;
  CondVar changed;
  auto waiter = spawn([&] {
    std::lock_guard outer(mutex);
    std::unique_lock inner(mutex);
    EXPECT_TRUE(changed.wait(inner));
    EXPECT_TRUE(mutex.owned());
  });
  until_parked(waiter.handle(), WaitReason::cond_var);
  EXPECT_TRUE(mutex.try_lock());
  changed.notify_one();
  until_parked(waiter.handle(), WaitReason::mutex);
  mutex.unlock();
  EXPECT_TRUE(waiter.join());
  EXPECT_FALSE(mutex.locked());  // both levels were given back
}

FIBER_TEST(CondVar, OsThreadsWaitToo) {
  Mutex mutex;
  CondVar changed;
  int turn = 0;
  test::ForeignThreads threads;
  threads.start([&] {
    std::unique_lock hold(mutex);
    EXPECT_TRUE(changed.wait_until(hold, [&] { return turn == 1; }));
    turn = 2;
    changed.notify_all();
  });
  {
    std::unique_lock hold(mutex);
    turn = 1;
    changed.notify_all();
    EXPECT_TRUE(changed.wait_until(hold, [&] { return turn == 2; }));
  }
  threads.join();
}

// A bounded queue. What was put in comes out once, whoever gives up meanwhile.
FIBER_TEST(CondVarRace, BoundedQueue) {
  constexpr std::size_t kMost = 3;
  Mutex mutex;
  CondVar not_full, not_empty;
  std::deque<int> queue;
  bool closed = false;
  std::atomic<std::int64_t> in{0};
  std::atomic<std::int64_t> out{0};
  const test::RaceBudget budget;

  auto put = [&](std::uint32_t id) {
    test::Random random(id);
    while (!budget.spent()) {
      std::unique_lock hold(mutex);
      const auto limit = std::chrono::microseconds(random.below(40));
      const auto deadline = random.one_in(2) ? Deadline::after(limit) : Deadline::never();
      CancelScope scope;
      if (random.one_in(8)) scope.cancel();
      if (!not_full.wait_until(
              hold, [&] { return queue.size() < kMost; }, deadline))
        continue;
      queue.push_back(1);
      in.fetch_add(1, std::memory_order_relaxed);
      not_empty.notify_one();
    }
  };
  auto take = [&](std::uint32_t id) {
    test::Random random(id);
    for (;;) {
      std::unique_lock hold(mutex);
      const auto limit = std::chrono::microseconds(random.below(40));
      const auto deadline = random.one_in(2) ? Deadline::after(limit) : Deadline::never();
      if (!not_empty.wait_until(
              hold, [&] { return closed || !queue.empty(); }, deadline))
        continue;
      if (queue.empty()) return;
      queue.pop_front();
      out.fetch_add(1, std::memory_order_relaxed);
      not_full.notify_one();
    }
  };
  test::ForeignThreads taking;
  std::vector<JoinHandle<void>> putters, takers;
  taking.start([&] { take(200); });
  for (std::uint32_t id = 0; id < 3; ++id) {
    putters.push_back(spawn([&, id] { put(id); }, {.hub = static_cast<int>(id)}));
    takers.push_back(spawn([&, id] { take(10 + id); }, {.hub = static_cast<int>(id)}));
  }
  test::ForeignThreads putting;
  putting.start([&] { put(100); });
  putting.join();
  for (auto& putter : putters)
    EXPECT_TRUE(putter.join());
  {
    std::lock_guard hold(mutex);
    closed = true;
    not_empty.notify_all();
  }
  for (auto& taker : takers)
    EXPECT_TRUE(taker.join());
  taking.join();
  EXPECT_EQ(in.load(), out.load());
  EXPECT_GT(in.load(), 0);
}

// Each notify_one() is consumed by exactly one waiter that reports it, for as long as one waits.
FIBER_TEST(CondVarRace, NoNotificationIsLostToATimeout) {
  const test::RaceBudget budget;
  test::Random random(0);
  do {
    Mutex mutex;
    CondVar changed;
    std::atomic<bool> entered{false};
    auto first = spawn(
        [&] {
          std::unique_lock hold(mutex);
          entered.store(true);
          return changed.wait(hold, Deadline::after(std::chrono::microseconds(20)));
        },
        {.hub = 0});
    test::yield_until([&] { return entered.load(); });
    auto second = spawn(
        [&] {
          std::unique_lock hold(mutex);
          return changed.wait(hold);
        },
        {.hub = 1});
    until_parked(second.handle(), WaitReason::cond_var);
    for (std::uint32_t i = random.below(40); i > 0; --i)
      this_fiber::yield();
    changed.notify_one();
    if (first.join()) {
      EXPECT_FALSE(second.done());
      changed.notify_one();
    }
    EXPECT_TRUE(second.join());
  } while (!budget.spent());
}

}  // namespace
}  // namespace runloom
