// The protocol of waits: one claim ends a wait, a loser consumes nothing, fibers and OS threads
// alike.
#include "runloom/sched/park.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <iterator>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runloom/sched/cancel.hpp"
#include "runloom/sched/channel.hpp"
#include "runloom/sched/scheduler.hpp"
#include "runloom/sched/spin_lock.hpp"
#include "support/fiber_test.hpp"
#include "support/race.hpp"

namespace runloom::detail {
namespace {

using namespace std::chrono_literals;

constexpr WakeCode kMine = kWakeUser + 5;

// The rules hold for both kinds of waiter: `body` runs on a fiber and on an OS thread.
template <class Body>
void on_both(Body body) {
  body();
  std::thread(body).join();
}

TEST(Park, ClaimBeforeTheWaitIsNotLost) {
  Scheduler scheduler;
  EXPECT_TRUE(scheduler.run([] {
    on_both([] {
      const WaitToken token = begin_wait();
      EXPECT_TRUE(wake(token, kMine));
      // Whatever the deadline: it was claimed.
      EXPECT_EQ(wait(token, {.deadline = Deadline::now()}), kMine);
    });
  }));
}

TEST(Park, OnlyOneClaimWins) {
  Scheduler scheduler;
  EXPECT_TRUE(scheduler.run([] {
    on_both([] {
      const WaitToken token = begin_wait();
      EXPECT_TRUE(claim(token, kMine));
      EXPECT_FALSE(claim(token, kMine + 1));
      EXPECT_FALSE(try_abandon(token)) << "the wake must be consumed";
      schedule(token.waiter);
      EXPECT_EQ(wait(token, {}), kMine);
      EXPECT_FALSE(claim(token, kMine)) << "the wait is over";
    });
  }));
}

TEST(Park, AbandonedWaitCanNotBeClaimed) {
  Scheduler scheduler;
  EXPECT_TRUE(scheduler.run([] {
    on_both([] {
      const WaitToken token = begin_wait();
      EXPECT_TRUE(try_abandon(token));
      EXPECT_FALSE(claim(token, kMine));
      const WaitToken next = begin_wait();
      EXPECT_NE(next.ticket, token.ticket);
      EXPECT_FALSE(claim(token, kMine)) << "a token of an earlier wait";
      EXPECT_TRUE(wake(next, kMine));
      EXPECT_EQ(wait(next, {}), kMine);
    });
  }));
}

TEST(Park, DeadlineEndsTheWait) {
  Scheduler scheduler;
  EXPECT_TRUE(scheduler.run([] {
    on_both([] {
      WaitToken token = begin_wait();
      EXPECT_EQ(wait(token, {.deadline = Deadline::now()}), kWakeTimedOut);
      EXPECT_FALSE(claim(token, kMine));
      token = begin_wait();
      const std::int64_t start = monotonic_ns();
      EXPECT_EQ(wait(token, {.deadline = Deadline::after(2ms)}), kWakeTimedOut);
      EXPECT_GE(monotonic_ns() - start, 2'000'000);
      EXPECT_FALSE(claim(token, kMine));
    });
  }));
}

TEST(Park, ErrorsOfCodes) {
  EXPECT_EQ(wake_error(kWakeTimedOut), Errc::timed_out);
  EXPECT_EQ(wake_error(kWakeCancelled), Errc::cancelled);
  EXPECT_EQ(wake_error(kWakeClosed), Errc::closed);
  EXPECT_EQ(wake_error(kWakeForbidden), Errc::park_forbidden);
}

FIBER_TEST(Park, UncancellableWaitIgnoresCancelAndScopes) {
  std::atomic<const void*> address = nullptr;
  WaitToken token;
  auto fiber = spawn([&] {
    CancelScope scope(Deadline::after(1ms));
    token = begin_wait();
    address = &token;
    const WakeCode code = wait(token, {.cancellable = false, .external = true});
    EXPECT_EQ(this_fiber::sleep_for(1h).error(), Errc::timed_out) << "pending until here";
    return code;
  });
  test::yield_until([&] { return address != nullptr; });
  test::until_parked(fiber.handle(), WaitReason::park);
  fiber.cancel();
  EXPECT_TRUE(this_fiber::sleep_for(5ms));
  EXPECT_FALSE(fiber.done());
  EXPECT_TRUE(wake(token, kMine));
  EXPECT_EQ(fiber.join().value(), kMine);
}

FIBER_TEST(Park, ForbiddenWaitLeavesNothingBehind) {
  const WaitToken token = begin_wait();
  {
    this_fiber::ForbidPark forbid;
    EXPECT_EQ(wait(token, {.deadline = Deadline::after(1h)}), kWakeForbidden);
  }
  EXPECT_FALSE(claim(token, kMine));
}

FIBER_TEST(Park, ForbiddenWaitThatWasClaimedStillConsumesTheWake) {
  const WaitToken token = begin_wait();
  EXPECT_TRUE(wake(token, kMine));
  this_fiber::ForbidPark forbid;
  EXPECT_EQ(wait(token, {}), kMine);
}

FIBER_TEST(Park, OnFiber) {
  EXPECT_TRUE(on_fiber());
  bool elsewhere = true;
  std::thread([&] { elsewhere = on_fiber(); }).join();
  EXPECT_FALSE(elsewhere);
}

TEST(WaitList, IsAFifoThatUnlinksAnywhere) {
  WaitList list;
  EXPECT_TRUE(list.empty());
  EXPECT_EQ(list.pop_front(), nullptr);
  WaitNode a({}), b({}), c({}), d({});
  for (WaitNode* node : {&a, &b, &c, &d})
    list.push_back(*node);
  EXPECT_EQ(list.front(), &a);
  list.remove(b);
  EXPECT_FALSE(b.linked);
  list.remove_if_linked(b);
  EXPECT_EQ(list.pop_front(), &a);
  list.remove(d);
  EXPECT_EQ(list.pop_front(), &c);
  EXPECT_TRUE(list.empty());
  list.push_back(a);
  EXPECT_EQ(list.pop_front(), &a);
}

FIBER_TEST(WaitList, ClaimFrontSkipsWaitsThatAreOver) {
  WaitList list;
  const WaitToken over = begin_wait();
  WaitNode stale(over);
  EXPECT_TRUE(try_abandon(over));
  const WaitToken token = begin_wait();
  WaitNode node(token, kMine);
  list.push_back(stale);
  list.push_back(node);
  EXPECT_EQ(list.claim_front(), &node);
  EXPECT_FALSE(stale.linked);
  EXPECT_EQ(list.claim_front(), nullptr);
  schedule(token.waiter);
  EXPECT_EQ(wait(token, {}), kMine);
}

std::atomic<int> hooks_before = 0, hooks_after = 0;
TEST(Park, ThreadWaitHooksStandAroundARealBlock) {
  set_thread_wait_hooks({.before = []() -> void* {
                           ++hooks_before;
                           return &hooks_before;
                         },
                         .after =
                             [](void* state) {
                               EXPECT_EQ(state, &hooks_before);
                               ++hooks_after;
                             }});
  WaitToken token = begin_wait();
  EXPECT_TRUE(wake(token, kMine));
  EXPECT_EQ(wait(token, {}), kMine);
  EXPECT_EQ(hooks_before, 0) << "it did not block";
  token = begin_wait();
  EXPECT_EQ(wait(token, {.deadline = Deadline::after(1ms)}), kWakeTimedOut);
  set_thread_wait_hooks({});
  EXPECT_EQ(hooks_before, 1);
  EXPECT_EQ(hooks_after, 1);
}

// Many claimers at one wait after the other: exactly one wins each, the wait ends with its code,
// and time-outs that race with them consume nothing.
TEST(ParkRace, ExactlyOneClaimerWins) {
  test::HangGuard guard;
  Scheduler scheduler({.hubs = 2});
  auto ran = scheduler.run([] {
    SpinLock lock(LockRank::primitive);
    std::vector<std::pair<WaitToken, std::uint64_t>> posted;  // guarded by lock: waits, serial
    std::atomic<long> won = 0, woken = 0, timed_out = 0;
    std::atomic<bool> stop = false;
    test::ForeignThreads claimers;
    for (unsigned t = 0; t < 2; ++t)
      claimers.start([&, t] {
        test::Random random(100 + t);
        while (!stop) {
          WaitToken token;
          {
            std::lock_guard hold(lock);
            if (posted.empty()) continue;
            token = posted[random.below(static_cast<std::uint32_t>(posted.size()))].first;
          }
          if (wake(token, static_cast<WakeCode>(kWakeUser + t))) ++won;
        }
      });
    std::vector<JoinHandle<void>> waiters;
    for (std::uint64_t w = 0; w < 4; ++w)
      waiters.push_back(spawn([&, w] {
        test::Random random(200 + w);
        for (test::RaceBudget budget; !budget.spent();) {
          const WaitToken token = begin_wait();
          {
            std::lock_guard hold(lock);
            posted.emplace_back(token, w);
          }
          const Deadline deadline =
              random.one_in(2) ? Deadline::after(std::chrono::microseconds(random.below(20)))
                               : Deadline::after(5s);
          const WakeCode code = wait(token, {.deadline = deadline, .external = true});
          {
            std::lock_guard hold(lock);
            std::erase_if(posted, [w](const auto& entry) { return entry.second == w; });
          }
          if (code >= kWakeUser) {
            ++woken;
          } else {
            ASSERT_EQ(code, kWakeTimedOut);
            ++timed_out;
          }
        }
      }));
    for (auto& waiter : waiters)
      EXPECT_TRUE(waiter.join());
    stop = true;
    claimers.join();
    EXPECT_EQ(won, woken);
    EXPECT_GT(won, 0);
  });
  EXPECT_TRUE(ran);
}

// The same for OS threads as waiters.
TEST(ParkRace, ThreadsWaitAndWakeEachOther) {
  constexpr int kRounds = 3'000;
  SpinLock lock(LockRank::primitive);
  WaitList list;  // guarded by lock
  bool closed = false;
  std::atomic<long> woken = 0;
  long given = 0;
  std::vector<std::thread> waiters;
  for (int t = 0; t < 3; ++t)
    waiters.emplace_back([&] {
      for (;;) {
        lock.lock();
        if (closed) {
          lock.unlock();
          return;
        }
        WaitNode node(begin_wait());
        list.push_back(node);
        lock.unlock();
        if (wait(node.token, {.deadline = Deadline::after(50us)}) == kWakeUser) {
          ++woken;
        } else {
          std::lock_guard hold(lock);
          list.remove_if_linked(node);
        }
      }
    });
  while (given < kRounds) {
    lock.lock();
    WaitNode* node = list.claim_front();
    Waiter* waiter = node ? node->token.waiter : nullptr;
    lock.unlock();
    if (!waiter) continue;
    schedule(waiter);
    ++given;
  }
  lock.lock();
  closed = true;
  lock.unlock();
  for (auto& waiter : waiters)
    waiter.join();
  EXPECT_EQ(woken, given);
}

// Thread-local objects wait in their destructors. By then the thread's waiter has gone back to the
// pool, and later threads wait with it.
TEST(Park, ThreadLocalDestructorsMayWait) {
  using Channels = std::vector<std::unique_ptr<Channel<int>>>;
  struct Waits {
    Channel<int>* in = nullptr;
    std::atomic<int>* entered = nullptr;
    int got = 0;
    int* result = &got;
    ~Waits() {
      if (!in) return;
      ++*entered;
      *result = in->recv().value_or(-1);
    }
  };
  constexpr std::size_t kThreads = 4;
  test::HangGuard guard;
  Channels in;
  int results[2 * kThreads] = {};
  std::vector<std::thread> threads;
  std::atomic<int> entered{0};
  const auto start = [&](bool at_the_end) {
    in.push_back(std::make_unique<Channel<int>>());
    int* result = &results[threads.size()];
    threads.emplace_back([at_the_end, result, &entered, from = in.back().get()] {
      thread_local Waits waits;  // made before the thread's waiter, so destroyed after it
      waits.in = at_the_end ? from : nullptr;
      waits.entered = &entered;
      waits.result = result;
      Channel<int> empty;
      EXPECT_EQ(empty.recv(Deadline::after(1ms)).error(), Errc::timed_out);
      if (!at_the_end) *result = from->recv().value_or(-1);
    });
  };
  for (std::size_t i = 0; i < kThreads; ++i)
    start(true);
  while (entered != int{kThreads})
    std::this_thread::yield();
  for (std::size_t i = 0; i < kThreads; ++i)
    start(false);
  for (std::size_t i = 0; i < in.size(); ++i)
    EXPECT_TRUE(in[i]->send(static_cast<int>(i) + 1));
  for (std::thread& thread : threads)
    thread.join();
  for (std::size_t i = 0; i < std::size(results); ++i)
    EXPECT_EQ(results[i], static_cast<int>(i) + 1);
}

}  // namespace
}  // namespace runloom::detail
