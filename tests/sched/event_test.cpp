#include "runloom/sched/event.hpp"

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "runloom/sched/cancel.hpp"
#include "support/fiber_test.hpp"
#include "support/race.hpp"

namespace runloom {
namespace {

using namespace std::chrono_literals;
using test::until_parked;

FIBER_TEST(Event, WaitReturnsAtOnceWhenSet) {
  Event event;
  EXPECT_FALSE(event.is_set());
  event.set();
  event.set();
  EXPECT_TRUE(event.is_set());
  CancelScope scope;
  scope.cancel();
  EXPECT_TRUE(event.wait());  // need not park, so nothing can stop it
  EXPECT_TRUE(event.wait(Deadline::now()));
  event.clear();
  EXPECT_FALSE(event.is_set());
  EXPECT_EQ(event.wait().error(), Errc::cancelled);
}

FIBER_TEST(Event, PulseLosesNoWaiter) {
  Event event;
  std::vector<JoinHandle<Result<void>>> waiters;
  for (int i = 0; i < 10; ++i) {
    waiters.push_back(spawn([&] { return event.wait(); }));
    until_parked(waiters.back().handle(), WaitReason::event);
  }
  event.set();
  event.clear();
  EXPECT_EQ(event.wait(Deadline::now()).error(), Errc::timed_out);  // who comes later waits
  for (auto& waiter : waiters)
    EXPECT_TRUE(waiter.join());
}

FIBER_TEST(Event, DeadlineAndCancel) {
  Event event;
  EXPECT_EQ(event.wait(Deadline::after(1ms)).error(), Errc::timed_out);
  auto waiter = spawn([&] { return event.wait(); });
  until_parked(waiter.handle(), WaitReason::event);
  waiter.cancel();
  EXPECT_EQ(waiter.join().error(), Errc::cancelled);
  event.set();
  EXPECT_TRUE(event.wait());
}

FIBER_TEST(Event, OsThreadsSetAndWait) {
  Event there;
  Event back;
  test::ForeignThreads threads;
  threads.start([&] {
    EXPECT_EQ(back.wait(Deadline::after(1ms)).error(), Errc::timed_out);
    EXPECT_TRUE(there.wait());
    back.set();
  });
  there.set();
  EXPECT_TRUE(back.wait());
  threads.join();
}

TEST(EventDeathTest, DestroyedWhileSomebodyWaits) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH((void)run(
                   [] {
                     auto event = std::make_unique<Event>();
                     auto waiter = spawn([&] { return event->wait(); });
                     this_fiber::yield();
                     event.reset();
                   },
                   Options{}),
               "an event was destroyed while somebody waits");
}

// A round is over when all have passed; no pulse may leave one behind.
FIBER_TEST(EventRace, PulsesAgainstWaiters) {
  constexpr int kFibers = 6;
  Event event;
  std::atomic<bool> over{false};
  std::atomic<std::int64_t> passed{0};
  std::atomic<std::int64_t> waiting{0};
  auto wait = [&](std::uint32_t id) {
    test::Random random(id);
    while (!over.load()) {
      waiting.fetch_add(1);
      const bool limited = random.one_in(3);
      const auto limit = std::chrono::microseconds(random.below(60));
      const auto woken = event.wait(limited ? Deadline::after(limit) : Deadline::never());
      waiting.fetch_sub(1);
      if (woken) {
        passed.fetch_add(1, std::memory_order_relaxed);
      } else {
        EXPECT_EQ(woken.error(), Errc::timed_out);
        EXPECT_TRUE(limited);
      }
      if (random.one_in(2)) this_fiber::yield();
    }
  };
  test::ForeignThreads threads;
  std::vector<JoinHandle<void>> fibers;
  for (std::uint32_t id = 0; id < kFibers; ++id)
    fibers.push_back(spawn([&, id] { wait(id); }, {.hub = static_cast<int>(id)}));
  threads.start([&] { wait(100); });
  threads.start([&] {
    const test::RaceBudget budget;
    while (!budget.spent()) {
      event.set();
      event.clear();
    }
    over.store(true);
    event.set();
  });
  threads.join();
  for (auto& fiber : fibers)
    EXPECT_TRUE(fiber.join());
  EXPECT_EQ(waiting.load(), 0);
  EXPECT_GT(passed.load(), 0);
}

// The one who waited destroys the event although set() may not have returned.
FIBER_TEST(EventRace, WaiterDestroysTheEvent) {
  const test::RaceBudget budget;
  test::Random random(0);
  do {
    auto event = std::make_unique<Event>();
    auto setter = spawn([target = event.get()] { target->set(); }, {.hub = 1});
    for (std::uint32_t i = random.below(4); i > 0; --i)
      this_fiber::yield();
    EXPECT_TRUE(event->wait());
    event.reset();
    EXPECT_TRUE(setter.join());
  } while (!budget.spent());
}

}  // namespace
}  // namespace runloom
