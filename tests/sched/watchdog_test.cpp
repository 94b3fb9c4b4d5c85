// The stall watchdog. S24: a fiber that computes for long is reported once, with its stack.
#include "watchdog.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "runloom/sched/scheduler.hpp"
#include "support/fiber_test.hpp"
#include "support/kernel.hpp"

namespace runloom {
namespace {

using namespace std::chrono_literals;

#ifdef RUNLOOM_TEST_TSAN
constexpr bool kTsan = true;
#else
constexpr bool kTsan = false;
#endif

[[gnu::noinline]] void compute_for(std::chrono::milliseconds duration) {
  const auto end = std::chrono::steady_clock::now() + duration;
  while (std::chrono::steady_clock::now() < end)
    asm volatile("" : : : "memory");
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++found;
  return found;
}

class WatchdogTest : public testing::TestWithParam<int> {
 protected:
  // What is reported while `body` runs on a fiber "main".
  template <class Body>
  std::string reports(std::chrono::milliseconds threshold, Body body) {
    testing::internal::CaptureStderr();
    {
      Scheduler scheduler({.hubs = GetParam(), .stall_threshold = threshold});
      EXPECT_TRUE(scheduler.run(body));
    }
    return testing::internal::GetCapturedStderr();
  }
};
INSTANTIATE_TEST_SUITE_P(Hubs, WatchdogTest, testing::Values(1, 2));

TEST_P(WatchdogTest, S24_ReportsALongFiberOnceWithItsStack) {
  FiberId id = 0;
  const int hub = GetParam() - 1;
  const std::string text = reports(20ms, [&] {
    auto stuck = spawn([] { compute_for(500ms); }, {.name = "busy", .hub = hub});
    id = stuck.handle().id();
    EXPECT_TRUE(stuck.join());
  });
  EXPECT_EQ(count(text, "runloom: fiber "), 1) << text;
  EXPECT_EQ(count(text, "runloom: fiber " + std::to_string(id) + " 'busy' keeps hub " +
                            std::to_string(hub) + " for "),
            1)
      << text;
  // Its own stack, down to its first frame, not the watchdog's.
  EXPECT_NE(text.find("compute_for(std::chrono::"), std::string::npos) << text;
  EXPECT_NE(text.find("fiber_entry("), std::string::npos) << text;
  EXPECT_EQ(text.find("Watchdog::"), std::string::npos) << text;
}

TEST_P(WatchdogTest, S24_EveryStallIsReported) {
  const std::string text = reports(20ms, [] {
    for (int i = 0; i < 3; ++i) {
      compute_for(200ms);
      this_fiber::yield();
    }
  });
  EXPECT_EQ(count(text, "'main' keeps hub 0 for "), 3) << text;
}

TEST_P(WatchdogTest, FibersThatPauseAreNotReported) {
  // Neither one that yields alone on its hub, nor those that take turns, nor one that sleeps.
  const std::string text = reports(500ms, [] {
    const auto end = std::chrono::steady_clock::now() + 1200ms;
    while (std::chrono::steady_clock::now() < end)
      this_fiber::yield();
    auto pair = [&] {
      for (int i = 0; i < 20; ++i) {
        compute_for(10ms);
        this_fiber::yield();
      }
    };
    auto a = spawn(pair), b = spawn(pair);
    EXPECT_TRUE(a.join());
    EXPECT_TRUE(b.join());
    EXPECT_TRUE(this_fiber::sleep_for(1s));
  });
  EXPECT_EQ(text, "");
}

TEST_P(WatchdogTest, WorksAgainAfterASleep) {
  const std::string text = reports(20ms, [] {
    EXPECT_TRUE(this_fiber::sleep_for(200ms));  // it goes to sleep with the hubs
    compute_for(300ms);
  });
  EXPECT_EQ(count(text, "'main' keeps hub 0 for "), 1) << text;
}

TEST_P(WatchdogTest, WorksInTheNextRunToo) {
  testing::internal::CaptureStderr();
  {
    Scheduler scheduler({.hubs = GetParam(), .stall_threshold = 20ms});
    EXPECT_TRUE(scheduler.run([] {}));
    std::this_thread::sleep_for(60ms);  // between runs it sleeps
    EXPECT_TRUE(scheduler.run([] { compute_for(300ms); }));
  }
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(count(text, "'main' keeps hub 0 for "), 1) << text;
}

TEST(Watchdog, SystemCallThatBlocksTheHubIsReported) {
  if (kTsan) GTEST_SKIP() << "tsan holds the signal back";
  testing::internal::CaptureStderr();
  {
    Scheduler scheduler({.stall_threshold = 20ms});
    EXPECT_TRUE(scheduler.run([] { std::this_thread::sleep_for(300ms); }));
  }
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(count(text, "'main' keeps hub 0 for "), 1) << text;
  EXPECT_NE(text.find("nanosleep"), std::string::npos) << text;
}

TEST(Watchdog, NoThreadWhenOff) {
  Scheduler scheduler({.hubs = 2});
  EXPECT_TRUE(scheduler.run([] { EXPECT_EQ(test::threads_named("runloom-watch"), 0); }));
}

TEST(Watchdog, OneThreadWhenOn) {
  Scheduler scheduler({.hubs = 2, .stall_threshold = 1s});
  EXPECT_TRUE(scheduler.run(
      [] { test::yield_until([] { return test::threads_named("runloom-watch") == 1; }); }));
}

TEST(WatchdogRace, HubsComeAndGo) {
  test::HangGuard guard;
  testing::internal::CaptureStderr();
  for (int i = 0; i < 30; ++i) {
    Scheduler scheduler({.hubs = 2, .stall_threshold = 1ms});
    for (int run = 0; run < 3; ++run)
      EXPECT_TRUE(scheduler.run([] {
        auto other = spawn([] { (void)this_fiber::sleep_for(300us); }, {.hub = 1});
        compute_for(2ms);
        EXPECT_TRUE(other.join());
      }));
  }
  (void)testing::internal::GetCapturedStderr();
}

}  // namespace
}  // namespace runloom
