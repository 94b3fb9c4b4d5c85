#include "runloom/sched/driver.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "runloom/sched/deadline.hpp"

namespace runloom {
namespace {

using namespace std::chrono_literals;

class FutexDriver : public testing::Test {
 protected:
  std::unique_ptr<Driver> driver_ = make_futex_driver();
};

TEST_F(FutexDriver, PollWithoutTimeDoesNotBlock) {
  EXPECT_EQ(driver_->poll(0), 0);
  EXPECT_FALSE(driver_->wants_poll());
  EXPECT_EQ(driver_->now_ns(), 0);
}

TEST_F(FutexDriver, WakeBeforeThePollIsKept) {
  driver_->wake();
  EXPECT_EQ(driver_->poll(-1), 0);  // would hang
}

TEST_F(FutexDriver, SeveralWakesAreOne) {
  for (int i = 0; i < 10; ++i)
    driver_->wake();
  driver_->poll(-1);
  const std::int64_t start = monotonic_ns();
  driver_->poll(2'000'000);
  EXPECT_GE(monotonic_ns() - start, 2'000'000) << "an old wake ended a new poll";
}

TEST_F(FutexDriver, TimeoutIsNeverEarly) {
  for (std::int64_t timeout : {1, 999, 1'000, 1'500'000}) {
    const std::int64_t start = monotonic_ns();
    driver_->poll(timeout);
    EXPECT_GE(monotonic_ns() - start, timeout);
  }
}

TEST_F(FutexDriver, WakeFromAnotherThread) {
  for (int i = 0; i < 100; ++i) {
    std::thread waker([&] { driver_->wake(); });
    driver_->poll(-1);
    waker.join();
    driver_->poll(0);
  }
}

}  // namespace
}  // namespace runloom
