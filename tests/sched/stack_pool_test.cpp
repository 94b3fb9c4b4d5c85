#include "stack_pool.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>

#include <cstring>
#include <set>
#include <vector>

#include "runloom/sched/scheduler.hpp"
#include "support/child.hpp"
#include "support/fiber_test.hpp"
#include "support/kernel.hpp"

namespace runloom::detail {
namespace {

using test::run_child;

StackSlot* take_one(StackClass& cls, GuardMode guard = GuardMode::automatic) {
  std::error_code error;
  StackSlot* slot = cls.take(1, guard, error);
  EXPECT_TRUE(slot) << error.message();
  return slot;
}

// A class that no other test uses, so that its slabs are fresh.
StackClass& fresh_class() {
  static std::size_t pages = 100;
  return *stack_class(++pages * kPage);
}

TEST(StackPool, SizesAreRoundedUpToPagesWithinLimits) {
  EXPECT_EQ(stack_class(kMinStack - 1), nullptr);
  EXPECT_EQ(stack_class(kMaxStack + 1), nullptr);
  EXPECT_EQ(stack_class(0), nullptr);
  EXPECT_EQ(stack_class(kMinStack)->stack_size(), kMinStack);
  EXPECT_EQ(stack_class(20'000)->stack_size(), 20'480u);
  EXPECT_EQ(stack_class(20'480), stack_class(20'000));
  EXPECT_EQ(stack_class(kMaxStack)->stack_size(), kMaxStack);
}

TEST(StackPool, StacksDoNotOverlapAndAreWritable) {
  StackClass& cls = fresh_class();
  std::set<char*> lows;
  std::vector<StackSlot*> slots;
  for (int i = 0; i < 600; ++i) {  // more than a slab
    StackSlot* slot = take_one(cls);
    ASSERT_TRUE(slot);
    EXPECT_EQ(static_cast<std::size_t>(slot->high() - slot->low()), cls.stack_size());
    slot->low()[0] = 1;
    slot->high()[-1] = 1;
    slot->end()[-1] = 1;
    EXPECT_TRUE(lows.insert(slot->low()).second);
    slots.push_back(slot);
  }
  auto last = lows.begin();
  for (auto it = std::next(last); it != lows.end(); last = it++)
    EXPECT_GE(*it - *last, static_cast<std::ptrdiff_t>(cls.stack_size() + kRoom + kPage));
  for (StackSlot* slot : slots)
    cls.give(slot, slot, 1);
}

TEST(StackPool, OnlyLargeStacksHaveRoomAboveThem) {
  for (const std::size_t size : {kMinStack, kRoomFrom - kPage, kRoomFrom, std::size_t{1} << 20}) {
    StackClass& cls = *stack_class(size);
    const std::size_t room = size < kRoomFrom ? 0 : kRoom;
    for (int i = 0; i < 20; ++i) {  // each colour
      StackSlot* slot = take_one(cls);
      EXPECT_EQ(slot->high(), slot->low() + size);
      EXPECT_EQ(slot->end(), slot->high() + room);
      EXPECT_LT(slot->top(), slot->high() + (room == 0));
      EXPECT_GE(slot->top(), slot->high() - 2048);
      EXPECT_EQ(slot_of_stack(slot->end() - 1), slot);
      cls.give(slot, slot, 1);
    }
  }
}

TEST(StackPool, FindsTheSlotOfAnAddress) {
  StackClass& cls = fresh_class();
  StackSlot* slot = take_one(cls);
  EXPECT_EQ(slot_of_stack(slot->low()), slot);
  EXPECT_EQ(slot_of_stack(slot->high() - 1), slot);
  EXPECT_EQ(slot_of_guard(slot->low() - 1), slot);
  EXPECT_EQ(slot_of_guard(slot->low() - kGuard), slot);
  EXPECT_EQ(slot_of_stack(slot->low() - kGuard), nullptr);
  EXPECT_EQ(slot_of_guard(slot->low()), nullptr);
  EXPECT_EQ(slot_of_stack(slot->low() - 1), nullptr);
  int local = 0;
  EXPECT_EQ(slot_of_stack(&local), nullptr);
  EXPECT_EQ(slot_of_guard(nullptr), nullptr);
  cls.give(slot, slot, 1);
}

TEST(StackPool, CacheGivesTheLastUsedFirst) {
  StackClass& cls = fresh_class();
  StackCache cache;
  std::error_code error;
  StackSlot* a = cache.take(cls, GuardMode::automatic, error);
  StackSlot* b = cache.take(cls, GuardMode::automatic, error);
  cache.give(a);
  cache.give(b);
  EXPECT_EQ(cache.take(cls, GuardMode::automatic, error), b);
  EXPECT_EQ(cache.take(cls, GuardMode::automatic, error), a);
  cache.give(a);
  cache.give(b);
  cache.flush();
}

TEST(StackPool, CacheServesMoreSizesThanItHasEntries) {
  StackCache cache;
  std::error_code error;
  std::vector<StackSlot*> slots;
  for (std::size_t i = 0; i < 20; ++i) {
    StackSlot* slot = cache.take(*stack_class((50 + i) * kPage), GuardMode::automatic, error);
    ASSERT_TRUE(slot);
    EXPECT_EQ(class_of(slot)->stack_size(), (50 + i) * kPage);
    slots.push_back(slot);
  }
  const std::uint64_t carved = stack_counts().carved;
  for (int round = 0; round < 3; ++round) {
    for (StackSlot* slot : slots)
      cache.give(slot);
    for (std::size_t i = 0; i < 20; ++i)
      slots[i] = cache.take(*stack_class((50 + i) * kPage), GuardMode::automatic, error);
  }
  EXPECT_EQ(stack_counts().carved, carved) << "free stacks were not found again";
  for (StackSlot* slot : slots)
    cache.give(slot);
  cache.flush();
}

TEST(StackPool, TrimReturnsThePagesAndKeepsTheStack) {
  StackClass& cls = fresh_class();
  StackSlot* slot = take_one(cls);
  std::memset(slot->low(), 7, cls.stack_size() + kRoom);
  slot->touched = true;
  cls.give(slot, slot, 1);
  EXPECT_EQ(cls.trim(), 1u);
  EXPECT_EQ(cls.trim(), 0u) << "nothing was touched since";
  StackSlot* again = take_one(cls);
  ASSERT_EQ(again, slot);
  EXPECT_EQ(slot->low()[0], 0) << "the kernel gives zeroed pages";
  EXPECT_EQ(slot->high()[-1], 0);
  EXPECT_EQ(slot->end()[-1], 0);
  cls.give(slot, slot, 1);
}

class GuardTest : public testing::TestWithParam<GuardMode> {
 protected:
  void SetUp() override {
    if (GetParam() == GuardMode::madvise && !test::kernel_has_guard_install())
      GTEST_SKIP() << "this kernel has no MADV_GUARD_INSTALL";
  }
};
INSTANTIATE_TEST_SUITE_P(Modes, GuardTest,
                         testing::Values(GuardMode::automatic, GuardMode::madvise,
                                         GuardMode::mprotect));

TEST_P(GuardTest, GuardFaults) {
  StackClass& cls = fresh_class();
  StackSlot* slot = take_one(cls, GetParam());
  ASSERT_TRUE(slot);
  if (GetParam() != GuardMode::automatic) {
    EXPECT_EQ(slot->slab->madvise_guard, GetParam() == GuardMode::madvise);
  }
  for (std::ptrdiff_t below : {std::ptrdiff_t{1}, std::ptrdiff_t{kPage}}) {
    const auto end = run_child([&] {
      ::signal(SIGSEGV, SIG_DFL);
      static_cast<volatile char*>(slot->low())[-below] = 1;
      return 0;
    });
    EXPECT_EQ(end.signal, SIGSEGV) << below << " bytes below";
  }
  cls.give(slot, slot, 1);
}

TEST_P(GuardTest, GuardSurvivesATrim) {
  StackClass& cls = fresh_class();
  StackSlot* slot = take_one(cls, GetParam());
  ASSERT_TRUE(slot);
  slot->low()[0] = 1;
  slot->touched = true;
  cls.give(slot, slot, 1);
  EXPECT_EQ(cls.trim(), 1u);
  const auto end = run_child([&] {
    ::signal(SIGSEGV, SIG_DFL);
    static_cast<volatile char*>(slot->low())[-1] = 1;
    return 0;
  });
  EXPECT_EQ(end.signal, SIGSEGV);
}

TEST(StackPool, MprotectIsTakenWhereTheKernelRefusesToInstallGuards) {
  if (!test::kernel_has_guard_install()) GTEST_SKIP() << "it always is on this kernel";
  if (test::kSanitized) GTEST_SKIP() << "sanitizers make mlockall do nothing";
  const auto end = run_child([] {
    // Locked memory can't have guard markers.
    if (::mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) != 0) return 77;
    StackClass& cls = fresh_class();
    std::error_code error;
    StackSlot* slot = cls.take(1, GuardMode::automatic, error);
    if (!slot || slot->slab->madvise_guard) return 1;
    if (cls.take(1, GuardMode::madvise, error)->slab->madvise_guard) return 2;
    // Asked for and not to be had is an error, in a class that has no slab yet.
    if (fresh_class().take(1, GuardMode::madvise, error) != nullptr || !error) return 3;
    ::signal(SIGSEGV, SIG_DFL);
    static_cast<volatile char*>(slot->low())[-1] = 1;
    return 4;
  });
  if (end.exited && end.code == 77) GTEST_SKIP() << "memory may not be locked here";
  EXPECT_EQ(end.signal, SIGSEGV) << "exit code " << end.code << end.out;
}

// S12
TEST(StackPool, S12_OutOfMapsIsAnErrorThatNamesTheLimit) {
  if (test::kSanitized) GTEST_SKIP() << "sanitizers need memory maps of their own";
  const auto end = run_child([] {
    Scheduler scheduler({.guard = GuardMode::mprotect});
    auto ran = scheduler.run([&] {
      std::vector<JoinHandle<Result<void>>> parked;
      std::error_code error;
      for (int i = 0; i < 40'000 && !error; ++i) {
        parked.push_back(spawn([] { return this_fiber::park(); }));
        error = parked.back().error();
      }
      // Two maps a stack: at vm.max_map_count 65,530 somewhat below 32,765 of them.
      if (error != Errc::map_limit) return 1;
      if (error.message().find("vm.max_map_count") == std::string::npos) return 2;
      if (parked.size() < 1'000) return 3;
      parked.pop_back();
      // The program, which has to say what happened, finds some maps left.
      for (int i = 0; i < 100; ++i) {
        const int protection = i % 2 == 0 ? PROT_NONE : PROT_READ;
        if (::mmap(nullptr, kPage, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED)
          return 7;
      }
      // What lives goes on, and room that is given back can be used.
      for (auto& fiber : parked)
        fiber.handle().unpark();
      for (auto& fiber : parked)
        if (!fiber.join()) return 4;
      return spawn([] { return 0; }).join().value_or(5);
    });
    return ran.value_or(6);
  });
  if (end.exited && end.code == 1 && test::max_map_count() > 80'000)
    GTEST_SKIP() << "vm.max_map_count is raised here";
  EXPECT_TRUE(end.exited && end.code == 0) << "code " << end.code << ", signal " << end.signal;
}

TEST(StackPoolRace, ThreadsTakeGiveAndTrim) {
  StackClass& cls = fresh_class();
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&cls, t] {
      StackCache cache;
      std::vector<StackSlot*> held;
      for (int i = 0; i < 3'000; ++i) {
        std::error_code error;
        if (StackSlot* slot = cache.take(cls, GuardMode::automatic, error)) {
          EXPECT_FALSE(slot->in_use.exchange(true)) << "one stack, two owners";
          slot->low()[0] = static_cast<char>(t);
          slot->touched = true;
          held.push_back(slot);
        }
        if (held.size() > 40 || i % 7 == 0) {
          EXPECT_EQ(held.back()->low()[0], static_cast<char>(t));
          held.back()->in_use.store(false);
          cache.give(held.back());
          held.pop_back();
        }
        if (i % 500 == 499) cache.trim();
      }
      for (StackSlot* slot : held) {
        slot->in_use.store(false);
        cache.give(slot);
      }
      cache.flush();
    });
  for (auto& thread : threads)
    thread.join();
}

}  // namespace
}  // namespace runloom::detail
