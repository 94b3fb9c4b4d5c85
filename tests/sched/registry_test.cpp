#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "runloom/sched/event.hpp"
#include "runloom/sched/fault.hpp"
#include "runloom/sched/scheduler.hpp"
#include "support/fiber_test.hpp"
#include "support/race.hpp"

namespace runloom {
namespace {

using namespace std::chrono_literals;

std::string read_back(int fd) {
  std::string text(static_cast<std::size_t>(::lseek(fd, 0, SEEK_END)), '\0');
  EXPECT_EQ(::pread(fd, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  ::close(fd);
  return text;
}

// What dump() writes.
std::string dump_text(const Scheduler& scheduler) {
  const int fd = ::memfd_create("dump", 0);
  scheduler.dump(fd);
  return read_back(fd);
}

const FiberInfo* find(const std::vector<FiberInfo>& all, const FiberHandle& handle) {
  const auto it = std::find_if(all.begin(), all.end(),
                               [&](const FiberInfo& info) { return info.id == handle.id(); });
  return it == all.end() ? nullptr : &*it;
}

// P08
FIBER_TEST(Registry, P08_StatesReasonsAndAges) {
  Scheduler& scheduler = *Scheduler::current();
  auto sleeper = spawn([] { (void)this_fiber::sleep_for(1h); },
                       {.name = "sleeper", .stack_size = 64 * 1024, .local_size = 64});
  auto parked = spawn([] { (void)this_fiber::park(); }, {.name = "parked"});
  auto joiner = spawn([&] { (void)parked.join(); }, {.name = "joiner"});
  test::until_parked(sleeper.handle(), WaitReason::sleep);
  test::until_parked(parked.handle(), WaitReason::park);
  test::until_parked(joiner.handle(), WaitReason::join);
  EXPECT_TRUE(this_fiber::sleep_for(5ms));
  auto runnable = spawn([] { this_fiber::yield(); }, {.name = "new", .hub = 0});

  const std::vector<FiberInfo> all = scheduler.fibers();
  EXPECT_EQ(all.size(), 5u);
  const FiberInfo* info = find(all, sleeper.handle());
  ASSERT_TRUE(info);
  EXPECT_EQ(info->name, "sleeper");
  EXPECT_STREQ(info->state, "parked");
  EXPECT_EQ(info->reason, WaitReason::sleep);
  EXPECT_GE(info->age, 5ms);
  EXPECT_EQ(info->stack_size, 64u * 1024);
  EXPECT_NE(info->local, nullptr);
  EXPECT_GE(info->hub, 0);

  info = find(all, this_fiber::handle());
  ASSERT_TRUE(info);
  EXPECT_EQ(info->name, "main");
  EXPECT_STREQ(info->state, "running");
  EXPECT_EQ(info->reason, WaitReason::none);
  EXPECT_EQ(info->local, nullptr);

  info = find(all, runnable.handle());
  ASSERT_TRUE(info);
  EXPECT_STREQ(info->state, "new");

  const std::string text = dump_text(scheduler);
  EXPECT_NE(text.find("'sleeper' hub "), std::string::npos) << text;
  EXPECT_NE(text.find(" parked in sleep for "), std::string::npos) << text;
  EXPECT_NE(text.find(" parked in join for "), std::string::npos) << text;
  EXPECT_NE(text.find("'main' hub 0 running\n"), std::string::npos) << text;
  EXPECT_NE(text.find("fibers: 1 new 1 running 3 parked\n"), std::string::npos) << text;

  parked.handle().unpark();
  sleeper.cancel();
  EXPECT_TRUE(joiner.join());
  EXPECT_TRUE(sleeper.join());
  EXPECT_TRUE(runnable.join());
  EXPECT_FALSE(find(scheduler.fibers(), runnable.handle())) << "it has ended";
}

FIBER_TEST(Registry, DescriptorsAreShownAsNumbers) {
  auto reader = spawn([] {
    const auto token = detail::begin_wait();
    return detail::wait(token, {.reason = WaitReason::io_read,
                                .object = reinterpret_cast<const void*>(std::uintptr_t{17}),
                                .external = true});
  });
  test::until_parked(reader.handle(), WaitReason::io_read);
  EXPECT_NE(dump_text(*Scheduler::current()).find("parked in read fd 17 for "), std::string::npos);
  reader.cancel();
  EXPECT_EQ(reader.join().value(), detail::kWakeCancelled);
}

TEST(Registry, ShowsOnlyItsOwnFibers) {
  Scheduler one, two;
  auto a = one.spawn([] {}, {.name = "a"});
  auto b = two.spawn([] {}, {.name = "b"});
  ASSERT_EQ(one.fibers().size(), 1u);
  EXPECT_EQ(one.fibers()[0].name, "a");
  ASSERT_EQ(two.fibers().size(), 1u);
  EXPECT_EQ(two.fibers()[0].name, "b");
  EXPECT_EQ(dump_text(two).find("'a'"), std::string::npos);
  const int fd = ::memfd_create("dump", 0);
  dump_all_fibers(fd);
  const std::string all = read_back(fd);
  EXPECT_NE(all.find("'a'"), std::string::npos);
  EXPECT_NE(all.find("'b'"), std::string::npos);
  EXPECT_TRUE(one.run());
  EXPECT_TRUE(two.run());
  EXPECT_TRUE(one.fibers().empty());
}

TEST(Registry, EveryReasonHasAName) {
  for (int reason = 0; reason <= static_cast<int>(WaitReason::nested_run); ++reason)
    EXPECT_STRNE(to_string(static_cast<WaitReason>(reason)), "?") << reason;
}

TEST(RegistryRace, IsReadWhileFibersComeAndGo) {
  test::HangGuard guard;
  Scheduler scheduler({.hubs = 2});
  std::atomic<bool> stop = false;
  std::vector<std::thread> readers;
  for (int t = 0; t < 2; ++t)
    readers.emplace_back([&, t] {
      const int null = ::memfd_create("dump", 0);
      while (!stop) {
        if (t == 0) {
          for (const FiberInfo& info : scheduler.fibers()) {
            EXPECT_NE(info.id, 0u);
            EXPECT_TRUE(info.name == "main" || info.name == "one" || info.name == "other")
                << "torn: " << info.name;
          }
        } else {
          EXPECT_EQ(::ftruncate(null, 0), 0);
          scheduler.dump(null);
        }
        (void)scheduler.stats();
        (void)scheduler.least_loaded_hub();
      }
      ::close(null);
    });
  auto ran = scheduler.run([&] {
    for (test::RaceBudget budget; !budget.spent();) {
      std::vector<JoinHandle<void>> fibers;
      for (int i = 0; i < 10; ++i)
        fibers.push_back(
            spawn([] { (void)this_fiber::sleep_for(20us); }, {.name = i % 2 ? "one" : "other"}));
      for (auto& fiber : fibers)
        EXPECT_TRUE(fiber.join());
    }
  });
  stop = true;
  for (auto& reader : readers)
    reader.join();
  EXPECT_TRUE(ran);
}

// ---------------------------------------------------------------- parked stacks

__attribute__((noinline)) void wait_in_the_innermost(Event& event) {
  ASSERT_TRUE(event.wait());
}
__attribute__((noinline)) void wait_in_the_outer(Event& event) {
  wait_in_the_innermost(event);
  asm volatile("");  // no tail call
}

// Where a name stands in the frames; -1: nowhere.
int position(const std::vector<std::string>& frames, std::string_view name) {
  for (std::size_t i = 0; i < frames.size(); ++i)
    if (frames[i].find(name) != std::string::npos) return static_cast<int>(i);
  return -1;
}

TEST(ParkedStack, ShowsWhereAFiberWaits) {
  test::run_fiber_test(test::fiber_test_options(1), [] {
    const Scheduler& scheduler = *Scheduler::current();
    Event event;
    auto waiter = spawn([&] { wait_in_the_outer(event); });
    const FiberId id = waiter.handle().id();
    EXPECT_TRUE(scheduler.parked_stack(id).empty()) << "it has not begun";
    this_fiber::yield();
    for (int round = 0; round < 3; ++round) {
      const auto frames = scheduler.parked_stack(id);
      const int inner = position(frames, "wait_in_the_innermost");
      const int outer = position(frames, "wait_in_the_outer");
      EXPECT_GE(inner, 0);
      EXPECT_GT(outer, inner);
    }
    EXPECT_TRUE(scheduler.parked_stack(this_fiber::id()).empty()) << "it runs";
    event.set();
    EXPECT_TRUE(waiter.join());
    EXPECT_TRUE(scheduler.parked_stack(id).empty()) << "it has ended";
    EXPECT_TRUE(scheduler.parked_stack(0).empty());
  });
}

}  // namespace
}  // namespace runloom
