#include "runloom/sched/join_set.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runloom/sched/cancel.hpp"
#include "runloom/sched/channel.hpp"
#include "support/fiber_test.hpp"
#include "support/race.hpp"

namespace runloom {
namespace {

using namespace std::chrono_literals;

Result<void> park_for_ever() {
  return this_fiber::park();
}

FIBER_TEST(JoinSet, WaitsForEveryChild) {
  std::atomic<int> ended{0};
  JoinSet<> set;
  for (int i = 0; i < 100; ++i)
    ASSERT_TRUE(set.spawn([&] {
      this_fiber::yield();
      ++ended;
    }));
  ASSERT_TRUE(set.wait());
  EXPECT_EQ(ended, 100);
  EXPECT_EQ(set.size(), 0u);
}

FIBER_TEST(JoinSet, IsReusableAfterWait) {
  int runs = 0;
  JoinSet<> set;
  ASSERT_TRUE(set.wait());
  ASSERT_TRUE(set.spawn([&] { ++runs; }));
  ASSERT_TRUE(set.wait());
  ASSERT_TRUE(set.spawn([&] { ++runs; }));
  ASSERT_TRUE(set.wait());
  EXPECT_EQ(runs, 2);
}

FIBER_TEST(JoinSet, FirstErrorCancelsTheRest) {
  std::atomic<int> cancelled{0};
  JoinSet<> set;
  for (int i = 0; i < 10; ++i)
    ASSERT_TRUE(set.spawn([&] {
      const auto parked = park_for_ever();
      if (parked.error() == Errc::cancelled) ++cancelled;
      return parked;
    }));
  ASSERT_TRUE(set.spawn([]() -> Result<void> { return fail_errno(ECONNRESET); }));
  const auto waited = set.wait();
  EXPECT_EQ(waited.error(), errno_code(ECONNRESET));
  EXPECT_EQ(cancelled, 10);
}

FIBER_TEST(JoinSet, FirstExceptionIsRethrownOnce) {
  JoinSet<> set;
  ASSERT_TRUE(set.spawn([] { return park_for_ever(); }));
  ASSERT_TRUE(set.spawn([] { throw std::runtime_error("child"); }));
  try {
    (void)set.wait();
    FAIL() << "the exception got lost";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "child");
  }
  EXPECT_TRUE(set.wait());
}

FIBER_TEST(JoinSet, ErrorIsReportedOnce) {
  JoinSet<> set;
  ASSERT_TRUE(set.spawn([]() -> Result<void> { return fail_errno(EPIPE); }));
  ASSERT_TRUE(set.spawn([]() -> Result<void> { return fail_errno(EPIPE); }));
  EXPECT_EQ(set.wait().error(), errno_code(EPIPE));
  EXPECT_TRUE(set.wait());
}

// A Result of which a child takes the value() without looking.
FIBER_TEST(JoinSet, CancelledChildrenAreNoFailure) {
  JoinSet<> set;
  ASSERT_TRUE(set.spawn([] { park_for_ever().value(); }));
  ASSERT_TRUE(set.spawn([] { return park_for_ever(); }));
  ASSERT_TRUE(set.spawn([]() -> Result<void> {
    (void)park_for_ever();
    return fail_errno(EPIPE);
  }));
  this_fiber::yield();
  set.cancel();
  EXPECT_TRUE(set.wait());
}

FIBER_TEST(JoinSet, ExceptionsOfCancelledChildrenAreNotLost) {
  JoinSet<> set;
  ASSERT_TRUE(set.spawn([] {
    (void)park_for_ever();
    throw std::runtime_error("while it cleaned up");
  }));
  set.cancel();
  EXPECT_THROW((void)set.wait(), std::runtime_error);
}

std::atomic<int> unhandled{0};

FIBER_TEST(JoinSet, DestructorReportsTheExceptionThatNobodyTook) {
  unhandled = 0;
  set_unhandled_exception_handler([](std::string_view fiber, std::exception_ptr exception) {
    EXPECT_EQ(fiber, "thrower");
    EXPECT_THROW(std::rethrow_exception(std::move(exception)), std::runtime_error);
    ++unhandled;
  });
  {
    JoinSet<> set;
    ASSERT_TRUE(set.spawn([] { throw std::runtime_error("child"); }, {.name = "thrower"}));
    test::yield_until([&] { return set.size() == 0; });
  }
  set_unhandled_exception_handler(nullptr);
  EXPECT_EQ(unhandled, 1);
}

// What a child has captured goes before the set does, for it may refer to what goes after it.
FIBER_TEST(JoinSet, CapturesEndBeforeTheSet) {
  struct Slow {
    explicit Slow(std::atomic<int>* counter) : ended(counter) {}
    Slow(const Slow&) = delete;
    ~Slow() {
      for (int i = 0; i < 3; ++i)
        this_fiber::yield();
      ++*ended;
    }
    std::atomic<int>* ended;
  };
  std::atomic<int> ended{0};
  {
    JoinSet<> set;
    for (int i = 0; i < 4; ++i)
      ASSERT_TRUE(set.spawn([captured = std::make_unique<Slow>(&ended)] {}));
  }
  EXPECT_EQ(ended, 4);
}

FIBER_TEST(JoinSet, DestructorCancelsAndWaits) {
  std::atomic<int> ended{0};
  {
    JoinSet<> set;
    for (int i = 0; i < 10; ++i)
      ASSERT_TRUE(set.spawn([&] {
        (void)park_for_ever();
        this_fiber::yield();
        ++ended;
      }));
  }
  EXPECT_EQ(ended, 10);
}

FIBER_TEST(JoinSet, DestructorWaitsInACancelledFiber) {
  std::atomic<int> ended{0};
  Channel<int> release(1);  // has room: the send below does not park
  CancelScope scope;
  scope.cancel();
  {
    JoinSet<> set;
    ASSERT_TRUE(set.spawn([&] {
      const Shield shield;
      EXPECT_TRUE(release.recv());
      this_fiber::yield();
      ++ended;
    }));
    EXPECT_EQ(set.wait().error(), Errc::cancelled);
    ASSERT_TRUE(release.send(1));
  }
  EXPECT_EQ(ended, 1);
}

FIBER_TEST(JoinSet, WaitTimesOutAndTheChildrenGoOn) {
  Channel<int> release;
  bool done = false;
  JoinSet<> set;
  ASSERT_TRUE(set.spawn([&] { done = release.recv().has_value(); }));
  EXPECT_EQ(set.wait(Deadline::now()).error(), Errc::timed_out);
  EXPECT_EQ(set.size(), 1u);
  ASSERT_TRUE(release.send(1));
  ASSERT_TRUE(set.wait());
  EXPECT_TRUE(done);
}

FIBER_TEST(JoinSet, ChildrenSpawnSiblings) {
  std::atomic<int> ended{0};
  JoinSet<> set;
  ASSERT_TRUE(set.spawn([&] {
    for (int i = 0; i < 5; ++i)
      EXPECT_TRUE(set.spawn([&] { ++ended; }));
    ++ended;
  }));
  ASSERT_TRUE(set.wait());
  EXPECT_EQ(ended, 6);
}

FIBER_TEST(JoinSet, ChildOfACancelledSetStartsCancelled) {
  JoinSet<> set;
  set.cancel();
  std::error_code seen;
  ASSERT_TRUE(set.spawn([&] { seen = park_for_ever().error(); }));
  ASSERT_TRUE(set.wait());
  EXPECT_EQ(seen, Errc::cancelled);
}

FIBER_TEST(JoinSet, NextGivesResultsInOrderOfCompletion) {
  Channel<int> turn[3];
  JoinSet<std::string> set;
  for (int i = 0; i < 3; ++i)
    ASSERT_TRUE(set.spawn([&turn, i]() -> Result<std::string> {
      RUNLOOM_TRY(const int said, turn[i].recv());
      return std::to_string(i) + ":" + std::to_string(said);
    }));
  std::vector<std::string> got;
  for (int i : {2, 0, 1}) {
    ASSERT_TRUE(turn[i].send(i * 10));
    auto next = set.next();
    ASSERT_TRUE(next && *next);
    got.push_back(**next);
  }
  EXPECT_EQ(got, (std::vector<std::string>{"2:20", "0:0", "1:10"}));
  auto none = set.next();
  ASSERT_TRUE(none);
  EXPECT_FALSE(none->has_value());
}

FIBER_TEST(JoinSet, NextGivesTheResultsBeforeTheFailure) {
  JoinSet<int> set;
  ASSERT_TRUE(set.spawn([] { return 1; }));
  test::yield_until([&] { return set.size() == 0; });
  ASSERT_TRUE(set.spawn([]() -> Result<int> { return fail_errno(EPIPE); }));
  ASSERT_TRUE(set.spawn([]() -> Result<int> {
    EXPECT_EQ(park_for_ever().error(), Errc::cancelled);
    return 2;
  }));
  EXPECT_EQ(set.next().value(), 1);
  EXPECT_EQ(set.next().value(), 2);
  EXPECT_EQ(set.next().error(), errno_code(EPIPE));
  EXPECT_EQ(set.next().value(), std::nullopt);
}

FIBER_TEST(JoinSet, NextTimesOutAndGoesOn) {
  Channel<int> release;
  JoinSet<int> set;
  ASSERT_TRUE(set.spawn([&] { return release.recv(); }));
  EXPECT_EQ(set.next(Deadline::now()).error(), Errc::timed_out);
  ASSERT_TRUE(release.send(3));
  EXPECT_EQ(set.next().value(), 3);
}

FIBER_TEST(JoinSet, OsThreadsHaveSetsToo) {
  Scheduler& scheduler = *Scheduler::current();
  test::ForeignThreads threads;
  threads.start([&] {
    EXPECT_EQ(JoinSet<>().spawn([] {}).error(), Errc::not_in_fiber);
    JoinSet<int> set(scheduler);
    int sum = 0;
    for (int i = 1; i <= 10; ++i)
      EXPECT_TRUE(set.spawn([i] { return i; }));
    while (auto value = set.next().value())
      sum += *value;
    EXPECT_EQ(sum, 55);
    EXPECT_TRUE(set.spawn([]() -> Result<int> { return fail(park_for_ever().error()); }));
  });
  threads.join();
}

TEST(JoinSetDeathTest, DestroyedWhereParkingIsForbidden) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH((void)run(
                   [] {
                     const this_fiber::ForbidPark forbid;
                     JoinSet<> set;
                     (void)set.spawn([] { return park_for_ever(); });
                   },
                   Options{}),
               "destroyed where parking is forbidden");
}

