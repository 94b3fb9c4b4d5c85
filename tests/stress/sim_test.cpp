// Random programs on the simulated driver. A failure names the seed; run it again with
//
//     RUNLOOM_SIM_SEED=<n> runloom_stress_tests --gtest_filter=Sim.RandomPrograms
//
// RUNLOOM_SIM_MS=<n> spends that many milliseconds on fresh seeds.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "runloom/sched/cancel.hpp"
#include "runloom/sched/scheduler.hpp"
#include "sched/line.hpp"
#include "support/fiber_test.hpp"
#include "support/sim_driver.hpp"

namespace runloom {
namespace {

using test::SimRandom;
using namespace std::chrono_literals;

// What is known of one fiber of a program.
struct Actor {
  FiberHandle handle;
  std::uint64_t permits_given = 0, permits_taken = 0;
  bool cancelled = false;  // at some time
  bool ended = false;
};

// Fibers that do random things to themselves and to each other, and check that what comes back
// can be true.
class Program {
 public:
  explicit Program(std::uint64_t seed) : seed_(seed) {}

  // Runs it; returns a hash of all that happened.
  std::uint64_t run() {
    std::uint64_t trace = 0;
    Scheduler scheduler(test::sim_options(seed_));
    auto ran = scheduler.run([&] {
      {
        std::vector<JoinHandle<std::size_t>> roots;
        for (int i = 0; i < 4; ++i)
          roots.push_back(start());
        for (auto& root : roots)
          EXPECT_TRUE(root.join());
      }
      EXPECT_TRUE(scheduler.run()) << "those that nobody joined";
      trace = test::sim_driver().trace();
      // Events of operations that their fibers left are still to come, for nobody.
      while (test::sim_driver().pending() != 0)
        EXPECT_TRUE(this_fiber::sleep_for(1ms));
    });
    EXPECT_TRUE(ran) << ran.error().message();
    const Stats stats = scheduler.stats();
    EXPECT_EQ(stats.live, 0u);
    EXPECT_EQ(stats.sleeping, 0u);
    EXPECT_EQ(stats.io_parked, 0u);
    EXPECT_EQ(stats.spawned, actors_.size() + 1);
    for (const Actor& actor : actors_) {
      EXPECT_TRUE(actor.ended);
      EXPECT_EQ(actor.permits_given, actor.permits_taken);
    }
    return trace ^ hash_;
  }

 private:
  // The bounds that a step stands in, outermost first: what may end a wait.
  struct Bound {
    const CancelScope* scope;
    bool shield;
  };

  static constexpr std::size_t kMostActors = 60;

  JoinHandle<std::size_t> start() {
    const std::size_t index = actors_.size();
    actors_.emplace_back();
    auto handle = spawn([this, index] { return act(index); });
    EXPECT_TRUE(handle);
    actors_[index].handle = handle.handle();
    return handle;
  }

  std::size_t act(std::size_t self) {
    SimRandom random(seed_ * 1000 + self);
    std::vector<std::pair<std::size_t, JoinHandle<std::size_t>>> children;
    std::vector<Bound> bounds;
    for (std::uint64_t steps = 2 + random.below(12); steps > 0; --steps)
      step(self, random, bounds, children);
    // The rest of its permits, which a cancelled fiber may take as well.
    while (this_fiber::park(Deadline::now()))
      ++actors_[self].permits_taken;
    actors_[self].ended = true;
    return self;
  }

