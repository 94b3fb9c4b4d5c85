#include "runloom/sched/blocking.hpp"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "runloom/sched/cancel.hpp"
#include "runloom/sched/scheduler.hpp"
#include "support/child.hpp"
#include "support/fiber_test.hpp"
#include "support/kernel.hpp"
#include "support/race.hpp"

namespace runloom {
namespace {

using namespace std::chrono_literals;
using test::run_child;
using test::until_parked;
using test::yield_until;

#ifdef RUNLOOM_TEST_TSAN
constexpr bool kTsan = true;
#else
constexpr bool kTsan = false;
#endif

// A job that shows that it has begun and ends when told.
struct Gate {
  std::atomic<int> begun = 0;
  std::atomic<bool> open = false;
  void pass() {
    ++begun;
    while (!open)
      std::this_thread::yield();
  }
};

// ---------------------------------------------------------------- values

FIBER_TEST(Blocking, RunsOnAnotherThreadAndReturnsTheValue) {
  const pid_t here = ::gettid();
  EXPECT_NE(blocking([] { return ::gettid(); }).value(), here);
  EXPECT_EQ(::gettid(), here);
  EXPECT_TRUE(blocking([] {}));
  EXPECT_EQ(*blocking([] { return std::make_unique<int>(5); }).value(), 5);
  EXPECT_EQ(blocking([]() -> Result<int> { return fail(Errc::closed); }).error(), Errc::closed);
  EXPECT_EQ(blocking([]() -> Result<int> { return 6; }).value(), 6);
}

FIBER_TEST(Blocking, MayUseTheCallersFrame) {
  std::string text = "a";
  auto append = [&] { text += "b"; };
  for (int i = 0; i < 100; ++i)
    EXPECT_TRUE(blocking(append));
  EXPECT_EQ(text.size(), 101u);
}

FIBER_TEST(Blocking, ExceptionsCrossToTheCaller) {
  try {
    (void)blocking([]() -> int { throw std::runtime_error("over there"); });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "over there");
  }
  EXPECT_THROW((void)blocking([] { throw 5; }), int);
  EXPECT_EQ(blocking([] { return 1; }).value(), 1) << "the thread lives on";
}

TEST(BlockingThread, OffAFiberItRunsRightHere) {
  const pid_t here = ::gettid();
  EXPECT_EQ(blocking([] { return ::gettid(); }).value(), here);
  EXPECT_THROW((void)blocking([] { throw std::runtime_error("here"); }), std::runtime_error);
  EXPECT_TRUE(blocking([] {}, Deadline::now())) << "there is nothing to wait for";
}

FIBER_TEST(Blocking, CallsOverlap) {
  Gate gate;
  std::vector<JoinHandle<Result<void>>> fibers;
  for (int i = 0; i < 4; ++i)
    fibers.push_back(spawn([&] { return blocking([&] { gate.pass(); }); }));
  yield_until([&] { return gate.begun == 4; });  // all at once
  gate.open = true;
  for (auto& fiber : fibers)
    EXPECT_TRUE(fiber.join());
}

FIBER_TEST(Blocking, OthersRunAndItIsNoDeadlock) {
  auto fiber = spawn([] { return blocking([] { ::usleep(5'000); }); });
  until_parked(fiber.handle(), WaitReason::blocking);
  EXPECT_TRUE(fiber.join());
}

// ---------------------------------------------------------------- cancellation

FIBER_TEST(Blocking, ACallThatHasBegunIsWaitedFor) {
  Gate gate;
  auto fiber = spawn([&] {
    auto value = blocking([&] {
      gate.pass();
      return 9;
    });
    EXPECT_EQ(this_fiber::sleep_for(1h).error(), Errc::cancelled) << "still pending";
    return value;
  });
  yield_until([&] { return gate.begun == 1; });
  fiber.cancel();
  EXPECT_TRUE(this_fiber::sleep_for(2ms));
  EXPECT_FALSE(fiber.done());
  gate.open = true;
  EXPECT_EQ(fiber.join().value(), 9);
}

FIBER_TEST(Blocking, DeadlinesDoNotEndACallThatHasBegun) {
  Gate gate;
  auto opener = spawn([&] {
    yield_until([&] { return gate.begun == 2; });
    EXPECT_TRUE(this_fiber::sleep_for(3ms));
    gate.open = true;
  });
  auto other = spawn(
      [&] {
        CancelScope scope(Deadline::after(1h));
        auto mover = spawn(
            [&] {
              yield_until([&] { return gate.begun == 2; });
              scope.set_deadline(Deadline::now());
            },
            {.hub = 0});
        auto value = blocking([&] {
          gate.pass();
          return 2;
        });
        Shield shield;
        EXPECT_TRUE(mover.join());
        return value;
      },
      {.hub = 0});
  EXPECT_EQ(blocking(
                [&] {
                  gate.pass();
                  return 1;
                },
                Deadline::after(5s))
                .value(),
            1);
  EXPECT_EQ(other.join().value(), 2);
  EXPECT_TRUE(opener.join());
}

FIBER_TEST(Blocking, NothingIsBegunWhereTheCallMustFail) {
  bool begun = false;
  auto job = [&] { begun = true; };
  EXPECT_EQ(blocking(job, Deadline::now()).error(), Errc::timed_out);
  {
    CancelScope scope;
    scope.cancel();
    EXPECT_EQ(blocking(job).error(), Errc::cancelled);
  }
  {
    this_fiber::ForbidPark forbid;
    EXPECT_EQ(blocking(job).error(), Errc::park_forbidden);
  }
  EXPECT_FALSE(begun);
}

// ---------------------------------------------------------------- the pool

TEST(BlockingPool, GrowsUpToTheLimit) {
  test::HangGuard guard;
  Scheduler scheduler({.blocking_threads = 2});
  ASSERT_TRUE(detail::retire_blocking_threads(Deadline::after(5s)));
  auto ran = scheduler.run([&] {
    std::atomic<int> inside = 0, most = 0;
    std::vector<JoinHandle<Result<void>>> fibers;
    for (int i = 0; i < 10; ++i)
      fibers.push_back(spawn([&] {
        return blocking([&] {
          const int now = ++inside;
          int seen = most;
          while (seen < now && !most.compare_exchange_weak(seen, now)) {
          }
          while (most < 2)  // the second one comes
            std::this_thread::yield();
          --inside;
        });
      }));
    for (auto& fiber : fibers)
      EXPECT_TRUE(fiber.join());
    EXPECT_EQ(most, 2);
  });
  EXPECT_TRUE(ran);
}

TEST(BlockingPool, QueueIsFirstComeFirstServed) {
  test::HangGuard guard;
  Scheduler scheduler({.blocking_threads = 1});
  ASSERT_TRUE(detail::retire_blocking_threads(Deadline::after(5s)));
  auto ran = scheduler.run([&] {
    Gate gate;
    std::vector<int> order;  // only the one thread adds
    std::vector<JoinHandle<Result<void>>> fibers;
    for (int i = 0; i < 10; ++i)
      fibers.push_back(spawn([&, i] {
        return blocking([&, i] {
          gate.pass();
          order.push_back(i);
        });
      }));
    for (auto& fiber : fibers)
      until_parked(fiber.handle(), WaitReason::blocking);
    gate.open = true;
    for (auto& fiber : fibers)
      EXPECT_TRUE(fiber.join());
    EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  });
  EXPECT_TRUE(ran);
}

TEST(BlockingPool, QueuedCallIsWithdrawn) {
  test::HangGuard guard;
  Scheduler scheduler({.blocking_threads = 1});
  ASSERT_TRUE(detail::retire_blocking_threads(Deadline::after(5s)));
  auto ran = scheduler.run([&] {
    Gate gate;
    auto first = spawn([&] { return blocking([&] { gate.pass(); }); });
    yield_until([&] { return gate.begun == 1; });
    std::atomic<int> begun = 0;
    auto cancelled = spawn([&] { return blocking([&] { ++begun; }); });
    auto late = spawn([&] { return blocking([&] { ++begun; }, Deadline::after(1ms)); });
    auto patient = spawn([&] { return blocking([&] { ++begun; }); });
    until_parked(cancelled.handle(), WaitReason::blocking);
    cancelled.cancel();
    EXPECT_EQ(cancelled.join().error(), Errc::cancelled);
    EXPECT_EQ(late.join().error(), Errc::timed_out);
    gate.open = true;
    EXPECT_TRUE(first.join());
    EXPECT_TRUE(patient.join());
    EXPECT_EQ(begun, 1);
  });
  EXPECT_TRUE(ran);
}

TEST(BlockingPool, ThreadsAreReused) {
  Scheduler scheduler;
  auto ran = scheduler.run([&] {
    std::set<pid_t> seen;
    for (int i = 0; i < 100; ++i) {
      // It idles a moment after its job; until then there may be a second one.
      if (!seen.insert(blocking([] { return ::gettid(); }).value()).second) return true;
      EXPECT_TRUE(this_fiber::sleep_for(1ms));
    }
    return false;
  });
  EXPECT_TRUE(ran.value());
}

TEST(BlockingPool, IdleThreadsLeaveAfterAWhile) {
  test::HangGuard guard;
  ASSERT_TRUE(detail::retire_blocking_threads(Deadline::after(5s)));
  Scheduler scheduler;
  auto ran = scheduler.run([&] {
    std::vector<JoinHandle<Result<void>>> fibers;
    Gate gate;
    for (int i = 0; i < 3; ++i)
      fibers.push_back(spawn([&] { return blocking([&] { gate.pass(); }); }));
    yield_until([&] { return gate.begun == 3; });
    // Retired ones may not be gone quite yet.
    yield_until([] { return test::threads_named("runloom-pool") == 3; });
    gate.open = true;
    for (auto& fiber : fibers)
      EXPECT_TRUE(fiber.join());
    while (test::threads_named("runloom-pool") != 0)  // or the hang limit
      EXPECT_TRUE(this_fiber::sleep_for(10ms));
    EXPECT_TRUE(blocking([] {})) << "and come back";
  });
  EXPECT_TRUE(ran);
}

TEST(BlockingPool, RetireWaitsForRunningJobsAndGivesUpAtTheDeadline) {
  Gate gate;
  struct Job : detail::BlockingJob {
    Gate* gate;
  } job;
  job.gate = &gate;
  job.run = [](detail::BlockingJob& self) noexcept { static_cast<Job&>(self).gate->pass(); };
  ASSERT_TRUE(detail::submit(job));
  while (gate.begun == 0)
    std::this_thread::yield();
  EXPECT_FALSE(detail::retire_blocking_threads(Deadline::after(1ms)));
  EXPECT_FALSE(detail::withdraw(job)) << "it runs";
  gate.open = true;
  EXPECT_TRUE(detail::retire_blocking_threads(Deadline::after(5s)));
  EXPECT_TRUE(detail::retire_blocking_threads(Deadline::now())) << "none is left";
}

TEST(BlockingPool, JobMayFreeItself) {
  struct Job : detail::BlockingJob {
    std::atomic<int>* done;
  };
  std::atomic<int> done = 0;
  for (int i = 0; i < 50; ++i) {
    auto* job = new Job;
    job->done = &done;
    job->run = [](detail::BlockingJob& self) noexcept {
      auto* own = static_cast<Job*>(&self);
      std::atomic<int>& counter = *own->done;
      delete own;
      ++counter;
    };
    ASSERT_TRUE(detail::submit(*job));
  }
  while (done < 50)
    std::this_thread::yield();
}

TEST(BlockingPool, AllSignalsButTheSynchronousOnesAreBlocked) {
  Scheduler scheduler;
  auto mask = scheduler.run([] {
    return blocking([] {
             sigset_t set;
             pthread_sigmask(SIG_BLOCK, nullptr, &set);
             return set;
           })
        .value();
  });
  ASSERT_TRUE(mask);
  for (int blocked : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCHLD, SIGALRM, SIGPIPE})
    EXPECT_TRUE(sigismember(&*mask, blocked)) << blocked;
  for (int open : {SIGSEGV, SIGBUS, SIGFPE, SIGILL})
    EXPECT_FALSE(sigismember(&*mask, open)) << open;
}

// R04: no thread can be had.
TEST(BlockingPool, R04_ThreadLimitIsAnErrorOnlyWithoutAnyThread) {
  if (kTsan) GTEST_SKIP() << "tsan refuses to start threads after a fork of several";
  const auto end = run_child([] {
    rlimit before{}, none{};
    ::getrlimit(RLIMIT_NPROC, &before);
    none = before;
    none.rlim_cur = 0;
    if (::getuid() == 0 && ::setresuid(65534, 65534, 0) != 0) return 77;  // root has no limit
    Scheduler scheduler;
    auto ran = scheduler.run([&] {
      ::setrlimit(RLIMIT_NPROC, &none);
      bool begun = false;
      if (blocking([&] { begun = true; }).error() != Errc::thread_limit || begun) return 1;
      ::setrlimit(RLIMIT_NPROC, &before);
      Gate gate;
      auto first = spawn([&] { return blocking([&] { gate.pass(); }); });
      yield_until([&] { return gate.begun == 1; });
      ::setrlimit(RLIMIT_NPROC, &none);
      // One thread there is: the next call waits for it.
      auto queued = spawn([] { return blocking([] { return 3; }); });
      until_parked(queued.handle(), WaitReason::blocking);
      gate.open = true;
      if (queued.join().value_or(0) != 3) return 2;
      return first.join() ? 0 : 3;
    });
    return ran.value_or(4);
  });
  if (end.exited && end.code == 77) GTEST_SKIP() << "may not become another user";
  EXPECT_EQ(end.code, 0) << end.signal << end.out;
}

// ---------------------------------------------------------------- the end of a scheduler

TEST(BlockingEnd, S08_RunningCallIsWaitedForAndAQueuedOneWithdrawn) {
  test::HangGuard guard;
  ASSERT_TRUE(detail::retire_blocking_threads(Deadline::after(5s)));
  Gate gate;
  std::atomic<int> values = 0;
  std::thread opener;
  {
    Scheduler scheduler({.blocking_threads = 1});
    (void)scheduler.run([&] {
      EXPECT_TRUE(go([&] {
        values += blocking([&] {
                    gate.pass();
                    return 10;
                  }).value_or(0);
      }));
      yield_until([&] { return gate.begun == 1; });
      EXPECT_TRUE(go([&] { values += blocking([] { return 100; }).error() == Errc::cancelled; }));
      this_fiber::yield();
      scheduler.stop();
    });
    opener = std::thread([&] {
      while (values == 0)
        std::this_thread::yield();
      gate.open = true;
    });
  }
  opener.join();
  EXPECT_EQ(values, 11);
}

TEST(BlockingEnd, S08_CallThatOutlivesItsSchedulerIsHarmless) {
  test::HangGuard guard;
  static Gate gate;
  testing::internal::CaptureStderr();
  {
    Scheduler scheduler;
    (void)scheduler.run([&] {
      EXPECT_TRUE(go([] { (void)blocking([] { gate.pass(); }); }, {.name = "in a call"}));
      yield_until([&] { return gate.begun == 1; });
      scheduler.stop();
    });
  }
  EXPECT_NE(
      testing::internal::GetCapturedStderr().find("'in a call' hub 0 parked in blocking call"),
      std::string::npos);
  gate.open = true;
  EXPECT_TRUE(detail::retire_blocking_threads(Deadline::after(5s)));
}

// ---------------------------------------------------------------- races

TEST(BlockingRace, CallsCancelsAndDeadlines) {
  test::HangGuard guard;
  Scheduler scheduler({.hubs = 2, .blocking_threads = 3});
  std::atomic<long> called = 0, values = 0, failures = 0;
  auto ran = scheduler.run([&] {
    std::vector<JoinHandle<void>> fibers;
    std::atomic<bool> stop = false;
    for (unsigned f = 0; f < 8; ++f)
      fibers.push_back(spawn([&, f] {
        test::Random random(f);
        while (!stop) {
          const Deadline deadline =
              random.one_in(2) ? Deadline::after(std::chrono::microseconds(random.below(200)))
                               : Deadline::never();
          CancelScope scope(random.one_in(3)
                                ? Deadline::after(std::chrono::microseconds(random.below(200)))
                                : Deadline::never());
          int frame = 0;
          auto value = blocking(
              [&] {
                ++called;
                frame = 1;
                return 2;
              },
              deadline);
          // Called and its value returned, or not called at all.
          ASSERT_EQ(value.has_value(), frame == 1);
          value ? ++values : ++failures;
        }
      }));
    for (test::RaceBudget budget; !budget.spent();)
      (void)this_fiber::sleep_for(1ms);
    stop = true;
    for (auto& fiber : fibers)
      EXPECT_TRUE(fiber.join());
  });
  EXPECT_TRUE(ran);
  EXPECT_EQ(called, values);
  EXPECT_GT(values, 0);
}

TEST(BlockingRace, ThreadsComeAndGo) {
  test::HangGuard guard;
  Scheduler scheduler({.hubs = 2});
  std::atomic<bool> stop = false;
  std::thread retirer([&] {
    while (!stop)
      (void)detail::retire_blocking_threads(Deadline::after(1s));
  });
  long calls = 0;
  auto ran = scheduler.run([&] {
    for (test::RaceBudget budget; !budget.spent(); ++calls)
      EXPECT_TRUE(blocking([] {}));
  });
  stop = true;
  retirer.join();
  EXPECT_TRUE(ran);
  EXPECT_GT(calls, 0);
}

}  // namespace
}  // namespace runloom