FIBER_TEST(JoinSet, ResultsNobodyTookAreDestroyed) {
  auto alive = std::make_shared<int>(1);
  {
    JoinSet<std::shared_ptr<int>> set;
    ASSERT_TRUE(set.spawn([alive] { return alive; }));
    ASSERT_TRUE(set.wait());
    EXPECT_GT(alive.use_count(), 1);
  }
  EXPECT_EQ(alive.use_count(), 1);
}

FIBER_TEST(JoinSet, SpawnFailureLeavesTheSetUnchanged) {
  JoinSet<> set;
  EXPECT_EQ(set.spawn([] {}, {.stack_size = 1}).error(), Errc::stack_size);
  EXPECT_EQ(set.size(), 0u);
  EXPECT_TRUE(set.wait());
}

FIBER_TEST(JoinSetRace, CancelMeetsTheEndOfChildren) {
  for (int round = 0; round < 300; ++round) {
    std::atomic<int> ended{0};
    {
      JoinSet<int> set;
      for (int i = 0; i < 8; ++i)
        ASSERT_TRUE(set.spawn([&, i] {
          for (int k = 0; k < i % 3; ++k)
            this_fiber::yield();
          ++ended;
          return i;
        }));
      if (round % 2 == 0) set.cancel();
      if (round % 3 == 0) {
        ASSERT_TRUE(set.next());
      }
    }
    ASSERT_EQ(ended, 8);
  }
}