  void step(std::size_t self, SimRandom& random, std::vector<Bound>& bounds,
            std::vector<std::pair<std::size_t, JoinHandle<std::size_t>>>& children) {
    const std::uint64_t action = random.below(14);
    hash_ = (hash_ ^ (self * 16 + action)) * 0x100000001b3;
    switch (action) {
      case 0:
        this_fiber::yield();
        return;
      case 1:
      case 2: {
        const Deadline until = soon(random);
        check(self, bounds, this_fiber::sleep_until(until), until, true);
        return;
      }
      case 3:
      case 4: {
        // Not for ever: whoever would wake it may have ended.
        const Deadline deadline = soon(random);
        auto parked = this_fiber::park(deadline);
        if (parked) ++actors_[self].permits_taken;
        check(self, bounds, parked, deadline, false);
        return;
      }
      case 5:
      case 6: {
        Actor& other = actors_[random.below(actors_.size())];
        const bool given = other.handle.unpark();
        EXPECT_EQ(given, !other.ended);
        other.permits_given += given;
        return;
      }
      case 7:
        if (random.one_in(4)) {
          Actor& other = actors_[random.below(actors_.size())];
          EXPECT_EQ(other.handle.cancel(), !other.ended);
          other.cancelled = true;
        } else if (random.one_in(2)) {
          EXPECT_TRUE(actors_[self].handle.uncancel());
        }
        return;
      case 8:
      case 9:
        if (actors_.size() < kMostActors) {
          const std::size_t index = actors_.size();
          children.emplace_back(index, start());
          if (random.one_in(3)) children.pop_back();  // detached
        }
        return;
      case 10:
        if (!children.empty()) {
          const Deadline deadline = random.one_in(2) ? soon(random) : Deadline::never();
          auto joined = children.back().second.join(deadline);
          if (joined) {
            EXPECT_EQ(*joined, children.back().first);
            children.pop_back();
          }
          check(self, bounds, joined, deadline, false);
        }
        return;
      case 11: {
        const Deadline deadline = random.one_in(2) ? soon(random) : Deadline::never();
        auto done = test::sim_driver().operate(300'000, deadline);
        if (!done && done.error() == std::errc::io_error) return;
        check(self, bounds, done, deadline, false);
        return;
      }
      case 12: {
        if (bounds.size() >= 3) return;
        CancelScope scope(random.one_in(2) ? soon(random) : Deadline::never());
        bounds.push_back({&scope, false});
        for (std::uint64_t steps = random.below(5); steps > 0; --steps) {
          step(self, random, bounds, children);
          if (random.one_in(8)) scope.cancel();
          if (random.one_in(8)) scope.set_deadline(soon(random));
        }
        bounds.pop_back();
        return;
      }
      case 13: {
        if (bounds.size() >= 3) return;
        Shield shield;
        bounds.push_back({nullptr, true});
        for (std::uint64_t steps = random.below(4); steps > 0; --steps)
          step(self, random, bounds, children);
        bounds.pop_back();
        return;
      }
    }
  }

  // A time from the past to half a millisecond ahead.
  static Deadline soon(SimRandom& random) {
    const auto ns = static_cast<std::int64_t>(random.below(550'000)) - 50'000;
    return Deadline::at_ns(monotonic_ns() + ns);
  }

  // Whether that outcome was possible.
  template <class T>
  void check(std::size_t self, const std::vector<Bound>& bounds, const Result<T>& outcome,
             Deadline deadline, bool must_wait) {
    if (outcome) {
      EXPECT_TRUE(!must_wait || deadline.passed()) << "early";
      return;
    }
    bool scope_cancelled = false, scope_timed_out = false, shielded = false;
    for (auto bound = bounds.rbegin(); bound != bounds.rend() && !shielded; ++bound) {
      shielded = bound->shield;
      if (!shielded) {
        scope_cancelled |= bound->scope->cancelled();
        scope_timed_out |= bound->scope->timed_out();
      }
    }
    if (outcome.error() == Errc::timed_out) {
      EXPECT_TRUE(scope_timed_out || (!must_wait && deadline.passed()));
    } else {
      EXPECT_EQ(outcome.error(), Errc::cancelled);
      EXPECT_TRUE(scope_cancelled || (!shielded && actors_[self].cancelled));
    }
  }

  const std::uint64_t seed_;
  std::vector<Actor> actors_;
  std::uint64_t hash_ = 0;
};

std::uint64_t number(const char* variable) {
  const char* text = std::getenv(variable);
  return text ? std::strtoull(text, nullptr, 10) : 0;
}

// Names the seed of the program that hangs, aborts or crashes.
class SeedOnCrash {
 public:
  SeedOnCrash() {
    for (std::size_t i = 0; i < std::size(kSignals); ++i) {
      struct sigaction action {};
      action.sa_handler = &tell;
      action.sa_flags = static_cast<int>(SA_RESETHAND | SA_NODEFER);
      ::sigaction(kSignals[i], &action, &before_[i]);
    }
  }
  ~SeedOnCrash() {
    ::alarm(0);
    for (std::size_t i = 0; i < std::size(kSignals); ++i)
      ::sigaction(kSignals[i], &before_[i], nullptr);
  }
  void begin(std::uint64_t program) {
    seed = program;
    ::alarm(test::kSanitized ? 60 : 10);
  }

 private:
  static constexpr int kSignals[] = {SIGALRM, SIGABRT, SIGSEGV};
  static void tell(int signal) {
    detail::Line line(2);
    line.text(signal == SIGALRM ? "hangs" : "crashes").text("; replay with RUNLOOM_SIM_SEED=");
    line.number(seed).end();
    ::raise(signal);
  }
  static inline volatile std::uint64_t seed = 0;
  struct sigaction before_[std::size(kSignals)];
};

bool run_program(std::uint64_t seed, SeedOnCrash& watch) {
  SCOPED_TRACE("replay with RUNLOOM_SIM_SEED=" + std::to_string(seed));
  watch.begin(seed);
  (void)Program(seed).run();
  return !testing::Test::HasFailure();
}

TEST(Sim, RandomPrograms) {
  SeedOnCrash watch;
  if (const std::uint64_t seed = number("RUNLOOM_SIM_SEED")) {
    run_program(seed, watch);
    return;
  }
  const auto end = std::chrono::steady_clock::now() + 10s;
  std::uint64_t seed = 1;
  for (; seed <= 5'000 && std::chrono::steady_clock::now() < end; ++seed)
    if (!run_program(seed, watch)) return;
  RecordProperty("seeds", static_cast<int>(seed - 1));
}

TEST(Sim, FreshRandomPrograms) {
  const std::uint64_t ms = number("RUNLOOM_SIM_MS");
  if (ms == 0) GTEST_SKIP() << "set RUNLOOM_SIM_MS to the time to spend";
  std::random_device entropy;
  SeedOnCrash watch;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
  while (std::chrono::steady_clock::now() < end)
    if (!run_program(entropy(), watch)) return;
}

TEST(Sim, SameSeedSameRun) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed)
    EXPECT_EQ(Program(seed).run(), Program(seed).run()) << seed;
  EXPECT_NE(Program(1).run(), Program(2).run());
}

TEST(Sim, TimePassesOnlyInTheSimulation) {
  Scheduler scheduler(test::sim_options(7));
  const auto real = std::chrono::steady_clock::now();
  auto ran = scheduler.run([] {
    const std::int64_t start = monotonic_ns();
    EXPECT_TRUE(this_fiber::sleep_for(std::chrono::hours(1)));
    EXPECT_GE(monotonic_ns() - start, 3'600'000'000'000);
    EXPECT_LT(monotonic_ns() - start, 3'600'100'000'000 + 1'000'000'000);
  });
  EXPECT_TRUE(ran);
  EXPECT_LT(std::chrono::steady_clock::now() - real, std::chrono::minutes(1));
}

TEST(Sim, EventsComeInTheOrderOfTheSeed) {
  auto order = [](std::uint64_t seed) {
    std::vector<int> finished;
    Scheduler scheduler(test::sim_options(seed, {.held_back = 0, .failed = 0}));
    auto ran = scheduler.run([&] {
      std::vector<JoinHandle<void>> fibers;
      for (int i = 0; i < 8; ++i)
        fibers.push_back(spawn([&, i] {
          EXPECT_TRUE(test::sim_driver().operate(1'000));
          finished.push_back(i);
        }));
      for (auto& fiber : fibers)
        EXPECT_TRUE(fiber.join());
    });
    EXPECT_TRUE(ran);
    return finished;
  };
  EXPECT_EQ(order(1), order(1));
  EXPECT_NE(order(1), order(2));
}

}  // namespace
}  // namespace runloom
