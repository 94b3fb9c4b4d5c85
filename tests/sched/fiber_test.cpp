#include "runloom/sched/fiber.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "runloom/sched/scheduler.hpp"
#include "support/fiber_test.hpp"
#include "support/race.hpp"

namespace runloom {
namespace {

using namespace std::chrono_literals;
using test::until_parked;
using test::yield_until;

// ---------------------------------------------------------------- results

FIBER_TEST(Fiber, JoinReturnsTheValue) {
  EXPECT_EQ(spawn([] { return 42; }).join().value(), 42);
  EXPECT_TRUE(spawn([] {}).join());
  auto owner = spawn([] { return std::make_unique<int>(7); }).join();
  EXPECT_EQ(**owner, 7);
}

FIBER_TEST(Fiber, ResultOfResultIsFlattened) {
  Result<int> good = spawn([]() -> Result<int> { return 3; }).join();
  EXPECT_EQ(*good, 3);
  Result<int> bad = spawn([]() -> Result<int> { return fail(Errc::closed); }).join();
  EXPECT_EQ(bad.error(), Errc::closed);
  Result<void> nothing = spawn([]() -> Result<void> { return fail(Errc::closed); }).join();
  EXPECT_EQ(nothing.error(), Errc::closed);
}

FIBER_TEST(Fiber, JoinAfterTheEnd) {
  auto handle = spawn([] { return std::string(100, 'x'); });
  yield_until([&] { return handle.done(); });
  EXPECT_EQ(handle.join()->size(), 100u);
  EXPECT_EQ(handle.join().error(), Errc::closed) << "the value is given once";
}

FIBER_TEST(Fiber, ExceptionReachesJoin) {
  auto handle = spawn([]() -> int { throw std::runtime_error("boom"); });
  try {
    (void)handle.join();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "boom");
  }
}

FIBER_TEST(Fiber, ExceptionReachesAJoinThatWaits) {
  auto thrower = spawn([] {
    (void)this_fiber::sleep_for(1ms);
    throw std::runtime_error("late");
  });
  EXPECT_THROW((void)thrower.join(), std::runtime_error);
}

FIBER_TEST(Fiber, JoinMayBeRepeatedAfterATimeout) {
  std::atomic<bool> stop = false;
  auto handle = spawn([&] {
    yield_until([&] { return stop.load(); });
    return 5;
  });
  EXPECT_EQ(handle.join(Deadline::now()).error(), Errc::timed_out);
  EXPECT_EQ(handle.join(Deadline::after(1ms)).error(), Errc::timed_out);
  stop = true;
  EXPECT_EQ(handle.join().value(), 5);
}

FIBER_TEST(Fiber, ManyJoinOneAfterTheOther) {
  std::vector<JoinHandle<int>> chain;
  chain.push_back(spawn([] { return 1; }));
  for (int i = 0; i < 50; ++i)
    chain.push_back(spawn(
        [previous = std::move(chain.back())]() mutable { return previous.join().value() + 1; }));
  EXPECT_EQ(chain.back().join().value(), 51);
}

// Counts the lives of its copies.
struct Counted {
  explicit Counted(std::atomic<int>& count) : live(&count) { ++*live; }
  Counted(const Counted& other) : live(other.live) { ++*live; }
  ~Counted() { --*live; }
  std::atomic<int>* live;
};

FIBER_TEST(Fiber, FunctionIsDestroyedWhenItHasEnded) {
  std::atomic<int> live = 0;
  auto handle = spawn([counted = Counted(live)] { return counted.live->load(); }, {.hub = 0});
  EXPECT_EQ(live, 1);
  EXPECT_EQ(handle.join().value(), 1);
  EXPECT_EQ(live, 0);
}

FIBER_TEST(Fiber, ResultIsDestroyedOnceWhateverTheHandleDoes) {
  std::atomic<int> live = 0;
  {
    auto joined = spawn([&] { return Counted(live); });
    (void)joined.join();
  }
  {
    auto dropped_early = spawn([&] { return Counted(live); });
  }
  {
    auto dropped_late = spawn([&] { return Counted(live); });
    yield_until([&] { return dropped_late.done(); });
  }
  yield_until([&] { return Scheduler::current()->stats().live == 1; });
  this_fiber::yield();
  yield_until([&] { return live == 0; });
}

// ---------------------------------------------------------------- unjoined exceptions

std::mutex reports_mutex;
std::vector<std::string> reports;
void record_report(std::string_view fiber, std::exception_ptr exception) {
  std::lock_guard hold(reports_mutex);
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& error) {
    reports.push_back(std::string(fiber) + ": " + error.what());
  }
}
std::size_t report_count() {
  std::lock_guard hold(reports_mutex);
  return reports.size();
}
struct Recorder {
  Recorder() {
    reports.clear();
    set_unhandled_exception_handler(&record_report);
  }
  ~Recorder() { set_unhandled_exception_handler(nullptr); }
};