// Children spawn siblings, fail, throw and are cancelled, while owners on both hubs and on a thread
// wait, give up and go away. No child outlives its set.
FIBER_TEST(JoinSetRace, Nurseries) {
  const test::RaceBudget budget;
  Scheduler& scheduler = *Scheduler::current();
  std::atomic<int> failures{0};

  // One nursery's life. `live` counts its children.
  auto nursery = [&](test::Random& random, std::atomic<int>& live) {
    JoinSet<int> set(scheduler);
    auto child = [&live](std::uint32_t kind) -> Result<int> {
      struct Leave {
        std::atomic<int>& count;
        ~Leave() { --count; }
      } const leave{live};
      if (kind == 0) return fail_errno(EPIPE);
      if (kind == 1) throw std::runtime_error("child");
      if (kind < 8) return this_fiber::sleep_for(50us).and_then([] { return Result<int>(2); });
      this_fiber::yield();
      return 1;
    };
    for (std::uint32_t n = random.below(8); n > 0; --n) {
      ++live;
      EXPECT_TRUE(set.spawn([child, kind = random.below(24)] { return child(kind); },
                            {.hub = static_cast<int>(random.below(2))}));
    }
    if (random.one_in(3)) {
      ++live;
      EXPECT_TRUE(set.spawn([&set, &live, child] {
        ++live;
        EXPECT_TRUE(set.spawn([child] { return child(8); }));
        return child(8);
      }));
    }
    if (random.one_in(4)) set.cancel();
    const auto limit = std::chrono::microseconds(random.one_in(2) ? random.below(60) : 1'000'000);
    const auto deadline = Deadline::after(limit);
    try {
      if (random.one_in(2)) {
        failures += set.wait(deadline).error() == errno_code(EPIPE);
      } else {
        while (set.next(deadline).value_or(std::nullopt)) {
        }
      }
    } catch (const std::runtime_error&) {
      ++failures;
    }
  };
  auto own = [&](std::uint32_t id) {
    test::Random random(id);
    while (!budget.spent()) {
      std::atomic<int> live{0};
      nursery(random, live);
      EXPECT_EQ(live, 0);
    }
  };
  set_unhandled_exception_handler([](std::string_view, std::exception_ptr) {});
  test::ForeignThreads threads;
  threads.start([&] { own(0); });
  auto first = spawn([&] { own(1); }, {.hub = 0});
  auto second = spawn([&] { own(2); }, {.hub = 1});
  EXPECT_TRUE(first.join());
  EXPECT_TRUE(second.join());
  threads.join();
  set_unhandled_exception_handler(nullptr);
  EXPECT_GT(failures, 0);
}

}  // namespace
}  // namespace runloom
