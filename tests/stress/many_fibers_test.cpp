// How many fibers a process can hold, and what a parked one costs.
//
// 200,000 of them, or a million with RUNLOOM_FULL=1 (needs 5 GiB), each on a guarded stack of 64
// KiB. Where the kernel can't install guards without a memory map each (before Linux 6.13) the
// right behaviour is an error that names vm.max_map_count.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "runloom/sched/scheduler.hpp"
#include "support/fiber_test.hpp"
#include "support/kernel.hpp"

namespace runloom {
namespace {

constexpr std::uint64_t kMostRss = 4'608;  // bytes a parked fiber, all told

bool full() {
  const char* text = std::getenv("RUNLOOM_FULL");
  return text && std::string(text) == "1";
}

#ifdef RUNLOOM_TEST_TSAN
constexpr int kCap = 1'000;  // tsan takes milliseconds for each
#else
constexpr int kCap = test::kMostFibers;
#endif

std::uint64_t memory_maps() {
  std::ifstream file("/proc/self/maps");
  std::uint64_t count = 0;
  for (std::string line; std::getline(file, line);)
    ++count;
  return count;
}

// Bytes that `count` fibers with a page each may take, with room to spare.
bool memory_for(int count) {
  return test::available_memory() > static_cast<std::uint64_t>(count) * 5'500;
}

TEST(ManyFibers, ParkedOnGuardedStacks) {
  const int count = std::min(full() ? 1'000'000 : 200'000, kCap);
  if (!memory_for(count)) GTEST_SKIP() << "too little memory is free";
  std::atomic<int> left = 0;
  std::error_code error;
  std::uint64_t rss = 0, page_tables = 0, maps = 0;
  int parked = 0;
  Scheduler scheduler;
  auto ran = scheduler.run([&] {
    const std::uint64_t rss_before = test::status_bytes("VmRSS");
    const std::uint64_t tables_before = test::status_bytes("VmPTE");
    const std::uint64_t maps_before = memory_maps();
    for (; parked < count; ++parked) {
      auto spawned = go([&left] {
        (void)this_fiber::park({}, true);
        ++left;
      });
      if (!spawned) {
        error = spawned.error();
        break;
      }
      if (parked % 64 == 63) this_fiber::yield();  // they start and park
    }
    test::yield_until([&] { return scheduler.stats().io_parked == static_cast<unsigned>(parked); });
    rss = test::status_bytes("VmRSS") - rss_before;
    page_tables = test::status_bytes("VmPTE") - tables_before;
    maps = std::max(memory_maps(), maps_before) - maps_before;
    scheduler.cancel_all();
  });
  EXPECT_TRUE(ran);
  EXPECT_EQ(left, parked) << "all ended";
  if (!test::kernel_has_guard_install() && test::max_map_count() < 2u * count) {
    EXPECT_EQ(error, Errc::map_limit);
    EXPECT_NE(error.message().find("vm.max_map_count"), std::string::npos);
    return;
  }
  ASSERT_FALSE(error) << error.message() << " after " << parked;
  const std::uint64_t each = rss / static_cast<unsigned>(parked);
  std::printf("%d parked fibers: %llu bytes of RSS each, %llu of page tables, %llu memory maps\n",
              parked, static_cast<unsigned long long>(each),
              static_cast<unsigned long long>(page_tables / static_cast<unsigned>(parked)),
              static_cast<unsigned long long>(maps));
  if (!test::kSanitized) {
    EXPECT_LE(each, kMostRss);
    EXPECT_LT(maps, 20'000u);
  }
}

// S22: the run queue grows; nothing sleeps, spins or deadlocks.
TEST(ManyFibers, S22_AFiberSpawnsAMillionWithoutYielding) {
  const int count = std::min(full() ? 1'000'000 : 300'000, kCap);
  if (!memory_for(count)) GTEST_SKIP() << "too little memory is free";
  if (!test::kernel_has_guard_install()) GTEST_SKIP() << "more stacks than memory maps";
  std::atomic<int> done = 0;
  Scheduler scheduler;
  auto ran = scheduler.run([&] {
    for (int i = 0; i < count; ++i)
      ASSERT_TRUE(go([&done] { ++done; }));
    EXPECT_EQ(done, 0) << "it did not yield";
  });
  EXPECT_TRUE(ran);
  EXPECT_EQ(done, count);
}

// P12: what came goes. The second round takes no more memory than the first.
TEST(ManyFibers, P12_MemoryComesBack) {
  const int count = std::min(20'000, kCap);
  Scheduler scheduler;  // of one hub: all live at once, each time
  auto round = [&] {
    auto ran = scheduler.run([&] {
      for (int i = 0; i < count; ++i)
        ASSERT_TRUE(go([] { this_fiber::yield(); }));
    });
    EXPECT_TRUE(ran);
    EXPECT_EQ(scheduler.stats().live, 0u);
    return test::status_bytes("VmRSS");
  };
  round();
  round();
  const std::uint64_t mapped = scheduler.stats().stacks_mapped;
  const std::uint64_t before = round();
  std::uint64_t after = 0;
  for (int i = 0; i < 10; ++i)
    after = round();
  if (!test::kSanitized) {
    EXPECT_LT(after, before + (8u << 20));
  }
  EXPECT_EQ(scheduler.stats().stacks_mapped, mapped);
}

}  // namespace
}  // namespace runloom
