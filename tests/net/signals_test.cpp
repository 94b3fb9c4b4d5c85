#include "runloom/net/signals.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include "runloom/sched/fiber.hpp"
#include "runloom/sched/scheduler.hpp"
#include "support/child.hpp"
#include "support/net_test.hpp"

namespace runloom::net {
namespace {

using namespace std::chrono_literals;

// The scheduler's own threads of a test are started before its body, so the signals are sent to the
// thread that blocks them. A whole process is looked at below.
NET_TEST(Signals, WaitTakesOneAtATime) {
  const Signals signals({SIGUSR1, SIGUSR2});
  auto waiting = spawn([&] { return signals.wait(); }, {.hub = Hub::current()->index()});
  test::until_parked(waiting.handle(), WaitReason::io_poll);
  ::pthread_kill(::pthread_self(), SIGUSR2);
  EXPECT_EQ(waiting.join().value(), SIGUSR2);
  ::pthread_kill(::pthread_self(), SIGUSR1);
  EXPECT_EQ(signals.wait().value(), SIGUSR1);
  EXPECT_EQ(signals.wait(Deadline::now()).error(), Errc::timed_out);
  EXPECT_EQ(signals.wait(Deadline::after(1ms)).error(), Errc::timed_out);
}

NET_TEST(Signals, AWaitCanBeCancelled) {
  const Signals signals({SIGUSR1});
  auto waiting = spawn([&] { return signals.wait(); }, {.hub = Hub::current()->index()});
  test::until_parked(waiting.handle(), WaitReason::io_poll);
  waiting.cancel();
  EXPECT_EQ(waiting.join().error(), Errc::cancelled);
}

TEST(Signals, AProcessThatMadeThemFirstIsNotEnded) {
  const auto end = test::run_child([] {
    const Signals signals({SIGTERM});
    Options options;
    options.hubs = 2;
    Scheduler scheduler(std::move(options));
    return scheduler
        .run([&] {
          auto waiting = spawn([&] { return signals.wait(); });
          this_fiber::yield();
          ::kill(::getpid(), SIGTERM);
          const auto came = waiting.join();
          return came && *came == SIGTERM ? 0 : 1;
        })
        .value_or(2);
  });
  EXPECT_TRUE(end.exited) << end.signal;
  EXPECT_EQ(end.code, 0) << end.out;
}

TEST(Signals, TheEndGivesTheMaskBack) {
  const auto end = test::run_child([] {
    {
      const Signals signals({SIGTERM});
      ::kill(::getpid(), SIGTERM);
    }
    return 0;  // not reached: it is delivered
  });
  EXPECT_FALSE(end.exited);
  EXPECT_EQ(end.signal, SIGTERM);
}

}  // namespace
}  // namespace runloom::net
