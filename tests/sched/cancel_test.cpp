#include "runloom/sched/cancel.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "runloom/sched/scheduler.hpp"
#include "support/fiber_test.hpp"
#include "support/race.hpp"

namespace runloom {
namespace {

using namespace std::chrono_literals;
using test::until_parked;

// ---------------------------------------------------------------- of a fiber

FIBER_TEST(Cancel, EndsAParkedWait) {
  auto fiber = spawn([] { return this_fiber::sleep_for(1h); });
  until_parked(fiber.handle(), WaitReason::sleep);
  fiber.cancel();
  EXPECT_EQ(fiber.join().error(), Errc::cancelled);
}

FIBER_TEST(Cancel, BeforeTheFiberRuns) {
  auto fiber = spawn([] { return this_fiber::park(); });
  fiber.cancel();
  EXPECT_EQ(fiber.join().error(), Errc::cancelled);
}

FIBER_TEST(Cancel, IsLevelTriggered) {
  auto fiber = spawn(
      [] {
        for (int i = 0; i < 3; ++i)
          EXPECT_EQ(this_fiber::sleep_for(1h).error(), Errc::cancelled);
        EXPECT_EQ(this_fiber::check_cancelled().error(), Errc::cancelled);
        EXPECT_EQ(this_fiber::park().error(), Errc::cancelled);
        auto child = spawn([] { return 1; }, {.hub = 0});
        EXPECT_EQ(child.join().error(), Errc::cancelled);
        this_fiber::yield();  // no cancel point
        // What needs no park succeeds.
        this_fiber::handle().unpark();
        EXPECT_TRUE(this_fiber::park());
        this_fiber::handle().uncancel();
        EXPECT_TRUE(this_fiber::check_cancelled());
        EXPECT_TRUE(this_fiber::sleep_for(1us));
        EXPECT_EQ(child.join().value(), 1);
      },
      {.hub = 0});
  fiber.cancel();
  EXPECT_TRUE(fiber.join());
}

FIBER_TEST(Cancel, PermitThatCameFirstWins) {
  auto fiber = spawn([] {
    EXPECT_TRUE(this_fiber::park());
    return this_fiber::park();
  });
  until_parked(fiber.handle(), WaitReason::park);
  fiber.handle().unpark();
  fiber.cancel();
  EXPECT_EQ(fiber.join().error(), Errc::cancelled);
}

// ---------------------------------------------------------------- scopes

FIBER_TEST(CancelScope, CancelEndsWhatIsInsideOnly) {
  {
    CancelScope scope;
    EXPECT_TRUE(this_fiber::check_cancelled());
    scope.cancel();
    EXPECT_TRUE(scope.cancelled());
    EXPECT_EQ(this_fiber::sleep_for(1h).error(), Errc::cancelled);
    EXPECT_EQ(this_fiber::check_cancelled().error(), Errc::cancelled);
  }
  EXPECT_TRUE(this_fiber::check_cancelled());
  EXPECT_TRUE(this_fiber::sleep_for(1us));
}

FIBER_TEST(CancelScope, DeadlineIsTimedOut) {
  CancelScope scope(Deadline::after(2ms));
  EXPECT_FALSE(scope.timed_out());
  const std::int64_t start = monotonic_ns();
  EXPECT_EQ(this_fiber::sleep_for(1h).error(), Errc::timed_out);
  EXPECT_GE(monotonic_ns() - start, 1'000'000);
  EXPECT_TRUE(scope.timed_out());
  EXPECT_FALSE(scope.cancelled());
  EXPECT_EQ(this_fiber::park().error(), Errc::timed_out);
}

FIBER_TEST(CancelScope, TheEarlierDeadlineWins) {
  // A sleep whose own time comes first is no failure.
  {
    CancelScope scope(Deadline::after(1h));
    EXPECT_TRUE(this_fiber::sleep_for(1ms));
  }
  // Bounded twice, the inner one far away.
  {
    CancelScope outer(Deadline::after(1ms));
    CancelScope inner(Deadline::after(1h));
    EXPECT_EQ(this_fiber::sleep_for(2h).error(), Errc::timed_out);
    EXPECT_TRUE(outer.timed_out());
    EXPECT_FALSE(inner.timed_out());
  }
}

FIBER_TEST(CancelScope, InnerScopeLeavesTheOuterAlone) {
  CancelScope outer;
  {
    CancelScope inner(Deadline::now());
    EXPECT_EQ(this_fiber::park().error(), Errc::timed_out);
  }
  EXPECT_TRUE(this_fiber::sleep_for(1us));
  {
    CancelScope inner;
    outer.cancel();
    EXPECT_EQ(this_fiber::park().error(), Errc::cancelled);
  }
}

FIBER_TEST(CancelScope, FromAnotherFiber) {
  std::atomic<CancelScope*> shared = nullptr;
  auto fiber = spawn([&] {
    CancelScope scope;
    shared = &scope;
    auto inside = this_fiber::sleep_for(1h);
    return std::pair(inside.error(), scope.cancelled());
  });
  until_parked(fiber.handle(), WaitReason::sleep);
  shared.load()->cancel();
  EXPECT_EQ(fiber.join().value(), std::pair(make_error_code(Errc::cancelled), true));
}

FIBER_TEST(CancelScope, MovedDeadlineReArmsAParkedWait) {
  std::atomic<CancelScope*> shared = nullptr;
  auto fiber = spawn([&] {
    CancelScope scope(Deadline::after(1h));
    shared = &scope;
    return this_fiber::sleep_for(2h);
  });
  until_parked(fiber.handle(), WaitReason::sleep);
  shared.load()->set_deadline(Deadline::after(2h));  // later
  EXPECT_TRUE(this_fiber::sleep_for(1ms));
  EXPECT_FALSE(fiber.done());
  shared.load()->set_deadline(Deadline::never());
  EXPECT_TRUE(this_fiber::sleep_for(1ms));
  EXPECT_FALSE(fiber.done());
  shared.load()->set_deadline(Deadline::after(1ms));  // earlier
  EXPECT_EQ(fiber.join().error(), Errc::timed_out);
}

FIBER_TEST(CancelScope, DeadlineMovedToTheFutureMakesCallsWorkAgain) {
  CancelScope scope(Deadline::now());
  EXPECT_EQ(this_fiber::park().error(), Errc::timed_out);
  scope.set_deadline(Deadline::after(1h));
  EXPECT_TRUE(this_fiber::sleep_for(1us));
}

FIBER_TEST(Shield, HidesWhatIsOutside) {
  auto fiber = spawn([] {
    CancelScope outer(Deadline::now());
    EXPECT_EQ(this_fiber::sleep_for(1h).error(), Errc::timed_out);
    {
      Shield shield;
      EXPECT_TRUE(this_fiber::check_cancelled());
      EXPECT_TRUE(this_fiber::sleep_for(1ms));
      CancelScope inside(Deadline::after(1ms));  // but not what is inside of it
      EXPECT_EQ(this_fiber::sleep_for(1h).error(), Errc::timed_out);
    }
    EXPECT_EQ(this_fiber::park().error(), Errc::timed_out);
  });
  fiber.cancel();
  EXPECT_TRUE(fiber.join());
}

FIBER_TEST(Shield, HoldsWhileParked) {
  auto fiber = spawn([] {
    {
      Shield shield;
      EXPECT_TRUE(this_fiber::park());
    }
    return this_fiber::park();
  });
  until_parked(fiber.handle(), WaitReason::park);
  fiber.cancel();
  EXPECT_TRUE(this_fiber::sleep_for(1ms));
  EXPECT_FALSE(fiber.done());
  fiber.handle().unpark();
  EXPECT_EQ(fiber.join().error(), Errc::cancelled);
}

// ---------------------------------------------------------------- on OS threads

TEST(CancelScopeThread, BoundsAThreadsWaits) {
  Scheduler scheduler;
  auto fiber = scheduler.spawn([] { (void)this_fiber::park(); });
  {
    CancelScope scope(Deadline::after(1ms));
    EXPECT_EQ(fiber.join().error(), Errc::timed_out);
    EXPECT_EQ(fiber.join().error(), Errc::timed_out);
    Shield shield;
    EXPECT_EQ(fiber.join(Deadline::after(1ms)).error(), Errc::timed_out);
  }
  CancelScope scope;
  scope.cancel();
  EXPECT_EQ(fiber.join().error(), Errc::cancelled);
}

// ---------------------------------------------------------------- S03

// A deadline is moved into the past by another thread while the fiber enters its wait: it always
// wakes, with timed_out; and moved forward again it arms again.
TEST(CancelScopeRace, S03_DeadlineMovedIntoThePastWhileTheWaitBegins) {
  test::HangGuard guard;
  Scheduler scheduler({.hubs = 2});
  const int rounds = test::kSanitized ? 10'000 : 100'000;
  auto ran = scheduler.run([&] {
    CancelScope scope(Deadline::after(1h));
    std::atomic<int> round = 0;  // the mover moves once a round
    test::ForeignThreads mover;
    mover.start([&] {
      for (int seen = 0; seen < rounds; ++seen) {
        while (round.load(std::memory_order_acquire) <= seen) {
        }
        for (int i = seen % 64; i > 0; --i)
          std::atomic_signal_fence(std::memory_order_seq_cst);  // at another moment each time
        scope.set_deadline(Deadline::now());
      }
    });
    for (int i = 0; i < rounds; ++i) {
      scope.set_deadline(Deadline::after(1h));
      round.store(i + 1, std::memory_order_release);
      ASSERT_EQ(this_fiber::park({}, true).error(), Errc::timed_out) << "round " << i;
    }
    scope.set_deadline(Deadline::never());
    mover.join();
  });
  EXPECT_TRUE(ran);
}

// The same between hubs, with cancel and deadlines that move both ways.
TEST(CancelScopeRace, S03_MovedBothWaysAndCancelled) {
  test::HangGuard guard;
  Scheduler scheduler({.hubs = 2});
  auto ran = scheduler.run([&] {
    for (test::RaceBudget budget; !budget.spent();) {
      std::atomic<CancelScope*> shared = nullptr;
      std::atomic<bool> left = false;
      auto waiter = spawn(
          [&] {
            Result<void> outcome;
            {
              CancelScope scope(Deadline::after(1h));
              shared = &scope;
              outcome = this_fiber::park({}, true);
              left = true;
              while (shared != nullptr)  // the mover is done with it
                this_fiber::yield();
            }
            EXPECT_TRUE(this_fiber::check_cancelled());
            return outcome;
          },
          {.hub = 1});
      test::yield_until([&] { return shared != nullptr; });
      CancelScope& scope = *shared;
      scope.set_deadline(Deadline::after(2h));
      scope.set_deadline(Deadline::after(30min));
      const bool cancel = monotonic_ns() % 2 == 0;
      cancel ? scope.cancel() : scope.set_deadline(Deadline::now());
      test::yield_until([&] { return left.load(); });
      shared = nullptr;
      EXPECT_EQ(waiter.join().error(), cancel ? Errc::cancelled : Errc::timed_out);
    }
  });
  EXPECT_TRUE(ran);
}

// Cancels that race with the end of the fiber, with steals and with wakes.
TEST(CancelRace, CancelWhileFibersStartParkAndEnd) {
  test::HangGuard guard;
  Scheduler scheduler({.hubs = 3});
  std::atomic<long> cancelled = 0, slept = 0;
  auto ran = scheduler.run([&] {
    test::Random random(3);
    for (test::RaceBudget budget; !budget.spent();) {
      std::vector<JoinHandle<Result<void>>> fibers;
      for (int i = 0; i < 16; ++i) {
        const auto time = std::chrono::microseconds(random.below(60));
        fibers.push_back(spawn([time] { return this_fiber::sleep_for(time); }));
        if (random.one_in(3)) fibers.back().cancel();
      }
      for (auto& fiber : fibers) {
        if (random.one_in(3)) fiber.cancel();
        auto outcome = fiber.join();
        outcome ? ++slept : ++cancelled;
        if (!outcome) {
          ASSERT_EQ(outcome.error(), Errc::cancelled);
        }
      }
    }
  });
  EXPECT_TRUE(ran);
  EXPECT_GT(slept, 0);
  EXPECT_GT(cancelled, 0);
}

}  // namespace
}  // namespace runloom
