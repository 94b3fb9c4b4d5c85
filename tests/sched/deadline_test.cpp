#include "runloom/sched/deadline.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <limits>

namespace runloom {
namespace {

using namespace std::chrono_literals;

TEST(Deadline, NeverAndNow) {
  EXPECT_TRUE(Deadline().is_never());
  EXPECT_TRUE(Deadline::never().is_never());
  EXPECT_FALSE(Deadline::never().passed());
  EXPECT_TRUE(Deadline::now().passed());
  EXPECT_FALSE(Deadline::now().is_never());
  EXPECT_TRUE(Deadline::now() < Deadline::at_ns(0));
}

TEST(Deadline, AfterIsAbsolute) {
  const std::int64_t before = monotonic_ns();
  const Deadline deadline = Deadline::after(1h);
  const std::int64_t after = monotonic_ns();
  EXPECT_GE(deadline.ns(), before + 3'600'000'000'000);
  EXPECT_LE(deadline.ns(), after + 3'600'000'000'000);
  EXPECT_FALSE(deadline.passed());
  EXPECT_TRUE(deadline.passed_at(deadline.ns()));
  EXPECT_FALSE(deadline.passed_at(deadline.ns() - 1));
}

TEST(Deadline, ZeroAndNegativeHavePassed) {
  EXPECT_EQ(Deadline::after(0s), Deadline::now());
  EXPECT_EQ(Deadline::after(-5s), Deadline::now());
  EXPECT_EQ(Deadline::after(std::chrono::duration<double>(-0.5)), Deadline::now());
}

TEST(Deadline, FractionsRoundUpAndNeverFireEarly) {
  using Picoseconds = std::chrono::duration<std::int64_t, std::pico>;
  const std::int64_t before = monotonic_ns();
  EXPECT_GE(Deadline::after(Picoseconds(1)).ns(), before + 1);
  EXPECT_GE(Deadline::after(std::chrono::duration<double>(1e-10)).ns(), before + 1);
}

TEST(Deadline, HugeSpansSaturateToNever) {
  EXPECT_TRUE(Deadline::after(std::chrono::hours::max()).is_never());
  EXPECT_TRUE(Deadline::after(std::chrono::duration<double>(1e30)).is_never());
  EXPECT_TRUE(Deadline::after(std::chrono::duration<double>::max()).is_never());
  EXPECT_FALSE(Deadline::after(24h * 365 * 100).is_never());
}

TEST(Deadline, EarlierPicksTheFirst) {
  const Deadline soon = Deadline::at_ns(5), late = Deadline::at_ns(9);
  EXPECT_EQ(Deadline::earlier(soon, late), soon);
  EXPECT_EQ(Deadline::earlier(late, soon), soon);
  EXPECT_EQ(Deadline::earlier(late, Deadline::never()), late);
  EXPECT_EQ(Deadline::earlier(Deadline::never(), Deadline::never()), Deadline::never());
}

TEST(Deadline, ClockIsMonotonic) {
  std::int64_t last = monotonic_ns();
  for (int i = 0; i < 10'000; ++i) {
    const std::int64_t now = monotonic_ns();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(Deadline, NoNumberHasPassed) {
  const auto nan = std::chrono::duration<double>(std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(Deadline::after(nan), Deadline::now());
  const auto infinite = std::chrono::duration<double>(std::numeric_limits<double>::infinity());
  EXPECT_TRUE(Deadline::after(infinite).is_never());
  EXPECT_EQ(Deadline::after(-infinite), Deadline::now());
}

}  // namespace
}  // namespace runloom
