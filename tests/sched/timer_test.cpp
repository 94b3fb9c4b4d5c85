#include "runloom/sched/timer.hpp"

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "runloom/sched/event.hpp"
#include "runloom/sched/select.hpp"
#include "support/fiber_test.hpp"
#include "support/race.hpp"

namespace runloom {
namespace {

using namespace std::chrono_literals;

std::uint64_t timers_armed() {
  return Scheduler::current()->stats().sleeping;
}

FIBER_TEST(Timer, FiresOnceAndNotEarly) {
  const std::int64_t start = monotonic_ns();
  Timer timer(2ms);
  EXPECT_TRUE(timer.armed());
  EXPECT_EQ(timer.channel().try_recv().error(), Errc::would_block);
  const std::int64_t fired = timer.channel().recv().value();
  EXPECT_GE(fired - start, 2'000'000);
  EXPECT_GE(monotonic_ns(), fired);
  EXPECT_FALSE(timer.armed());
  EXPECT_FALSE(timer.stop());
  EXPECT_EQ(timer.channel().recv(Deadline::after(5ms)).error(), Errc::timed_out);
}

FIBER_TEST(Timer, MayBeDueAtOnceOrNever) {
  Timer past(Deadline::now());
  EXPECT_TRUE(past.channel().recv());
  Timer also_past(-1s);
  EXPECT_TRUE(also_past.channel().recv());
  Timer never;
  EXPECT_FALSE(never.armed());
  EXPECT_FALSE(never.stop());
  EXPECT_FALSE(never.reset(Deadline::now()));
  EXPECT_TRUE(never.channel().recv());
}

FIBER_TEST(Timer, StoppedItBringsNothing) {
  Timer timer(1ms);
  EXPECT_TRUE(timer.stop());
  EXPECT_FALSE(timer.stop());
  EXPECT_FALSE(timer.armed());
  EXPECT_EQ(timers_armed(), 0u);  // out of the heap at once
  EXPECT_EQ(timer.channel().recv(Deadline::after(5ms)).error(), Errc::timed_out);
}

FIBER_TEST(Timer, StopLeavesWhatWasBrought) {
  Timer timer(Deadline::now());
  test::yield_until([&] { return !timer.armed(); });
  EXPECT_FALSE(timer.stop());
  EXPECT_TRUE(timer.channel().try_recv());
}

FIBER_TEST(Timer, ResetTakesBackWhatWasBrought) {
  Timer timer(Deadline::now());
  test::yield_until([&] { return !timer.armed(); });
  EXPECT_FALSE(timer.reset(Deadline::after(1h)));
  EXPECT_EQ(timer.channel().try_recv().error(), Errc::would_block);
  EXPECT_TRUE(timer.reset(Deadline::after(1ms)));  // earlier
  EXPECT_TRUE(timer.channel().recv());
  EXPECT_FALSE(timer.reset(Deadline::after(1ms)));
  EXPECT_TRUE(timer.reset(Deadline::after(1h)));  // later
  EXPECT_EQ(timer.channel().recv(Deadline::after(5ms)).error(), Errc::timed_out);
}

FIBER_TEST(Timer, InASelect) {
  Timer soon(1ms);
  Timer late(1h);
  Channel<int> never;
  RecvCase in(never);
  RecvCase a(late.channel());
  RecvCase b(soon.channel());
  EXPECT_EQ(select({&in, &a, &b}).value(), 2u);
  EXPECT_TRUE(b.take());
  EXPECT_EQ(try_select({&in, &a, &b}).error(), Errc::would_block);
}

FIBER_TEST(Timer, EqualTimesFireInTheOrderOfTheirSetting) {
  const Deadline when = Deadline::after(2ms);
  std::vector<int> order;
  std::vector<std::unique_ptr<Timer>> timers;
  std::vector<JoinHandle<void>> waiters;
  for (int i = 0; i < 5; ++i) {
    timers.push_back(std::make_unique<Timer>(when));
    waiters.push_back(spawn(
        [&, i] {
          EXPECT_TRUE(timers[static_cast<std::size_t>(i)]->channel().recv());
          order.push_back(i);
        },
        {.hub = Hub::current()->index()}));
  }
  for (auto& waiter : waiters)
    EXPECT_TRUE(waiter.join());
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
}

// Stopping and starting from a thread that has no hub, and from another hub.
FIBER_TEST(Timer, AnyThreadMaySetIt) {
  Timer timer(1h);
  Event stopped;
  test::ForeignThreads threads;
  threads.start([&] {
    EXPECT_TRUE(timer.stop());
    EXPECT_FALSE(timer.stop());
    stopped.set();
  });
  EXPECT_TRUE(stopped.wait());
  test::yield_until([] { return timers_armed() == 0; });  // its entry has left the heap
  threads.start([&] { EXPECT_FALSE(timer.reset(Deadline::after(1ms))); });
  EXPECT_TRUE(timer.channel().recv());
  auto elsewhere = spawn(
      [&] {
        EXPECT_FALSE(timer.reset(Deadline::after(1h)));
        EXPECT_TRUE(timer.reset(Deadline::after(1ms)));
      },
      {.hub = 1});
  EXPECT_TRUE(elsewhere.join());
  EXPECT_TRUE(timer.channel().recv());
  threads.join();
}

FIBER_TEST(Timer, MovesToAnotherOwner) {
  Timer first(1ms);
  Timer second(std::move(first));
  EXPECT_TRUE(second.channel().recv());
  Timer third;
  third = Timer(1ms);
  EXPECT_TRUE(third.channel().recv());
}

FIBER_TEST(Timer, A18_CancelledTimersLeaveTheHeap) {
  const int count = test::kSanitized ? 10'000 : 100'000;
  for (int i = 0; i < count; ++i)
    Timer timer(1h);
  EXPECT_EQ(timers_armed(), 0u);
}

TEST(TimerLifetime, DoesNotKeepTheRunAliveAndMayOutliveTheScheduler) {
  test::HangGuard guard;
  std::optional<Timer> stopped_late, destroyed_late, never_run;
  {
    Scheduler scheduler;
    guard.watch(&scheduler);
    EXPECT_TRUE(scheduler.run([&] {
      stopped_late.emplace(1h);
      destroyed_late.emplace(1h);
    }));
    EXPECT_EQ(scheduler.stats().sleeping, 2u);
    EXPECT_TRUE(stopped_late->stop());  // a message that the hub will not read any more
    Timer short_lived(Deadline::after(1h), &scheduler.hub(0));
    never_run.emplace(Deadline::now(), &scheduler.hub(0));
    guard.watch(nullptr);
  }
  EXPECT_FALSE(stopped_late->stop());
  EXPECT_FALSE(stopped_late->reset(Deadline::now()));
  EXPECT_TRUE(destroyed_late->stop());
  EXPECT_TRUE(never_run->armed());  // and will never fire
}

TEST(TimerDeathTest, NeedsAHub) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(Timer(1s), "a timer made on a thread without a hub");
}

// ---------------------------------------------------------------- Ticker

FIBER_TEST(Ticker, TicksAtMultiplesOfThePeriod) {
  const std::int64_t start = monotonic_ns();
  Ticker ticker(2ms);
  std::int64_t last = 0;
  for (int i = 1; i <= 4; ++i) {
    const std::int64_t tick = ticker.channel().recv().value();
    EXPECT_GE(tick - start, i * 2'000'000);
    EXPECT_GT(tick, last);
    last = tick;
  }
  EXPECT_TRUE(ticker.armed());
  EXPECT_TRUE(ticker.stop());
  (void)ticker.channel().try_recv();
  EXPECT_EQ(ticker.channel().recv(Deadline::after(5ms)).error(), Errc::timed_out);
}

FIBER_TEST(Ticker, DropsTicksThatNobodyTakes) {
  Ticker ticker(1ms);
  EXPECT_TRUE(this_fiber::sleep_for(8ms));
  EXPECT_EQ(ticker.channel().size(), 1u);
  EXPECT_TRUE(ticker.channel().recv());
  const std::int64_t before = monotonic_ns();
  EXPECT_GE(ticker.channel().recv().value(), before);  // a fresh one, not one of those missed
}

FIBER_TEST(Ticker, ResetChangesThePeriod) {
  Ticker ticker(1h);
  ticker.reset(1ms);
  EXPECT_TRUE(ticker.channel().recv());
  EXPECT_TRUE(ticker.channel().recv());
  ticker.reset(1h);
  EXPECT_EQ(ticker.channel().try_recv().error(), Errc::would_block);
  EXPECT_EQ(ticker.channel().recv(Deadline::after(5ms)).error(), Errc::timed_out);
}

TEST(TickerDeathTest, NeedsAPeriod) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH((void)run([] { Ticker(0ns); }, Options{}), "must be above zero");
}