FIBER_TEST(Fiber, ExceptionThatNobodyJoinsIsReportedOnceWithTheName) {
  Recorder recorder;
  {
    // Dropped before, and after the end; detached from the start; joined in vain.
    auto before = spawn([] { throw std::runtime_error("a"); }, {.name = "before"});
    before.detach();
    auto after = spawn([] { throw std::runtime_error("b"); }, {.name = "after"});
    yield_until([&] { return after.done(); });
    (void)go([] { throw std::runtime_error("c"); }, {.name = "detached"});
    auto timed_out = spawn(
        [] {
          (void)this_fiber::sleep_for(2ms);
          throw std::runtime_error("d");
        },
        {.name = "timed out"});
    EXPECT_EQ(timed_out.join(Deadline::now()).error(), Errc::timed_out);
  }
  auto joined = spawn([] { throw std::runtime_error("e"); }, {.name = "joined"});
  EXPECT_THROW((void)joined.join(), std::runtime_error);
  yield_until([] { return Scheduler::current()->stats().live == 1 && report_count() >= 4; });
  std::lock_guard hold(reports_mutex);
  std::sort(reports.begin(), reports.end());
  EXPECT_EQ(reports,
            (std::vector<std::string>{"after: b", "before: a", "detached: c", "timed out: d"}));
}

TEST(FiberReport, DefaultReportIsOneLineOnStderr) {
  testing::internal::CaptureStderr();
  Scheduler scheduler;
  FiberId id = 0;
  (void)scheduler.run([&] {
    auto fiber = spawn([] { throw std::runtime_error("lost"); }, {.name = "worker"});
    id = fiber.handle().id();
    fiber.detach();
    (void)go([] { throw 5; }, {.name = "odd"});
  });
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("runloom: fiber " + std::to_string(id) +
                      " 'worker' ended with an exception that nobody joins: lost\n"),
            std::string::npos)
      << text;
  EXPECT_NE(
      text.find("'odd' ended with an exception that is no std::exception that nobody joins\n"),
      std::string::npos)
      << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;
}

// ---------------------------------------------------------------- spawning

TEST(FiberSpawn, NeedsAScheduler) {
  auto handle = spawn([] {});
  EXPECT_FALSE(handle);
  EXPECT_EQ(handle.error(), Errc::not_in_fiber);
  EXPECT_EQ(handle.join().error(), Errc::not_in_fiber);
  EXPECT_EQ(go([] {}).error(), Errc::not_in_fiber);
}

FIBER_TEST(Fiber, StackSizeIsChecked) {
  EXPECT_EQ(spawn([] {}, {.stack_size = 1024}).error(), Errc::stack_size);
  EXPECT_EQ(spawn([] {}, {.stack_size = std::size_t{2} << 30}).error(), Errc::stack_size);
  // What it carries would leave no room to run.
  EXPECT_EQ(spawn([] {}, {.stack_size = 64 * 1024, .local_size = 60 * 1024}).error(),
            Errc::stack_size);
  EXPECT_EQ(spawn([] {}, {.local_size = SIZE_MAX}).error(), Errc::stack_size);
  EXPECT_EQ(spawn([] {}, {.local_size = SIZE_MAX - 8}).error(), Errc::stack_size);
  EXPECT_EQ(spawn([] {}, {.stack_size = SIZE_MAX}).error(), Errc::stack_size);
  struct alignas(16 * 1024) Page {
    char bytes[16 * 1024];
  };
  EXPECT_EQ(spawn([page = Page()] { (void)page; }, {.stack_size = 32 * 1024}).error(),
            Errc::stack_size);
  auto large = spawn([] { return this_fiber::stack_left(); }, {.stack_size = 4 << 20});
  const std::size_t left = large.join().value();
  EXPECT_GT(left, (4u << 20) - 8192);
  EXPECT_LT(left, 4u << 20);
}

FIBER_TEST(Fiber, NamesAreKeptUpTo23Bytes) {
  auto name = [](std::string_view wanted) {
    return spawn([] { return std::string(this_fiber::name()); }, {.name = wanted}).join().value();
  };
  EXPECT_EQ(name("reader"), "reader");
  EXPECT_EQ(name(""), "");
  EXPECT_EQ(name("12345678901234567890123"), "12345678901234567890123");
  EXPECT_EQ(name("123456789012345678901234567890"), "12345678901234567890123");
}

