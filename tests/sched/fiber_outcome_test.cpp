// Results and exceptions that nobody takes: on whose stack they are destroyed.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "runloom/sched/channel.hpp"
#include "runloom/sched/mutex.hpp"
#include "runloom/sched/scheduler.hpp"
#include "support/fiber_test.hpp"
#include "support/race.hpp"

namespace runloom {
namespace {

using namespace std::chrono_literals;
using test::until_parked;
using test::yield_until;

// Parks in its destructor, and tells on which fiber.
struct ParksAtTheEnd {
  explicit ParksAtTheEnd(std::atomic<FiberId>& where) : fiber(&where) {}
  ParksAtTheEnd(ParksAtTheEnd&& other) noexcept : fiber(std::exchange(other.fiber, nullptr)) {}
  ~ParksAtTheEnd() {
    if (!fiber) return;
    const FiberId here = this_fiber::id();
    (void)this_fiber::sleep_for(1ms);
    fiber->store(here);
  }
  std::atomic<FiberId>* fiber;
};

// An exception cannot be moved out of the way: it is copied, and the last copy counts.
struct ErrorThatParks : std::runtime_error {
  explicit ErrorThatParks(std::atomic<FiberId>& where)
      : std::runtime_error("parks"), parks(std::make_shared<ParksAtTheEnd>(where)) {}
  std::shared_ptr<ParksAtTheEnd> parks;
};

void ignore(std::string_view, std::exception_ptr) {}
struct IgnoreReports {
  IgnoreReports() { set_unhandled_exception_handler(&ignore); }
  ~IgnoreReports() { set_unhandled_exception_handler(nullptr); }
};

// The fiber that runs next after an end must not get a wait of the destructor's among its own: it
// would take that wait's end for the end of its own.
FIBER_TEST(FiberOutcome, IsDestroyedOnTheFiberItself) {
  const IgnoreReports quiet;
  for (const bool throws : {false, true}) {
    std::atomic<FiberId> destroyed_on{0};
    Mutex mutex;
    mutex.lock();
    auto waits = spawn([&] { return mutex.lock(Deadline::never()); }, {.hub = 0});
    until_parked(waits.handle(), WaitReason::mutex);
    auto ends = spawn(
        [&]() -> ParksAtTheEnd {
          mutex.unlock();  // the other one is the next to run
          if (throws) throw ErrorThatParks(destroyed_on);
          return ParksAtTheEnd(destroyed_on);
        },
        {.hub = 0});
    const FiberId id = ends.handle().id();
    ends.detach();
    EXPECT_TRUE(waits.join());
    EXPECT_TRUE(mutex.locked());
    mutex.unlock();
    yield_until([&] { return destroyed_on != 0; });
    EXPECT_EQ(destroyed_on, id) << (throws ? "exception" : "result");
  }
}

FIBER_TEST(FiberOutcome, OfAnEndedFiberIsDestroyedByWhoeverDropsTheHandle) {
  const IgnoreReports quiet;
  for (const bool throws : {false, true}) {
    std::atomic<FiberId> destroyed_on{0};
    {
      auto ended = spawn([&]() -> ParksAtTheEnd {
        if (throws) throw ErrorThatParks(destroyed_on);
        return ParksAtTheEnd(destroyed_on);
      });
      yield_until([&] { return ended.done(); });
      EXPECT_EQ(destroyed_on, 0u);
    }
    EXPECT_EQ(destroyed_on, this_fiber::id()) << (throws ? "exception" : "result");
  }
}

// A cancel reaches a destructor that waits.
FIBER_TEST(FiberOutcome, DestructorIsACancelPoint) {
  struct WaitsForEver {
    explicit WaitsForEver(Channel<int>& never, std::atomic<bool>& was_cancelled)
        : channel(&never), cancelled(&was_cancelled) {}
    WaitsForEver(WaitsForEver&& other) noexcept
        : channel(std::exchange(other.channel, nullptr)), cancelled(other.cancelled) {}
    ~WaitsForEver() {
      if (channel) *cancelled = channel->recv().error() == Errc::cancelled;
    }
    Channel<int>* channel;
    std::atomic<bool>* cancelled;
  };
  Channel<int> never;
  std::atomic<bool> cancelled{false};
  // On this hub, so that it has not ended when the handle goes.
  auto handle =
      spawn([&] { return WaitsForEver(never, cancelled); }, {.hub = Hub::current()->index()});
  const FiberHandle fiber = handle.handle();
  handle.detach();
  until_parked(fiber, WaitReason::channel_recv);
  EXPECT_TRUE(fiber.cancel());
  yield_until([&] { return !fiber.alive(); });
  EXPECT_TRUE(cancelled);
}

// The handle goes at any moment of the end: the outcome is destroyed once, whoever does it.
FIBER_TEST(FiberOutcomeRace, HandlesAreDroppedWhileFibersEnd) {
  struct Counts {
    explicit Counts(std::atomic<int>& count) : live(&count) { ++*live; }
    Counts(const Counts& other) : live(other.live) { ++*live; }
    ~Counts() { --*live; }
    std::atomic<int>* live;
  };
  const IgnoreReports quiet;
  std::atomic<int> live{0};
  for (test::RaceBudget budget; !budget.spent();) {
    std::vector<JoinHandle<Counts>> handles;
    for (int i = 0; i < 16; ++i)
      handles.push_back(spawn(
          [&live, i]() -> Counts {
            if (i % 3 == 0) this_fiber::yield();
            if (i % 4 == 0) throw Counts(live);
            return Counts(live);
          },
          {.hub = i}));
    // A thread drops the first half of them, this fiber the others.
    test::ForeignThreads threads;
    threads.start([&handles] {
      for (int i = 0; i < 8; ++i)
        handles[static_cast<std::size_t>(i)].detach();
    });
    this_fiber::yield();
    for (std::size_t i = 8; i < handles.size(); ++i)
      handles[i].detach();
    threads.join();
    yield_until([&] { return live == 0; });
  }
}

}  // namespace
}  // namespace runloom
