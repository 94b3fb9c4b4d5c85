// The loop of a hub: order, budgets, messages, stealing, sleep and wake-ups.
#include "hub_impl.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "runloom/sched/scheduler.hpp"
#include "support/fiber_test.hpp"
#include "support/kernel.hpp"
#include "support/race.hpp"

namespace runloom {
namespace {

using namespace std::chrono_literals;

// Runs for a while on the processor without giving it up.
void burn(std::chrono::microseconds duration) {
  const auto end = std::chrono::steady_clock::now() + duration;
  while (std::chrono::steady_clock::now() < end) {
  }
}

// ---------------------------------------------------------------- fairness

// S04, counted in switches.
TEST(Hub, S04_YieldersDoNotStarveADueTimer) {
  Scheduler scheduler;
  auto ran = scheduler.run([&] {
    std::atomic<bool> stop = false;
    std::atomic<std::uint64_t> switches = 0;
    std::vector<JoinHandle<void>> yielders;
    for (int i = 0; i < 2; ++i)
      yielders.push_back(spawn([&] {
        while (!stop) {
          ++switches;
          this_fiber::yield();
        }
      }));
    std::uint64_t worst = 0;
    for (int i = 0; i < 20; ++i) {
      std::uint64_t due_at = 0;
      const Deadline deadline = Deadline::after(1ms);
      auto observer = spawn([&] {  // notes the count at the first look after it is due
        while (!deadline.passed())
          this_fiber::yield();
        due_at = switches;
      });
      EXPECT_TRUE(this_fiber::sleep_until(deadline));
      const std::uint64_t woken_at = switches;
      EXPECT_TRUE(observer.join());
      worst = std::max(worst, woken_at > due_at ? woken_at - due_at : 0);
    }
    stop = true;
    for (auto& yielder : yielders)
      EXPECT_TRUE(yielder.join());
    EXPECT_LT(worst, 200u);
  });
  EXPECT_TRUE(ran);
}

// A fiber whose turns are long makes the hub look at timers more often.
TEST(Hub, S04_LongTurnsShrinkTheBudget) {
  Scheduler scheduler;
  auto ran = scheduler.run([&] {
    std::atomic<bool> stop = false;
    std::atomic<int> rounds = 0;
    std::vector<JoinHandle<void>> burners;
    for (int i = 0; i < 2; ++i)
      burners.push_back(spawn([&] {
        while (!stop) {
          burn(2ms);
          ++rounds;
          this_fiber::yield();
        }
      }));
    const std::uint64_t turns = scheduler.stats().turns;
    while (scheduler.stats().turns < turns + 12)  // the budget adapts
      this_fiber::yield();
    const int before = rounds;
    EXPECT_TRUE(this_fiber::sleep_for(1ms));
    // Due when the first burner is done: few may run before it is looked at.
    EXPECT_LE(rounds - before, 4);
    stop = true;
    for (auto& burner : burners)
      EXPECT_TRUE(burner.join());
  });
  EXPECT_TRUE(ran);
}

FIBER_TEST(Hub, YieldAloneOnTheHubStillRunsTimers) {
  bool fired = false;
  auto timer = spawn(
      [&] {
        EXPECT_TRUE(this_fiber::sleep_for(1ms));
        fired = true;
      },
      {.hub = 0});
  while (!fired)
    this_fiber::yield();
  EXPECT_TRUE(timer.join());
}

// ---------------------------------------------------------------- messages

FIBER_TEST(Hub, MessagesRunOnTheHubInOrder) {
  struct Note : Hub::Message {
    std::vector<int>* log;
    std::atomic<int>* count;
    int number;
  };
  std::vector<int> log;
  std::atomic<int> count = 0;
  std::vector<std::unique_ptr<Note>> notes;
  Hub& last = Scheduler::current()->hub(Scheduler::current()->hubs() - 1);
  for (int i = 0; i < 100; ++i) {
    auto note = std::make_unique<Note>();
    note->log = &log;
    note->count = &count;
    note->number = i;
    note->fn = [](Hub& hub, Hub::Message& message) {
      auto& self = static_cast<Note&>(message);
      EXPECT_EQ(Hub::current(), &hub);
      EXPECT_FALSE(this_fiber::exists()) << "in the hub's own context";
      self.log->push_back(self.number);
      ++*self.count;
    };
    notes.push_back(std::move(note));
    last.post(*notes.back());
  }
  test::yield_until([&] { return count == 100; });
  std::vector<int> wanted(100);
  for (int i = 0; i < 100; ++i)
    wanted[static_cast<std::size_t>(i)] = i;
  EXPECT_EQ(log, wanted);
}

TEST(HubRace, EveryThreadPostsToEveryHub) {
  struct Note : Hub::Message {
    std::atomic<int>* count;
  };
  test::HangGuard guard;
  Scheduler scheduler({.hubs = 2});
  constexpr int kEach = 500;
  std::atomic<int> count = 0;
  std::vector<Note> notes(3 * kEach * 2);
  auto ran = scheduler.run([&] {
    test::ForeignThreads threads;
    for (std::size_t t = 0; t < 3; ++t)
      threads.start([&, t] {
        for (std::size_t i = 0; i < kEach * 2; ++i) {
          Note& note = notes[t * kEach * 2 + i];
          note.count = &count;
          note.fn = [](Hub&, Hub::Message& message) { ++*static_cast<Note&>(message).count; };
          scheduler.hub(static_cast<int>(i % 2)).post(note);
        }
      });
    threads.join();
    while (count != 3 * kEach * 2)
      (void)this_fiber::sleep_for(100us);
  });
  EXPECT_TRUE(ran);
}

// ---------------------------------------------------------------- stealing

// A fiber that is spawned while the other hub goes to sleep is seen by it, or wakes it: nobody else
// runs it, for this hub is busy.
TEST(HubRace, SpawnMeetsAHubThatGoesToSleep) {
  test::HangGuard guard;
  Scheduler scheduler({.hubs = 2});
  guard.watch(&scheduler);
  const auto ran = scheduler.run([] {
    test::Random random(1);
    std::atomic<int> last{0};
    int round = 0;
    for (test::RaceBudget budget; !budget.spent();) {
      ++round;
      (void)go([&last, round] { last = round; });
      while (last != round)
        std::this_thread::yield();
      for (std::uint32_t pause = random.below(2000); pause > 0; --pause)
        __builtin_ia32_pause();
    }
  });
  EXPECT_TRUE(ran);
  guard.watch(nullptr);
}

// Spins on one hub until the others have taken what stands there.
TEST(Hub, IdleHubStealsWhatHasNotStarted) {
  test::HangGuard guard;
  Scheduler scheduler({.hubs = 2});
  auto ran = scheduler.run([&] {
    std::atomic<int> started = 0;
    std::set<int> hubs;
    std::mutex mutex;
    std::vector<JoinHandle<void>> fibers;
    for (int i = 0; i < 10; ++i)
      fibers.push_back(spawn([&] {
        ++started;
        std::lock_guard hold(mutex);
        hubs.insert(Hub::current()->index());
      }));
    while (started < 10) {  // this hub is busy: only the other one can run them
    }
    EXPECT_EQ(hubs, std::set<int>{1});
    for (auto& fiber : fibers)
      EXPECT_TRUE(fiber.join());
  });
  EXPECT_TRUE(ran);
  EXPECT_EQ(scheduler.stats().stolen, 10u);
}

TEST(Hub, PinnedAndStartedFibersAreNotStolen) {
  test::HangGuard guard;
  Scheduler scheduler({.hubs = 2});
  auto ran = scheduler.run([&] {
    std::atomic<int> elsewhere = 0;
    std::vector<JoinHandle<void>> fibers;
    for (int i = 0; i < 20; ++i)
      fibers.push_back(spawn(
          [&] {
            for (int k = 0; k < 20; ++k) {
              elsewhere += Hub::current()->index() != 0;
              this_fiber::yield();
            }
          },
          {.hub = 0}));
    burn(5ms);  // time for the idle hub to take them, if it would
    for (auto& fiber : fibers)
      EXPECT_TRUE(fiber.join());
    EXPECT_EQ(elsewhere, 0);
  });
  EXPECT_TRUE(ran);
  EXPECT_EQ(scheduler.stats().stolen, 0u);
}

// I1, S06: whoever wakes it, a started fiber comes back on its own thread, with its own errno, its
// own place in thread-local memory and as the current fiber.
thread_local int tl_marker = 0;

TEST(HubRace, S06_StartedFiberStaysOnItsThread) {
  test::HangGuard guard;
  Scheduler scheduler({.hubs = 3});
  auto ran = scheduler.run([&] {
    constexpr int kFibers = 12;
    std::atomic<bool> stop = false;
    std::vector<JoinHandle<void>> fibers;
    std::vector<FiberHandle> handles(kFibers);
    std::atomic<int> ready = 0;
    for (int f = 0; f < kFibers; ++f) {
      fibers.push_back(spawn([&, f] {
        const pid_t thread = ::gettid();
        int* const error = &errno;
        int* const marker = &tl_marker;
        const FiberId id = this_fiber::id();
        handles[static_cast<std::size_t>(f)] = this_fiber::handle();
        ++ready;
        while (!stop) {
          errno = f;
          (void)this_fiber::park(Deadline::after(200us));
          EXPECT_EQ(errno, f);
          EXPECT_EQ(::gettid(), thread);
          EXPECT_EQ(&errno, error);
          EXPECT_EQ(&tl_marker, marker);
          EXPECT_EQ(this_fiber::id(), id);
        }
      }));
    }
    test::yield_until([&] { return ready == kFibers; });
    test::Random random(1);
    for (test::RaceBudget budget; !budget.spent();) {
      handles[random.below(kFibers)].unpark();
      if (random.one_in(8)) this_fiber::yield();
    }
    stop = true;
    for (auto& fiber : fibers)
      EXPECT_TRUE(fiber.join());
  });
  EXPECT_TRUE(ran);
}

TEST(HubRace, SpawnsSpreadOverBusyHubsAllRun) {
  test::HangGuard guard;
  Scheduler scheduler({.hubs = 3});
  std::atomic<long> ran_count = 0;
  long spawned = 0;
  auto ran = scheduler.run([&] {
    test::Random random(7);
    for (test::RaceBudget budget; !budget.spent();) {
      for (std::uint32_t i = random.below(40); i > 0; --i) {
        ++spawned;
        SpawnOptions where;
        if (random.one_in(3)) where.hub = static_cast<int>(random.below(3));
        ASSERT_TRUE(go(
            [&] {
              if (ran_count.fetch_add(1) % 3 == 0) this_fiber::yield();
            },
            where));
      }
      this_fiber::yield();
      if (random.one_in(50)) (void)this_fiber::sleep_for(50us);
    }
  });
  EXPECT_TRUE(ran);
  EXPECT_EQ(ran_count, spawned);
}

// ---------------------------------------------------------------- sleep and wake-ups

TEST(Hub, CrossHubWakeWritesOnlyWhenTheTargetSleeps) {
  test::HangGuard guard;
  Scheduler scheduler({.hubs = 2});
  auto ran = scheduler.run([&] {
    std::atomic<bool> stop = false;
    auto& other = static_cast<detail::HubImpl&>(scheduler.hub(1));
    auto parked = spawn(
        [] {
          while (this_fiber::park()) {
          }
        },
        {.hub = 1});
    // Asleep: each wake is one write.
    for (int i = 0; i < 5; ++i) {
      test::yield_until([&] { return other.sleeping.load(); });
      const std::uint64_t before = other.wakes_sent;
      parked.handle().unpark();
      EXPECT_EQ(other.wakes_sent - before, 1u);
    }
    // Busy: none.
    std::atomic<bool> busy = false;
    auto burner = spawn(
        [&] {
          busy = true;
          while (!stop)
            this_fiber::yield();
        },
        {.hub = 1});
    test::yield_until([&] { return busy.load(); });
    const std::uint64_t before = other.wakes_sent;
    for (int i = 0; i < 1'000; ++i)
      parked.handle().unpark();
    EXPECT_EQ(other.wakes_sent, before);
    stop = true;
    EXPECT_TRUE(burner.join());
    parked.cancel();
    EXPECT_TRUE(parked.join());
  });
  EXPECT_TRUE(ran);
}

TEST(Hub, SameHubWakeWritesNothing) {
  Scheduler scheduler;
  auto ran = scheduler.run([&] {
    auto parked = spawn([] {
      for (int i = 0; i < 1'000; ++i)
        EXPECT_TRUE(this_fiber::park());
    });
    for (int i = 0; i < 1'000; ++i) {
      parked.handle().unpark();
      this_fiber::yield();
    }
    EXPECT_TRUE(parked.join());
  });
  EXPECT_TRUE(ran);
  EXPECT_EQ(scheduler.stats().wakes_sent, 0u);
}

// From 2 s after the last work a scheduler costs nothing, whatever is parked or armed far away.
TEST(HubIdle, CostsNothing) {
  for (auto spin : {0us, 200us}) {
    const std::uint64_t trims = Scheduler().stats().stack_trims;
    Scheduler scheduler({.hubs = 2, .idle_spin = spin, .stall_threshold = 1s});
    std::thread observer;
    std::atomic<std::uint64_t> turns = 0, ticks = 0, sleeps = 0;
    auto ran = scheduler.run([&] {
      std::vector<JoinHandle<Result<void>>> parked;
      for (int i = 0; i < (test::kSanitized ? 100 : 1'000); ++i)
        parked.push_back(spawn([] { return this_fiber::park({}, true); }, {.hub = i % 2}));
      auto sleeper = spawn([] { return this_fiber::sleep_for(1h); });
      std::vector<JoinHandle<void>> short_lived;  // whose stacks are to be trimmed
      for (int i = 0; i < 100; ++i)
        short_lived.push_back(spawn([] {}));
      for (auto& fiber : short_lived)
        EXPECT_TRUE(fiber.join());
      auto self = this_fiber::handle();
      observer = std::thread([&, self] {
        std::this_thread::sleep_for(2s);
        const Stats before = scheduler.stats();
        const std::uint64_t ticks_before = test::cpu_ticks();
        std::this_thread::sleep_for(1s);
        turns = scheduler.stats().turns - before.turns;
        sleeps = scheduler.stats().sleeps - before.sleeps;
        ticks = test::cpu_ticks() - ticks_before;
        self.unpark();
      });
      EXPECT_TRUE(this_fiber::park({}, true));
      scheduler.cancel_all();
      this_fiber::handle().uncancel();
      for (auto& fiber : parked)
        EXPECT_EQ(fiber.join().error(), Errc::cancelled);
      EXPECT_EQ(sleeper.join().error(), Errc::cancelled);
    });
    observer.join();
    EXPECT_TRUE(ran);
    EXPECT_EQ(turns, 0u);
    EXPECT_EQ(sleeps, 0u);
    EXPECT_LE(ticks, 1u);  // of 10 ms: the observer's own
    EXPECT_GT(scheduler.stats().stack_trims, trims);
  }
}

// ---------------------------------------------------------------- drivers

class CountingDriver final : public Driver {
 public:
  explicit CountingDriver(std::atomic<int>& live) : live_(live) { ++live_; }
  ~CountingDriver() override { --live_; }
  int poll(std::int64_t timeout_ns) override { return real_->poll(timeout_ns); }
  void wake() noexcept override { real_->wake(); }

 private:
  std::atomic<int>& live_;
  std::unique_ptr<Driver> real_ = make_futex_driver();
};

TEST(Hub, ReplacedDriversAreKeptUntilTheHubEnds) {
  std::atomic<int> live = 0;
  {
    Options options{.hubs = 2};
    options.make_driver = [&](Hub&) { return std::make_unique<CountingDriver>(live); };
    Scheduler scheduler(options);
    auto ran = scheduler.run([&] {
      EXPECT_EQ(live, 2);
      Hub::current()->set_driver(std::make_unique<CountingDriver>(live));
      EXPECT_EQ(live, 3) << "a thread may be inside the old one's wake()";
      EXPECT_TRUE(this_fiber::sleep_for(1ms));
      auto woken = spawn([] { return this_fiber::park(Deadline::after(5s), true); });
      std::thread waker([handle = woken.handle()] { handle.unpark(); });
      EXPECT_TRUE(woken.join());
      waker.join();
    });
    EXPECT_TRUE(ran);
  }
  EXPECT_EQ(live, 0);
}

// ---------------------------------------------------------------- hooks

struct HookLog {
  std::vector<std::pair<detail::Fiber*, detail::Fiber*>> switches;
  int blocks = 0, unblocks = 0;
  std::vector<detail::Fiber*> finished;
};

TEST(Hub, SwitchHooksFollowEverySwitch) {
  HookLog log;
  Options options;
  options.hooks = {
      .context = &log,
      .switched =
          [](void* context, detail::Fiber* from, detail::Fiber* to) {
            static_cast<HookLog*>(context)->switches.emplace_back(from, to);
          },
      .before_block = [](void* context) { ++static_cast<HookLog*>(context)->blocks; },
      .after_block = [](void* context) { ++static_cast<HookLog*>(context)->unblocks; },
      .finished =
          [](void* context, detail::Fiber* fiber) {
            static_cast<HookLog*>(context)->finished.push_back(fiber);
          },
  };
  Scheduler scheduler(options);
  auto ran = scheduler.run([&] {
    auto other = spawn([] {
      this_fiber::yield();
      (void)this_fiber::sleep_for(1ms);
    });
    EXPECT_TRUE(other.join());
  });
  EXPECT_TRUE(ran);
  // A chain: each switch starts where the one before led, from the hub and back to it.
  ASSERT_FALSE(log.switches.empty());
  detail::Fiber* at = nullptr;
  for (const auto& [from, to] : log.switches) {
    EXPECT_EQ(from, at);
    EXPECT_NE(from, to);
    at = to;
  }
  EXPECT_EQ(at, nullptr);
  EXPECT_EQ(log.finished.size(), 2u);
  EXPECT_GE(log.blocks, 1);
  EXPECT_EQ(log.blocks, log.unblocks);
}

}  // namespace
}  // namespace runloom