FIBER_TEST(Fiber, IdsAreUniqueAndNeverZero) {
  std::vector<FiberId> ids;
  for (int i = 0; i < 1'000; ++i) {
    auto handle = spawn([] { return this_fiber::id(); });
    const FiberId id = handle.handle().id();
    EXPECT_EQ(handle.join().value(), id);
    ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  EXPECT_NE(ids.front(), 0u);
  EXPECT_EQ(std::adjacent_find(ids.begin(), ids.end()), ids.end());
}

FIBER_TEST(Fiber, LocalMemoryIsAlignedAndPrivate) {
  auto use = [](char fill) {
    return spawn(
        [fill] {
          auto* local = static_cast<char*>(this_fiber::local());
          EXPECT_NE(local, nullptr);
          EXPECT_EQ(reinterpret_cast<std::uintptr_t>(local) % 64, 0u);
          std::fill(local, local + 1000, fill);
          this_fiber::yield();
          return std::count(local, local + 1000, fill) == 1000;
        },
        {.local_size = 1000});
  };
  auto a = use('a'), b = use('b');
  EXPECT_TRUE(a.join().value());
  EXPECT_TRUE(b.join().value());
  EXPECT_EQ(spawn([] { return this_fiber::local(); }).join().value(), nullptr);
}

// Large stacks keep it above themselves, small ones on top of their own bytes.
FIBER_TEST(Fiber, LocalMemoryIsApartFromTheStack) {
  for (const std::size_t stack_size : {std::size_t{64} << 10, std::size_t{1} << 20}) {
    constexpr std::size_t kLocal = 16 * 1024;
    auto within = spawn(
        [stack_size] {
          auto* local = static_cast<char*>(this_fiber::local());
          const std::size_t left = this_fiber::stack_left();
          std::fill(local, local + kLocal, 'l');
          // What is left of the stack, but for this function's own part of it.
          auto* here = static_cast<char*>(__builtin_frame_address(0));
          std::fill(here - left, here - 4096, 's');
          const std::size_t above = stack_size >= (std::size_t{256} << 10) ? 0 : kLocal;
          EXPECT_GE(left + above + 8192, stack_size);
          return std::count(local, local + kLocal, 'l') == kLocal;
        },
        {.stack_size = stack_size, .local_size = kLocal});
    EXPECT_TRUE(within.join().value());
  }
}

FIBER_TEST(Fiber, CopyThatThrowsLeavesNoFiber) {
  struct Throws {
    Throws() = default;
    Throws(const Throws&) { throw std::runtime_error("copy"); }
    void operator()() const {}
  };
  const Throws fn;
  const std::uint64_t live = Scheduler::current()->stats().live;
  EXPECT_THROW((void)spawn(fn), std::runtime_error);
  EXPECT_EQ(Scheduler::current()->stats().live, live);
  EXPECT_EQ(Scheduler::current()->fibers().size(), live);
}

FIBER_TEST(Fiber, OverAlignedFunctionsAreAligned) {
  struct alignas(64) Aligned {
    char bytes[64];
  };
  auto handle = spawn(
      [value = Aligned{}] { return reinterpret_cast<std::uintptr_t>(&value) % alignof(Aligned); });
  EXPECT_EQ(handle.join().value(), 0u);
}

FIBER_TEST(Fiber, StackFramesAreAligned) {
  auto misaligned = spawn([] {
    alignas(16) volatile char local[16] = {};
    return reinterpret_cast<std::uintptr_t>(&local[0]) % 16;
  });
  EXPECT_EQ(misaligned.join().value(), 0u);
}

// ---------------------------------------------------------------- this_fiber

TEST(ThisFiber, OffAFiber) {
  EXPECT_FALSE(this_fiber::exists());
  EXPECT_EQ(this_fiber::id(), 0u);
  EXPECT_EQ(this_fiber::name(), "");
  EXPECT_EQ(this_fiber::local(), nullptr);
  EXPECT_EQ(this_fiber::stack_left(), 0u);
  EXPECT_FALSE(this_fiber::handle().alive());
  this_fiber::yield();
  EXPECT_EQ(this_fiber::park().error(), Errc::not_in_fiber);
  EXPECT_TRUE(this_fiber::sleep_for(1ms));
  EXPECT_TRUE(this_fiber::check_cancelled());
}

FIBER_TEST(ThisFiber, SleepIsNeverEarly) {
  for (auto duration : {100us, 1000us, 3000us}) {
    const std::int64_t start = monotonic_ns();
    EXPECT_TRUE(this_fiber::sleep_for(duration));
    EXPECT_GE(monotonic_ns() - start, std::chrono::nanoseconds(duration).count());
  }
  EXPECT_TRUE(this_fiber::sleep_for(0s));
  EXPECT_TRUE(this_fiber::sleep_for(-1s));
}

FIBER_TEST(ThisFiber, EqualDeadlinesWakeInOrder) {
  bool in_time = false;  // all of them slept before it was time to wake
  for (auto delay = 2ms; !in_time; delay *= 2) {
    const Deadline together = Deadline::after(delay);
    std::vector<int> order;
    std::vector<JoinHandle<void>> sleepers;
    for (int i = 0; i < 20; ++i)
      sleepers.push_back(spawn(
          [&, i] {
            EXPECT_TRUE(this_fiber::sleep_until(together));
            order.push_back(i);
          },
          {.hub = 0}));
    std::size_t sleeping = 0;
    while (sleeping < sleepers.size() && !together.passed()) {
      this_fiber::yield();
      sleeping = 0;
      for (const FiberInfo& fiber : Scheduler::current()->fibers())
        sleeping += fiber.reason == WaitReason::sleep;
    }
    in_time = sleeping == sleepers.size() && !together.passed();
    for (auto& sleeper : sleepers)
      EXPECT_TRUE(sleeper.join());
    EXPECT_EQ(order.size(), 20u);
    EXPECT_TRUE(!in_time || std::is_sorted(order.begin(), order.end()));
  }
}

TEST(ThisFiber, ReadyFibersRunInFifoOrder) {
  Scheduler scheduler;
  std::vector<int> order;
  auto ran = scheduler.run([&] {
    std::vector<JoinHandle<void>> fibers;
    for (int i = 0; i < 5; ++i)
      fibers.push_back(spawn([&order, i] {
        order.push_back(i);
        this_fiber::yield();
        order.push_back(10 + i);
      }));
    for (auto& fiber : fibers)
      EXPECT_TRUE(fiber.join());
  });
  EXPECT_TRUE(ran);
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 10, 11, 12, 13, 14}));
}

