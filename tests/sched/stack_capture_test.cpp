#include "stack_capture.hpp"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>

#include "support/fiber_test.hpp"
#include "symbolize.hpp"

namespace runloom::detail {
namespace {

[[gnu::noinline]] void spin_until(const std::atomic<bool>& stop) {
  while (!stop.load(std::memory_order_relaxed)) {
  }
}

TEST(StackCapture, ShowsWhatAnotherThreadExecutes) {
  std::atomic<pid_t> tid = 0;
  std::atomic<bool> stop = false;
  std::thread spinner([&] {
    allow_stack_capture();
    tid = ::gettid();
    spin_until(stop);
  });
  while (tid == 0)
    std::this_thread::yield();
  for (int i = 0; i < 3; ++i) {
    const auto frames = capture_stack(tid);
    ASSERT_FALSE(frames.empty());
    std::string text;
    for (std::size_t f = 0; f < frames.size(); ++f)
      text += describe_frame(frames[f], f != 0) + "\n";
#ifndef RUNLOOM_TEST_TSAN  // which calls the handler from its own frames
    EXPECT_EQ(text.find("on_capture"), std::string::npos) << text;
#endif
    EXPECT_NE(text.find("spin_until("), std::string::npos) << text;
  }
  stop = true;
  spinner.join();
}

TEST(StackCapture, AThreadThatDoesNotAnswerGivesNothing) {
  std::atomic<pid_t> tid = 0;
  std::atomic<bool> stop = false;
  std::thread deaf([&] {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);
    tid = ::gettid();
    spin_until(stop);
  });
  while (tid == 0)
    std::this_thread::yield();
  EXPECT_TRUE(capture_stack(tid).empty());
  stop = true;
  deaf.join();
  EXPECT_TRUE(capture_stack(0).empty());
  EXPECT_TRUE(capture_stack(tid).empty()) << "it is gone";
}

}  // namespace
}  // namespace runloom::detail
