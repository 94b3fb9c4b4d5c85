#include "runloom/sched/join_set.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

#include "runloom/sched/cancel.hpp"
#include "runloom/sched/channel.hpp"
#include "support/fiber_test.hpp"

namespace runloom {
namespace {

using test::test_fibers;

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

}  // namespace
}  // namespace runloom