FIBER_TEST(ThisFiber, NoyieldFiberMayNotPark) {
  auto handle = spawn(
      [] {
        this_fiber::yield();  // a no-op
        EXPECT_EQ(this_fiber::park().error(), Errc::park_forbidden);
        EXPECT_EQ(this_fiber::sleep_for(1h).error(), Errc::park_forbidden);
        auto child = spawn([] {});
        EXPECT_EQ(child.join().error(), Errc::park_forbidden);
        child.detach();
      },
      {.noyield = true});
  EXPECT_TRUE(handle.join());
}

FIBER_TEST(ThisFiber, ForbidParkNests) {
  {
    this_fiber::ForbidPark outer;
    EXPECT_EQ(this_fiber::park(Deadline::after(1h)).error(), Errc::park_forbidden);
    {
      this_fiber::ForbidPark inner;
      EXPECT_EQ(this_fiber::sleep_for(1h).error(), Errc::park_forbidden);
    }
    EXPECT_EQ(this_fiber::sleep_for(1h).error(), Errc::park_forbidden);
    // What needs no park succeeds.
    this_fiber::handle().unpark();
    EXPECT_TRUE(this_fiber::park());
  }
  EXPECT_TRUE(this_fiber::sleep_for(1us));
}

// ---------------------------------------------------------------- park and permits

FIBER_TEST(ThisFiber, PermitsAreCounted) {
  auto self = this_fiber::handle();
  for (int i = 0; i < 3; ++i)
    EXPECT_TRUE(self.unpark());
  for (int i = 0; i < 3; ++i)
    EXPECT_TRUE(this_fiber::park(Deadline::now())) << "a permit wins over a deadline";
  EXPECT_EQ(this_fiber::park(Deadline::now()).error(), Errc::timed_out);
  EXPECT_EQ(this_fiber::park(Deadline::after(1ms)).error(), Errc::timed_out);
}

FIBER_TEST(ThisFiber, UnparkWakesAndIsNotCountedTwice) {
  auto parked = spawn([] {
    EXPECT_TRUE(this_fiber::park());
    return this_fiber::park(Deadline::now()).error();
  });
  until_parked(parked.handle(), WaitReason::park);
  EXPECT_TRUE(parked.handle().unpark());
  EXPECT_EQ(parked.join().value(), Errc::timed_out);
}