// ---------------------------------------------------------------- races

// stop() from another hub and from a thread, at about the moment when the timer fires: it says
// true and nothing comes, or false and exactly one value comes.
FIBER_TEST(TimerRace, StopAgainstFire) {
  const test::RaceBudget budget;
  test::Random random(0);
  test::ForeignThreads threads;
  Channel<Timer*> to_thread;
  Channel<bool> from_thread;
  threads.start([&] {
    while (auto timer = to_thread.recv())
      EXPECT_TRUE(from_thread.send((*timer)->stop()));
  });
  do {
    Timer timer(
        Deadline::after(std::chrono::microseconds(random.below(60))),
        &Scheduler::current()->hub(random.one_in(2) ? 0 : Scheduler::current()->hubs() - 1));
    bool prevented = false;
    if (random.one_in(2)) {
      EXPECT_TRUE(to_thread.send(&timer));
      prevented = from_thread.recv().value();
    } else {
      auto stopper = spawn([&] { return timer.stop(); }, {.hub = 1});
      prevented = stopper.join().value();
    }
    EXPECT_FALSE(timer.armed());
    EXPECT_EQ(timer.channel().size(), prevented ? 0u : 1u);
  } while (!budget.spent());
  EXPECT_TRUE(to_thread.close());
  threads.join();
}

