// What a switch must keep for each fiber: caught and flying exceptions (S07), errno (S06), the
// floating-point control words (S16).
#include "context.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <cfenv>
#include <exception>
#include <string>
#include <vector>

#include "runloom/sched/scheduler.hpp"
#include "support/fiber_test.hpp"

namespace runloom {
namespace {

constexpr int kRounds = 100'000;
constexpr int kFibers = 4;

struct Tagged {
  int fiber;
  int round;
};

// Runs body(fiber, round) on several fibers that take turns; `kRounds` calls in all.
template <class Body>
void take_turns(Body body) {
  std::vector<JoinHandle<void>> fibers;
  for (int f = 0; f < kFibers; ++f)
    fibers.push_back(spawn(
        [f, &body] {
          for (int round = 0; round < kRounds / kFibers; ++round)
            body(f, round);
        },
        {.hub = 0}));
  for (auto& fiber : fibers)
    EXPECT_TRUE(fiber.join());
}

FIBER_TEST(Context, S07_ParkInsideACatchBlock) {
  int wrong = 0;
  take_turns([&](int fiber, int round) {
    try {
      throw Tagged{fiber, round};
    } catch (const Tagged&) {
      this_fiber::yield();  // the others throw and catch theirs
      try {
        throw;  // must be our own
      } catch (const Tagged& again) {
        wrong += again.fiber != fiber || again.round != round;
      }
      wrong += std::uncaught_exceptions() != 0;
    }
    wrong += std::current_exception() != nullptr;
  });
  EXPECT_EQ(wrong, 0);
}

FIBER_TEST(Context, S07_ParkInsideADestructorDuringUnwinding) {
  struct YieldingGuard {
    int& wrong;
    ~YieldingGuard() {
      wrong += std::uncaught_exceptions() != 1;
      this_fiber::yield();
      wrong += std::uncaught_exceptions() != 1;
    }
  };
  int wrong = 0;
  take_turns([&](int fiber, int round) {
    try {
      YieldingGuard guard{wrong};
      throw Tagged{fiber, round};
    } catch (const Tagged& caught) {
      wrong += caught.fiber != fiber || caught.round != round;
    }
    wrong += std::uncaught_exceptions() != 0;
  });
  EXPECT_EQ(wrong, 0);
}

FIBER_TEST(Context, S07_FreshFiberStartsWithoutExceptions) {
  try {
    throw Tagged{0, 0};
  } catch (const Tagged&) {
    auto fresh = spawn([] { return std::current_exception() == nullptr; }, {.hub = 0});
    EXPECT_TRUE(fresh.join().value());
  }
}

FIBER_TEST(Context, S06_ErrnoBelongsToTheFiber) {
  int wrong = 0;
  take_turns([&](int fiber, int) {
    errno = 100 + fiber;
    this_fiber::yield();
    wrong += errno != 100 + fiber;
  });
  EXPECT_EQ(wrong, 0);
}

#if defined(__x86_64__)
struct ControlWords {
  unsigned int mxcsr;
  unsigned short x87;
  static ControlWords read() {
    ControlWords words;
    asm volatile("stmxcsr %0" : "=m"(words.mxcsr));
    asm volatile("fnstcw %0" : "=m"(words.x87));
    words.mxcsr &= ~0x3fu;  // flags of past operations
    return words;
  }
  void load() const {
    asm volatile("ldmxcsr %0" : : "m"(mxcsr));
    asm volatile("fldcw %0" : : "m"(x87));
  }
  bool operator==(const ControlWords& other) const = default;
};

FIBER_TEST(Context, S16_ControlWordsBelongToTheFiber) {
  const ControlWords standard = ControlWords::read();
  auto odd = spawn(
      [&] {
        std::fesetround(FE_DOWNWARD);
        ControlWords mine = ControlWords::read();
        EXPECT_FALSE(mine == standard);
        mine.mxcsr |= 0x8040;  // flush to zero, denormals are zero
        mine.x87 = static_cast<unsigned short>(mine.x87 & ~0x300);  // single precision
        mine.load();
        for (int i = 0; i < 100; ++i) {
          this_fiber::yield();
          EXPECT_TRUE(ControlWords::read() == mine);
        }
      },
      {.hub = 0});
  auto plain = spawn(
      [&] {
        for (int i = 0; i < 100; ++i) {
          EXPECT_TRUE(ControlWords::read() == standard);
          EXPECT_EQ(std::fegetround(), FE_TONEAREST);
          this_fiber::yield();
        }
      },
      {.hub = 0});
  EXPECT_TRUE(odd.join());
  EXPECT_TRUE(plain.join());
  EXPECT_TRUE(ControlWords::read() == standard);
}

FIBER_TEST(Context, S16_FiberStartsWithTheControlWordsOfItsSpawner) {
  std::fesetround(FE_UPWARD);
  auto heir = spawn([] { return std::fegetround(); }, {.hub = 0});
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(heir.join().value(), FE_UPWARD);
  EXPECT_EQ(std::fegetround(), FE_TONEAREST);
}
#endif

// Registers that a call must keep, and the vector registers that a caller keeps: the compiler
// holds values in both across a yield.
FIBER_TEST(Context, RegistersSurviveASwitch) {
  int wrong = 0;
  take_turns([&](int fiber, int round) {
    double values[12];
    long numbers[12];
    for (int i = 0; i < 12; ++i) {
      values[i] = fiber * 1000.0 + round + i;
      numbers[i] = fiber * 1000L + round + i;
    }
    this_fiber::yield();
    for (int i = 0; i < 12; ++i) {
      wrong += values[i] != fiber * 1000.0 + round + i;
      wrong += numbers[i] != fiber * 1000L + round + i;
    }
  });
  EXPECT_EQ(wrong, 0);
}

FIBER_TEST(Context, DeepStacksAreKept) {
  struct Recurse {
    static int down(int depth, int fiber) {
      volatile char frame[256];
      frame[0] = static_cast<char>(fiber);
      if (depth % 16 == 0) this_fiber::yield();
      const int sum = depth == 0 ? 0 : down(depth - 1, fiber);
      return sum + (frame[0] == static_cast<char>(fiber) ? 1 : 0);
    }
  };
  std::vector<JoinHandle<int>> fibers;
  for (int f = 0; f < 8; ++f)
    fibers.push_back(spawn([f] { return Recurse::down(100, f); }));
  for (auto& fiber : fibers)
    EXPECT_EQ(fiber.join().value(), 101);
}

}  // namespace
}  // namespace runloom
