#include "runloom/sched/scheduler.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "runloom/sched/blocking.hpp"
#include "runloom/sched/cancel.hpp"
#include "support/child.hpp"
#include "support/fiber_test.hpp"

namespace runloom {
namespace {

using namespace std::chrono_literals;
using test::run_child;

#ifdef RUNLOOM_TEST_TSAN
constexpr bool kTsan = true;
#else
constexpr bool kTsan = false;
#endif

// As test_fibers, for tests that make them over and over: tsan takes milliseconds for each.
constexpr int few_fibers(int n) {
  return kTsan ? std::min(n, 300) : test::test_fibers(n);
}

// Each test on one and on two hubs, from an OS thread.
class SchedulerTest : public testing::TestWithParam<int> {
 protected:
  Options options() const { return {.hubs = GetParam()}; }
  test::HangGuard guard_;
};
INSTANTIATE_TEST_SUITE_P(Hubs, SchedulerTest, testing::Values(1, 2));

// Parks until foreign or cancelled; adds itself to `counter` when its frame is left.
struct Guarded {
  std::atomic<int>* left;
  ~Guarded() { ++*left; }
};

// ---------------------------------------------------------------- runs

TEST_P(SchedulerTest, RunReturnsWhatMainReturns) {
  Scheduler scheduler(options());
  EXPECT_EQ(scheduler.run([] { return 42; }).value(), 42);
  EXPECT_TRUE(scheduler.run([] {}));
  EXPECT_EQ(scheduler.run([]() -> Result<int> { return fail(Errc::closed); }).error(),
            Errc::closed);
  EXPECT_THROW((void)scheduler.run([] { throw std::runtime_error("main"); }), std::runtime_error);
  EXPECT_EQ(scheduler.run([] { return 43; }).value(), 43) << "and goes on";
}

TEST_P(SchedulerTest, RunWithNothingToDoReturnsZero) {
  Scheduler scheduler(options());
  EXPECT_EQ(scheduler.run().value(), 0u);
  EXPECT_EQ(scheduler.run().value(), 0u);
}

TEST_P(SchedulerTest, RunEndsWhenEveryFiberHasEndedAndCountsThem) {
  Scheduler scheduler(options());
  std::atomic<int> done = 0;
  for (int i = 0; i < 10; ++i)
    (void)scheduler.spawn([&] {
      this_fiber::yield();
      (void)go([&] {
        (void)this_fiber::sleep_for(1ms);
        ++done;
      });
    });
  EXPECT_EQ(scheduler.run().value(), 20u);
  EXPECT_EQ(done, 10);
}

TEST(Run, MakesASchedulerForMain) {
  EXPECT_EQ(run([] { return spawn([] { return 5; }).join().value(); }).value(), 5);
}

// The hang limit counts for each run: all of them together take a busy machine long.
class SchedulerRuns : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Hubs, SchedulerRuns, testing::Values(1, 2));

TEST_P(SchedulerRuns, S20_RunReturnsOnlyWhenAllHaveEnded) {
  const int count = few_fibers(30'000);
  const int runs = test::kSanitized ? 5 : 50;
  Scheduler scheduler({.hubs = GetParam()});
  std::atomic<long> ended = 0;
  for (int i = 1; i <= runs; ++i) {
    const test::HangGuard guard;
    auto ran = scheduler.run([&] {
      for (int k = 0; k < count; ++k)
        ASSERT_TRUE(go([&] { ended.fetch_add(1, std::memory_order_relaxed); }));
    });
    ASSERT_TRUE(ran);
    ASSERT_EQ(ended, long{i} * count);
    ASSERT_EQ(scheduler.stats().live, 0u);
  }
}

TEST_P(SchedulerTest, CurrentIsTheSchedulerOfTheThread) {
  EXPECT_EQ(Scheduler::current(), nullptr);
  Scheduler scheduler(options());
  EXPECT_EQ(Scheduler::current(), nullptr);
  (void)scheduler.run([&] {
    EXPECT_EQ(Scheduler::current(), &scheduler);
    EXPECT_EQ(Hub::current()->index(), 0) << "main runs on the calling thread's hub";
  });
  EXPECT_EQ(Scheduler::current(), nullptr);
}

TEST_P(SchedulerTest, BoundThreadSpawnsOutsideOfARun) {
  Scheduler scheduler(options());
  scheduler.bind_thread();
  EXPECT_EQ(Scheduler::current(), &scheduler);
  auto handle = spawn([] { return 3; });
  EXPECT_FALSE(handle.done());
  EXPECT_EQ(scheduler.run().value(), 1u);
  EXPECT_EQ(handle.join().value(), 3);
  EXPECT_EQ(Scheduler::current(), &scheduler) << "still bound after a run";
  scheduler.unbind_thread();
  EXPECT_EQ(Scheduler::current(), nullptr);
}

TEST(SchedulerNesting, RunOfAnotherSchedulerInsideAFiber) {
  Scheduler outer;
  auto ran = outer.run([&] {
    Scheduler inner;
    const int value = inner
                          .run([&] {
                            EXPECT_EQ(Scheduler::current(), &inner);
                            return spawn([] { return 9; }).join().value();
                          })
                          .value();
    EXPECT_EQ(Scheduler::current(), &outer);
    this_fiber::yield();
    return value + spawn([] { return 1; }).join().value();
  });
  EXPECT_EQ(ran.value(), 10);
}

// ---------------------------------------------------------------- nested runs

TEST_P(SchedulerTest, NestedRunWaitsForTheOthers) {
  Scheduler scheduler(options());
  auto ran = scheduler.run([&] {
    std::atomic<int> done = 0;
    for (int i = 0; i < 5; ++i)
      EXPECT_TRUE(go(
          [&] {
            (void)this_fiber::sleep_for(1ms);
            ++done;
          },
          {.hub = 0}));  // ours, so that none ends before the run begins
    auto drained = scheduler.run();
    EXPECT_TRUE(drained);
    EXPECT_EQ(*drained, 5u);
    EXPECT_EQ(done, 5);
    EXPECT_EQ(scheduler.run().value(), 0u);
    EXPECT_EQ(scheduler.run([] { return 8; }).value(), 8);
  });
  EXPECT_TRUE(ran);
}

TEST_P(SchedulerTest, NestedRunsInSeveralFibersEndTogether) {
  Scheduler scheduler(options());
  std::atomic<int> ended = 0;
  auto ran = scheduler.run([&] {
    for (int i = 0; i < 4; ++i)
      EXPECT_TRUE(go([&] {
        EXPECT_TRUE(scheduler.run());
        ++ended;
      }));
    (void)this_fiber::sleep_for(1ms);
    EXPECT_EQ(ended, 0) << "this fiber still lives and is in no nested run";
  });
  EXPECT_TRUE(ran);
  EXPECT_EQ(ended, 4);
}

TEST_P(SchedulerTest, NestedRunIsTheOneThatSeesADeadlock) {
  auto quiet = options();
  quiet.deadlock = DeadlockMode::fail;
  Scheduler scheduler(quiet);
  auto ran = scheduler.run([&] {
    auto stuck = spawn([] { return this_fiber::park(); });
    EXPECT_EQ(scheduler.run().error(), Errc::deadlock);
    stuck.handle().unpark();
    EXPECT_TRUE(stuck.join());
    EXPECT_TRUE(scheduler.run());
  });
  EXPECT_TRUE(ran);
}

TEST_P(SchedulerTest, NestedRunCanBeCancelled) {
  Scheduler scheduler(options());
  auto ran = scheduler.run([&] {
    CancelScope scope(Deadline::after(1ms));
    EXPECT_TRUE(go([] { (void)this_fiber::sleep_for(10ms); }));
    EXPECT_EQ(scheduler.run().error(), Errc::timed_out);
  });
  EXPECT_TRUE(ran);
}

// ---------------------------------------------------------------- deadlock

TEST_P(SchedulerTest, DeadlockIsFoundAndAWakeWithTheNextRunResumes) {
  for (DeadlockMode mode : {DeadlockMode::off, DeadlockMode::warn, DeadlockMode::fail}) {
    auto chosen = options();
    chosen.deadlock = mode;
    Scheduler scheduler(chosen);
    testing::internal::CaptureStderr();
    auto stuck = scheduler.spawn([] { return this_fiber::park(); }, {.name = "stuck"});
    EXPECT_EQ(scheduler.run().error(), Errc::deadlock);
    const std::string text = testing::internal::GetCapturedStderr();
    if (mode == DeadlockMode::warn) {
      EXPECT_NE(text.find("runloom: all fibers are blocked -- deadlock\n"), std::string::npos);
      EXPECT_NE(text.find("'stuck' hub "), std::string::npos) << text;
      EXPECT_NE(text.find("parked in park for "), std::string::npos) << text;
    } else {
      EXPECT_EQ(text, "");
    }
    EXPECT_FALSE(stuck.done());
    stuck.handle().unpark();
    EXPECT_EQ(scheduler.run().value(), 1u);
    EXPECT_TRUE(stuck.join());
  }
}

TEST_P(SchedulerTest, DeadlockOfMainIsRunsError) {
  auto quiet = options();
  quiet.deadlock = DeadlockMode::off;
  Scheduler scheduler(quiet);
  EXPECT_EQ(scheduler.run([] { return this_fiber::park(); }).error(), Errc::deadlock);
}

TEST_P(SchedulerTest, SleepersAndForeignWakesAreNoDeadlock) {
  Scheduler scheduler(options());
  std::thread waker;
  auto ran = scheduler.run([&] {
    auto sleeper = spawn([] { return this_fiber::sleep_for(5ms); });
    auto timed = spawn([] { return this_fiber::park(Deadline::after(5ms)); });
    auto foreign = spawn([] { return this_fiber::park({}, true); });
    waker = std::thread([handle = foreign.handle()] {
      std::this_thread::sleep_for(10ms);  // longer than anything else here has to do
      handle.unpark();
    });
    EXPECT_TRUE(foreign.join());
    EXPECT_TRUE(sleeper.join());
    EXPECT_EQ(timed.join().error(), Errc::timed_out);
  });
  waker.join();
  EXPECT_TRUE(ran) << ran.error().message();
}

// ---------------------------------------------------------------- stop

TEST_P(SchedulerTest, StopLeavesTheRunAndTheNextOneResumes) {
  Scheduler scheduler(options());
  std::atomic<int> rounds = 0;
  std::atomic<bool> finish = false;
  auto worker = scheduler.spawn([&] {
    while (!finish) {
      if (++rounds == 100) scheduler.stop();
      this_fiber::yield();
    }
    return rounds.load();
  });
  EXPECT_TRUE(scheduler.run());
  EXPECT_FALSE(worker.done());
  const int reached = rounds;
  EXPECT_GE(reached, 100);
  std::this_thread::yield();
  EXPECT_EQ(rounds, reached) << "nothing runs outside of a run";
  finish = true;
  EXPECT_EQ(scheduler.run().value(), 1u);
  EXPECT_GE(worker.join().value(), 100);
}

TEST_P(SchedulerTest, StopBeforeARunIsCleared) {
  Scheduler scheduler(options());
  scheduler.stop();
  EXPECT_EQ(scheduler.run([] { return 1; }).value(), 1);
}

TEST_P(SchedulerTest, RunOfAMainThatWasStoppedFailsWithCancelled) {
  Scheduler scheduler(options());
  auto ran = scheduler.run([&] {
    scheduler.stop();
    (void)this_fiber::sleep_for(1h);
    return 1;
  });
  EXPECT_EQ(ran.error(), Errc::cancelled);
}

TEST_P(SchedulerTest, StopFromAnotherThreadWakesSleepingHubs) {
  for (int i = 0; i < 50; ++i) {
    auto scheduler = std::make_unique<Scheduler>(options());
    std::atomic<bool> parked = false;
    auto fiber = scheduler->spawn([&] {
      parked = true;
      return this_fiber::park({}, true);
    });
    std::thread stopper([&] {
      while (!parked)
        std::this_thread::yield();
      scheduler->stop();
    });
    EXPECT_TRUE(scheduler->run());
    EXPECT_FALSE(fiber.done());
    fiber.detach();
    // The thread may still be inside stop(): the scheduler waits for it.
    scheduler.reset();
    stopper.join();
  }
}

Scheduler* signalled = nullptr;
TEST_P(SchedulerTest, StopInASignalHandler) {
  Scheduler scheduler(options());
  signalled = &scheduler;
  auto* before = ::signal(SIGUSR1, [](int) { signalled->stop(); });
  // On the thread that called run(): those of the other hubs block all signals.
  auto fiber = scheduler.spawn(
      [] {
        ::raise(SIGUSR1);
        return this_fiber::park({}, true);
      },
      {.hub = 0});
  EXPECT_TRUE(scheduler.run());
  EXPECT_FALSE(fiber.done());
  ::signal(SIGUSR1, before);
}

// ---------------------------------------------------------------- the end

TEST_P(SchedulerTest, S08_EndCancelsParkedFibersAndRunsTheirGuardsOnce) {
  constexpr int kEach = 50;
  std::atomic<int> left = 0, cancelled = 0;
  {
    Scheduler scheduler(options());
    (void)scheduler.run([&] {
      for (int i = 0; i < kEach; ++i) {
        EXPECT_TRUE(go([&] {
          Guarded guard{&left};
          if (this_fiber::park().error() == Errc::cancelled) ++cancelled;
        }));
        EXPECT_TRUE(go([&] {
          Guarded guard{&left};
          if (this_fiber::sleep_for(1h).error() == Errc::cancelled) ++cancelled;
          // Every park fails from now on, behind a shield as well.
          Shield shield;
          if (this_fiber::sleep_for(1h).error() == Errc::cancelled) ++cancelled;
        }));
        EXPECT_TRUE(go([&] {
          Guarded guard{&left};
          auto child = spawn([&] {
            Guarded inner{&left};
            return this_fiber::park({}, true);
          });
          if (child.join().error() == Errc::cancelled) ++cancelled;
        }));
      }
      this_fiber::yield();
      scheduler.stop();
    });
    EXPECT_EQ(left, 0);
  }
  EXPECT_EQ(left, 4 * kEach);
  EXPECT_EQ(cancelled, 4 * kEach);
}

TEST_P(SchedulerTest, S08_FibersThatNeverRanDoRun) {
  // They were promised to run, and find every park cancelled.
  std::atomic<int> ran = 0;
  {
    Scheduler scheduler(options());
    for (int i = 0; i < 10; ++i)
      (void)scheduler.spawn([&] { ran += this_fiber::park().error() == Errc::cancelled; });
  }
  EXPECT_EQ(ran, 10);
}

TEST_P(SchedulerTest, S08_WakersAndWakesWhileItEnds) {
  // Two fibers that wake each other while every park fails: a fiber must not be queued twice.
  std::atomic<int> rounds = 0;
  {
    Scheduler scheduler(options());
    (void)scheduler.run([&] {
      static FiberHandle peer[2];
      for (int i = 0; i < 2; ++i)
        peer[i] = *go([&, i] {
          (void)this_fiber::park();
          for (int k = 0; k < 500; ++k) {
            peer[1 - i].unpark();
            (void)this_fiber::park();
            ++rounds;
          }
        });
      this_fiber::yield();
      scheduler.stop();
    });
  }
  EXPECT_EQ(rounds, 1000);
}

TEST_P(SchedulerTest, S08_WhatDoesNotEndIsReportedByNameAndLeaked) {
  testing::internal::CaptureStderr();
  FiberHandle handle;
  JoinHandle<void> join;
  static std::atomic<bool> forever = false;
  {
    Scheduler scheduler(options());
    (void)scheduler.run([&] {
      // Ignores that it is cancelled.
      join = spawn(
          [] {
            while (!forever)
              (void)this_fiber::park();
          },
          {.name = "stubborn"});
      handle = join.handle();
      EXPECT_TRUE(go([] { (void)this_fiber::park(); }, {.name = "polite"}));
      this_fiber::yield();
      scheduler.stop();
    });
  }
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("runloom: 1 fibers did not end when their scheduler did; leaked:\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("'stubborn'"), std::string::npos) << text;
  EXPECT_EQ(text.find("'polite'"), std::string::npos) << text;
  // Nobody is harmed who still has its name.
  EXPECT_FALSE(handle.alive());
  EXPECT_FALSE(handle.unpark());
  EXPECT_FALSE(handle.cancel());
  EXPECT_EQ(join.join().error(), Errc::cancelled);
}

TEST(SchedulerEnd, S08_ManyParkedFibersEndWithinTheBound) {
  const int count = few_fibers(20'000);
  std::atomic<int> left = 0;
  testing::internal::CaptureStderr();
  {
    Scheduler scheduler;
    (void)scheduler.run([&] {
      for (int i = 0; i < count; ++i)
        ASSERT_TRUE(go([&] {
          Guarded guard{&left};
          (void)this_fiber::park();
        }));
      this_fiber::yield();
      scheduler.stop();
    });
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(left, count);
}

TEST(SchedulerEnd, S26_AnotherSchedulerAfterTheFirst) {
  for (int i = 0; i < 20; ++i) {
    Scheduler scheduler({.hubs = 1 + i % 3});
    EXPECT_EQ(scheduler
                  .run([&] {
                    EXPECT_TRUE(go([] { (void)this_fiber::park(); }));
                    this_fiber::yield();
                    const int joined = spawn([i] { return i; }).join().value();
                    scheduler.stop();  // at the next switch: the fiber parked above stays
                    return joined;
                  })
                  .value(),
              i);
  }
}

TEST(SchedulerEnd, S26_ExitWithParkedFibersKeepsTheExitCode) {
  if (kTsan) GTEST_SKIP() << "tsan refuses to start threads after a fork of several";
  const auto end = run_child([] {
    Scheduler scheduler({.hubs = 2});
    (void)scheduler.run([] {
      for (int i = 0; i < 1'000; ++i)
        EXPECT_TRUE(go([] { (void)this_fiber::park(); }));
      this_fiber::yield();
      std::exit(7);  // on a fiber, exit handlers and all
    });
    return 1;
  });
#ifndef RUNLOOM_TEST_ASAN  // whose leak check at exit looks at no fiber's stack
  EXPECT_TRUE(end.exited);
  EXPECT_EQ(end.code, 7) << end.signal << end.out;
#endif
}

TEST_P(SchedulerTest, ShutdownTellsHowManyAreLeft) {
  Scheduler scheduler(options());
  (void)scheduler.spawn([] { (void)this_fiber::park(); });
  EXPECT_EQ(scheduler.shutdown(), 0u);
  EXPECT_EQ(scheduler.shutdown(), 0u);
}

TEST_P(SchedulerTest, CancelAllCancelsItsOwnFibersOnly) {
  Scheduler other;
  auto untouched = other.spawn([] { return this_fiber::park(Deadline::after(1ms)); });
  Scheduler scheduler(options());
  auto ran = scheduler.run([&] {
    std::vector<JoinHandle<Result<void>>> parked;
    for (int i = 0; i < 20; ++i)
      parked.push_back(spawn([] { return this_fiber::park(); }));
    this_fiber::yield();
    scheduler.cancel_all();
    EXPECT_EQ(this_fiber::check_cancelled().error(), Errc::cancelled);
    this_fiber::handle().uncancel();
    for (auto& fiber : parked)
      EXPECT_EQ(fiber.join().error(), Errc::cancelled);
  });
  EXPECT_TRUE(ran);
  EXPECT_TRUE(other.run());
  EXPECT_EQ(untouched.join().error(), Errc::timed_out);
}

// ---------------------------------------------------------------- limits

TEST_P(SchedulerTest, MaxFibers) {
  auto limited = options();
  limited.max_fibers = 10;
  Scheduler scheduler(limited);
  auto ran = scheduler.run([&] {  // the first of the ten
    std::vector<JoinHandle<Result<void>>> parked;
    for (int i = 0; i < 9; ++i)
      parked.push_back(spawn([] { return this_fiber::park(); }));
    auto refused = spawn([] {});
    EXPECT_EQ(refused.error(), Errc::fiber_limit);
    EXPECT_EQ(scheduler.stats().live, 10u);
    parked.back().handle().unpark();
    EXPECT_TRUE(parked.back().join());
    test::yield_until([&] { return scheduler.stats().live < 10; });
    parked.back() = spawn([] { return this_fiber::park(); });
    EXPECT_TRUE(parked.back());
    scheduler.set_max_fibers(0);
    EXPECT_TRUE(spawn([] {}).join());
    for (auto& fiber : parked)
      fiber.handle().unpark();
    for (auto& fiber : parked)
      EXPECT_TRUE(fiber.join());
  });
  EXPECT_TRUE(ran);
}

TEST(SchedulerLimits, OptionsAtTheirExtremes) {
  for (const auto& [hubs, spin, stall] :
       {std::tuple(0, std::chrono::microseconds::max(), std::chrono::milliseconds::max()),
        std::tuple(INT_MIN, std::chrono::microseconds::min(), std::chrono::milliseconds::min())}) {
    Scheduler scheduler({.hubs = hubs,
                         .max_fibers = UINT64_MAX,
                         .idle_spin = spin,
                         .stall_threshold = stall,
                         .blocking_threads = SIZE_MAX});
    EXPECT_EQ(scheduler.hubs(), 1);
    EXPECT_GE(scheduler.options().idle_spin, 0us);
    EXPECT_LE(scheduler.options().idle_spin, 60s);
    EXPECT_TRUE(scheduler.run([] {
      EXPECT_TRUE(this_fiber::sleep_for(1ms));
      EXPECT_EQ(blocking([] { return 7; }).value(), 7);
    }));
  }
  Scheduler none({.stack_size = 0});
  EXPECT_EQ(none.spawn([] {}).error(), Errc::stack_size);
}

TEST(SchedulerLimits, DefaultStackSize) {
  Scheduler scheduler({.stack_size = 128 * 1024});
  (void)scheduler.run([&] {
    EXPECT_EQ(spawn([] { return this_fiber::stack_left() / 1024; }).join().value() / 8, 127 / 8);
    scheduler.set_default_stack_size(20'000);
    const std::size_t left = spawn([] { return this_fiber::stack_left(); }).join().value();
    EXPECT_LT(left, 20'480u);
  });
}

// R04: a hub thread that can't start is an error of run(), and the scheduler works later.
TEST(SchedulerLimits, R04_HubThreadsThatCanNotStart) {
  if (kTsan) GTEST_SKIP() << "tsan refuses to start threads after a fork of several";
  const auto end = run_child([] {
    rlimit before{}, none{0, 0};
    ::getrlimit(RLIMIT_NPROC, &before);
    none.rlim_max = before.rlim_max;
    ::setrlimit(RLIMIT_NPROC, &none);
    if (::getuid() == 0 && ::setresuid(65534, 65534, 0) != 0) return 77;  // root has no limit
    Scheduler scheduler({.hubs = 2});
    auto refused = scheduler.run([] { return 1; });
    if (refused || refused.error() != Errc::thread_limit) return 1;
    ::setrlimit(RLIMIT_NPROC, &before);
    auto ran = scheduler.run([] { return spawn([] { return 5; }, {.hub = 1}).join().value(); });
    return ran && *ran == 5 ? 0 : 2;
  });
  if (end.exited && end.code == 77) GTEST_SKIP() << "may not become another user";
  EXPECT_EQ(end.code, 0) << end.signal << end.out;
}

// ---------------------------------------------------------------- stats

TEST_P(SchedulerTest, Stats) {
  Scheduler scheduler(options());
  auto ran = scheduler.run([&] {
    auto sleeper = spawn([] { return this_fiber::sleep_for(1h); });
    auto foreign = spawn([] { return this_fiber::park({}, true); });
    test::until_parked(sleeper.handle(), WaitReason::sleep);
    test::until_parked(foreign.handle(), WaitReason::park);
    Stats stats = scheduler.stats();
    EXPECT_EQ(stats.spawned, 3u);
    EXPECT_EQ(stats.live, 3u);
    EXPECT_EQ(stats.completed, 0u);
    EXPECT_EQ(stats.sleeping, 1u);
    EXPECT_EQ(stats.io_parked, 1u);
    EXPECT_EQ(stats.ready, 0u);
    EXPECT_GT(stats.turns, 0u);
    EXPECT_GT(stats.stacks_mapped, 0u);
    sleeper.cancel();
    foreign.cancel();
    (void)sleeper.join();
    (void)foreign.join();
  });
  EXPECT_TRUE(ran);
  const Stats stats = scheduler.stats();
  EXPECT_EQ(stats.spawned, 3u);
  EXPECT_EQ(stats.completed, 3u);
  EXPECT_EQ(stats.live, 0u);
  EXPECT_EQ(stats.sleeping, 0u);
  EXPECT_EQ(stats.io_parked, 0u);
  EXPECT_GE(stats.switches, 3u);
}

TEST(SchedulerStats, LeastLoadedHub) {
  Scheduler scheduler({.hubs = 3});
  auto ran = scheduler.run([&] {
    std::vector<JoinHandle<Result<void>>> parked;
    for (int hub : {0, 0, 1, 1, 1, 2})
      parked.push_back(spawn([] { return this_fiber::park(); }, {.hub = hub}));
    EXPECT_EQ(scheduler.least_loaded_hub(), 2);
    for (int i = 0; i < 9; ++i)  // main stands on hub 0
      parked.push_back(
          spawn([] { return this_fiber::park(); }, {.hub = scheduler.least_loaded_hub()}));
    scheduler.cancel_all();
    this_fiber::handle().uncancel();
    for (auto& fiber : parked)
      (void)fiber.join();
  });
  EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace runloom
