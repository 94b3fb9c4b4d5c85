// FIBER_TEST: a test whose body runs on a fiber, once on one hub and once on two.
//
//     FIBER_TEST(Channel, HandsOver) {
//       Channel<int> channel;
//       ...
//     }
//
// gives the tests Channel.HandsOver/hubs1 and Channel.HandsOver/hubs2. Each ends the process with
// a dump of all fibers if it hangs, and checks when it is over that nothing is left: no live
// fiber, no stack, no open descriptor, and whatever else a layer has registered.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "runloom/sched/scheduler.hpp"

#if defined(__SANITIZE_ADDRESS__)
#define RUNLOOM_TEST_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define RUNLOOM_TEST_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define RUNLOOM_TEST_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define RUNLOOM_TEST_TSAN 1
#endif
#endif

namespace runloom::test {

#if defined(RUNLOOM_TEST_TSAN)
// gcc 12's tsan has room for 8,128 fibers.
inline constexpr int kMostFibers = 4'000;
inline constexpr bool kSanitized = true;
#elif defined(RUNLOOM_TEST_ASAN)
inline constexpr int kMostFibers = 50'000;
inline constexpr bool kSanitized = true;
#else
inline constexpr int kMostFibers = 1'000'000;
inline constexpr bool kSanitized = false;
#endif

// `n` fibers, or as many as may live at once under this sanitizer.
constexpr int test_fibers(int n) {
  return n < kMostFibers ? n : kMostFibers;
}

// The options of a FIBER_TEST: a deadlock fails the test, stacks have room for GoogleTest.
Options fiber_test_options(int hubs);

// Runs `body` on a fiber of a scheduler of its own, with the hang limit and the teardown checks.
// For tests that need other options, a driver for example.
void run_fiber_test(Options options, const std::function<void()>& body);

// Adds to the teardown of each FIBER_TEST: `count` is called before the scheduler is made and
// after it is gone, and must give the same number. `what` names it in the failure.
void add_leak_check(std::string what, std::function<long()> count);

// Yields until `ready()`.
template <class Predicate>
void yield_until(Predicate ready) {
  while (!ready())
    this_fiber::yield();
}

// Yields until the fiber is parked, and for that reason. It has enqueued itself by then.
void until_parked(const FiberHandle& fiber, WaitReason reason);

// Ends the process unless it is destroyed within the hang limit: 10 seconds, a minute under a
// sanitizer. First it dumps the fibers of the scheduler that it watches, if any.
class HangGuard {
 public:
  HangGuard();
  ~HangGuard();
  HangGuard(const HangGuard&) = delete;
  HangGuard& operator=(const HangGuard&) = delete;
  // The scheduler must live until the guard watches another one, or null.
  void watch(const Scheduler* scheduler);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

bool register_fiber_test(const char* suite, const char* name, const char* file, int line,
                         void (*body)());

}  // namespace runloom::test

#define FIBER_TEST(Suite, Name)                                               \
  static void Suite##_##Name##_body();                                        \
  [[maybe_unused]] static const bool Suite##_##Name##_registered =            \
      ::runloom::test::register_fiber_test(#Suite, #Name, __FILE__, __LINE__, \
                                           &Suite##_##Name##_body);           \
  static void Suite##_##Name##_body()