FIBER_TEST(ThisFiber, OtherWaitsTakeNoPermit) {
  auto sleeper = spawn([] {
    const std::int64_t start = monotonic_ns();
    EXPECT_TRUE(this_fiber::sleep_for(3ms));
    EXPECT_GE(monotonic_ns() - start, 3'000'000);
    return this_fiber::park(Deadline::now()).error();
  });
  EXPECT_TRUE(sleeper.handle().unpark());
  EXPECT_FALSE(sleeper.join().value()) << "the permit was still there";
}

// ---------------------------------------------------------------- handles

FIBER_TEST(FiberHandle, StaleHandleIsHarmless) {
  std::vector<FiberHandle> stale;
  for (int i = 0; i < 100; ++i) {
    auto handle = spawn([] {}, {.hub = 0});  // our own: it can't have ended
    stale.push_back(handle.handle());
    EXPECT_TRUE(stale.back().alive());
    (void)handle.join();
  }
  // Their stacks belong to others by now.
  std::vector<JoinHandle<Result<void>>> parked;
  for (int i = 0; i < 100; ++i)
    parked.push_back(spawn([] { return this_fiber::park(Deadline::after(5ms)); }));
  for (const FiberHandle& handle : stale) {
    EXPECT_FALSE(handle.alive());
    EXPECT_FALSE(handle.unpark());
    EXPECT_FALSE(handle.cancel());
  }
  for (auto& fiber : parked)
    EXPECT_EQ(fiber.join().error(), Errc::timed_out);
  EXPECT_FALSE(FiberHandle().alive());
  EXPECT_FALSE(FiberHandle().unpark());
  EXPECT_EQ(FiberHandle(), FiberHandle());
  EXPECT_FALSE(stale[0] == stale[1]);
}

TEST(FiberHandleRace, HandlesAreUsedWhileFibersEndAndStacksChangeHands) {
  Scheduler scheduler({.hubs = 2});
  test::HangGuard guard;
  constexpr int kSlots = 64;
  std::mutex mutex;
  FiberHandle handles[kSlots];  // guarded by mutex
  std::atomic<bool> stop = false;
  std::atomic<int> permits_given = 0, permits_taken = 0;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 2; ++t)
    threads.emplace_back([&, t] {
      test::Random random(t);
      while (!stop) {
        FiberHandle handle;
        {
          std::lock_guard hold(mutex);
          handle = handles[random.below(kSlots)];
        }
        // By now it may name a fiber that has ended.
        if (random.one_in(4)) {
          (void)handle.alive();
        } else if (random.one_in(4)) {
          handle.cancel();
        } else if (handle.unpark()) {
          ++permits_given;
        }
      }
    });
  auto ran = scheduler.run([&] {
    test::RaceBudget budget;
    int round = 0;
    while (!budget.spent()) {
      std::vector<JoinHandle<void>> fibers;
      for (int i = 0; i < 8; ++i) {
        fibers.push_back(spawn([&] {
          for (int k = 0; k < 3; ++k)
            if (this_fiber::park(Deadline::after(50us))) ++permits_taken;
        }));
        std::lock_guard hold(mutex);
        handles[round++ % kSlots] = fibers.back().handle();
      }
      for (auto& fiber : fibers)
        (void)fiber.join();
    }
  });
  stop = true;
  for (auto& thread : threads)
    thread.join();
  EXPECT_TRUE(ran);
  EXPECT_LE(permits_taken, permits_given);
  EXPECT_EQ(scheduler.stats().live, 0u);
}

TEST(FiberRace, ThreadsSpawnAndJoin) {
  Scheduler scheduler({.hubs = 2});
  test::HangGuard guard;
  std::atomic<int> left = 3;
  std::atomic<long> sum = 0;
  std::vector<std::thread> threads;
  auto ran = scheduler.run([&] {
    auto self = this_fiber::handle();
    for (int t = 0; t < 3; ++t)
      threads.emplace_back([&, self] {
        for (int i = 0; i < 300; ++i) {
          auto fiber = scheduler.spawn([i] {
            this_fiber::yield();
            return i;
          });
          sum += fiber.join().value();
        }
        auto thrower = scheduler.spawn([] { throw std::runtime_error("over there"); });
        EXPECT_THROW((void)thrower.join(), std::runtime_error);
        --left;
        self.unpark();
      });
    while (left != 0)
      (void)this_fiber::park({}, true);
  });
  for (auto& thread : threads)
    thread.join();
  EXPECT_TRUE(ran);
  EXPECT_EQ(sum, 3 * 299 * 300 / 2);
}

}  // namespace
}  // namespace runloom