// Everybody sets one timer. In the end one setting counts.
FIBER_TEST(TimerRace, ResetFromEverywhere) {
  const test::RaceBudget budget;
  Timer timer;
  auto work = [&](std::uint32_t id) {
    test::Random random(id);
    while (!budget.spent()) {
      switch (random.below(3)) {
        case 0:
          timer.stop();
          break;
        case 1:
          timer.reset(Deadline::after(std::chrono::microseconds(random.below(50))));
          break;
        default:
          timer.reset(Deadline::after(1h));
      }
      if (random.one_in(2)) this_fiber::yield();
    }
  };
  test::ForeignThreads threads;
  threads.start([&] { work(0); });
  threads.start([&] { work(1); });
  std::vector<JoinHandle<void>> fibers;
  for (std::uint32_t id = 2; id < 6; ++id)
    fibers.push_back(spawn([&, id] { work(id); }, {.hub = static_cast<int>(id)}));
  threads.join();
  for (auto& fiber : fibers)
    EXPECT_TRUE(fiber.join());
  timer.reset(Deadline::after(1h));
  EXPECT_EQ(timer.channel().size(), 0u);
  timer.reset(Deadline::after(1ms));
  EXPECT_TRUE(timer.channel().recv());
  timer.stop();
  test::yield_until([] { return timers_armed() == 0; });
}

// Handles go away on one hub while the timers fire on another.
FIBER_TEST(TimerRace, DestroyedWhileItFires) {
  const test::RaceBudget budget;
  test::Random random(0);
  do {
    std::vector<std::unique_ptr<Timer>> timers;
    for (int i = 0; i < 8; ++i) {
      const auto after = std::chrono::microseconds(random.below(60));
      Hub& hub = Scheduler::current()->hub(i % Scheduler::current()->hubs());
      timers.push_back(std::make_unique<Timer>(Deadline::after(after), &hub));
    }
    for (std::uint32_t i = random.below(4); i > 0; --i)
      this_fiber::yield();
  } while (!budget.spent());
}

}  // namespace
}  // namespace runloom
