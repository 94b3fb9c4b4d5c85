// A fiber that overflows its stack is named; everything else that crashes, crashes as ever.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "fiber_impl.hpp"
#include "runloom/sched/fault.hpp"
#include "runloom/sched/scheduler.hpp"
#include "stack_pool.hpp"
#include "support/child.hpp"
#include "support/fiber_test.hpp"
#include "support/kernel.hpp"

namespace runloom {
namespace {

using test::ChildEnd;
using test::run_child;

[[gnu::noinline]] int recurse(int depth) {
  volatile char frame[512];
  frame[0] = static_cast<char>(depth);
  if (depth == 0) return 0;
  return recurse(depth - 1) + frame[0];
}
constexpr int kEndless = 1 << 30;

struct StackBounds {
  const char* guard;  // the first byte below the stack
  std::size_t size;
};
StackBounds bounds_of_this_stack() {
  const detail::StackSlot& slot = *detail::current_fiber()->slot;
  return {slot.low() - 1, static_cast<std::size_t>(slot.high() - slot.low())};
}

bool has(const ChildEnd& end, const std::string& text) {
  return end.out.find(text) != std::string::npos;
}

// In a child, without core files.
ChildEnd crash(const std::function<void()>& body) {
  return run_child([&] {
    const rlimit none{0, 0};
    ::setrlimit(RLIMIT_CORE, &none);
    body();
    return 0;
  });
}

class Crash : public testing::Test {
 protected:
  void SetUp() override {
    if (test::kSanitized) GTEST_SKIP() << "the sanitizer handles SIGSEGV, so we leave it alone";
  }
};

class CrashMode : public Crash, public testing::WithParamInterface<std::tuple<int, GuardMode>> {
 protected:
  void SetUp() override {
    Crash::SetUp();
    if (std::get<1>(GetParam()) == GuardMode::madvise && !test::kernel_has_guard_install())
      GTEST_SKIP() << "this kernel has no MADV_GUARD_INSTALL";
  }
};
INSTANTIATE_TEST_SUITE_P(HubsAndGuards, CrashMode,
                         testing::Combine(testing::Values(0, 1),
                                          testing::Values(GuardMode::madvise,
                                                          GuardMode::mprotect)));

TEST_P(CrashMode, OverflowNamesTheFiberAndItsStackSize) {
  const auto [hub, guard] = GetParam();
  const ChildEnd end = crash([hub = hub, guard = guard] {
    Scheduler scheduler({.hubs = 2, .guard = guard});
    (void)scheduler.run([&] {
      (void)go([] { (void)this_fiber::park(); }, {.name = "bystander"});
      this_fiber::yield();
      auto deep = spawn([] { return recurse(kEndless); },
                        {.name = "deep", .stack_size = 100'000, .hub = hub});
      (void)deep.join();
    });
  });
  EXPECT_EQ(end.signal, SIGSEGV) << end.out;
  EXPECT_TRUE(has(end, "runloom: fiber ")) << end.out;
  EXPECT_TRUE(has(end, " 'deep' overflowed its stack of 102400 bytes\n")) << end.out;
  // And what else there was.
  EXPECT_TRUE(has(end, "'deep' hub " + std::to_string(hub) + " running\n")) << end.out;
  EXPECT_TRUE(has(end, "'bystander' hub ")) << end.out;
  EXPECT_TRUE(has(end, "fibers: ")) << end.out;
}

// Touches nothing of its frame but the far end, as C code with large buffers may.
[[gnu::noinline]] char touch_far_end_of_frame() {
  volatile char frame[52 * 1024];
  frame[0] = 1;
  return frame[0];
}

TEST_P(CrashMode, LargeFrameDoesNotStepOverTheGuard) {
  const auto [hub, guard] = GetParam();
  const ChildEnd end = crash([hub = hub, guard = guard] {
    Scheduler scheduler({.hubs = 2, .guard = guard});
    (void)scheduler.run([&] {
      std::vector<JoinHandle<char>> fat;  // neighbours, so that there is something below them
      for (int i = 0; i < 8; ++i)
        fat.push_back(spawn(
            [] {
              this_fiber::yield();
              return touch_far_end_of_frame();
            },
            {.name = "fat", .stack_size = 32 * 1024, .hub = hub}));
      for (auto& each : fat)
        (void)each.join();
    });
  });
  EXPECT_EQ(end.signal, SIGSEGV) << end.out;
  EXPECT_TRUE(has(end, " 'fat' overflowed its stack of 32768 bytes\n")) << end.out;
}

TEST_F(Crash, WildAccessDiesWithoutAReport) {
  const ChildEnd end = crash([] {
    Scheduler scheduler;
    // Through a volatile pointer, so that the compiler can't know what is stored to.
    volatile int* volatile nowhere = reinterpret_cast<volatile int*>(std::uintptr_t{16});
    (void)scheduler.run([&nowhere] { *nowhere = 1; });
  });
  EXPECT_EQ(end.signal, SIGSEGV);
  EXPECT_EQ(end.out, "");
}

TEST_F(Crash, GuardOfAnotherFiberIsAWildAccess) {
  const ChildEnd end = crash([] {
    Scheduler scheduler;
    (void)scheduler.run([] {
      std::error_code error;
      detail::StackSlot* other =
          detail::stack_class(64 * 1024)->take(1, GuardMode::automatic, error);
      static_cast<volatile char*>(other->low())[-1] = 1;
    });
  });
  EXPECT_EQ(end.signal, SIGSEGV);
  EXPECT_EQ(end.out, "");
}

TEST_F(Crash, OverflowOfTheThreadsOwnStackIsNoFibers) {
  const ChildEnd end = crash([] {
    const rlimit small{1 << 20, 1 << 20};
    ::setrlimit(RLIMIT_STACK, &small);
    Scheduler scheduler;
    (void)scheduler.run([] {});
    ::_exit(recurse(kEndless) & 1);
  });
  EXPECT_EQ(end.signal, SIGSEGV);
  EXPECT_EQ(end.out, "");
}

TEST_F(Crash, SignalThatWasSentKillsAsEver) {
  for (int signal : {SIGSEGV, SIGBUS}) {
    const ChildEnd end = crash([signal] {
      Scheduler scheduler;
      (void)scheduler.run([signal] { ::kill(::getpid(), signal); });
    });
    EXPECT_EQ(end.signal, signal);
    EXPECT_EQ(end.out, "");
  }
}

TEST_F(Crash, AHandlerThatWasThereFirstStays) {
  const ChildEnd end = crash([] {
    ::signal(SIGSEGV, [](int) { ::_exit(33); });
    Scheduler scheduler;
    // Through a volatile pointer, so that the compiler can't know what is stored to.
    volatile int* volatile nowhere = reinterpret_cast<volatile int*>(std::uintptr_t{16});
    (void)scheduler.run([&nowhere] { *nowhere = 1; });
  });
  EXPECT_EQ(end.code, 33);
  // Also if it ignores the signal.
  const ChildEnd ignored = crash([] {
    ::signal(SIGBUS, SIG_IGN);
    Scheduler scheduler;
    struct sigaction now {};
    ::sigaction(SIGBUS, nullptr, &now);
    ::_exit(now.sa_handler == SIG_IGN ? 34 : 0);
  });
  EXPECT_EQ(ignored.code, 34);
}

TEST_F(Crash, AHandlerThatComesLaterFindsOursAsItsPredecessor) {
  static struct sigaction before;
  const ChildEnd end = crash([] {
    Scheduler scheduler;
    struct sigaction later {};
    later.sa_flags = SA_SIGINFO | SA_ONSTACK;
    later.sa_sigaction = [](int signal, siginfo_t* info, void* context) {
      [[maybe_unused]] auto written = ::write(2, "later\n", 6);
      before.sa_sigaction(signal, info, context);
    };
    ::sigaction(SIGSEGV, &later, &before);
    (void)scheduler.run(
        [] { (void)spawn([] { return recurse(kEndless); }, {.name = "deep"}).join(); });
  });
  EXPECT_EQ(end.signal, SIGSEGV);
  EXPECT_TRUE(has(end, "later\n")) << end.out;
  EXPECT_TRUE(has(end, "'deep' overflowed its stack of 65536 bytes\n")) << end.out;
}

TEST_F(Crash, ReportCanBeTurnedOff) {
  const ChildEnd end = crash([] {
    ::signal(SIGSEGV, SIG_DFL);  // an earlier test may have had a scheduler in the parent
    Scheduler scheduler({.crash_report = false});
    struct sigaction now {};
    ::sigaction(SIGSEGV, nullptr, &now);
    if (now.sa_handler != SIG_DFL) ::_exit(1);
    (void)scheduler.run([] { (void)spawn([] { return recurse(kEndless); }).join(); });
  });
  EXPECT_EQ(end.signal, SIGSEGV);
  EXPECT_EQ(end.out, "");
}

TEST_F(Crash, OverflowWithItsOwnLockHeldStillReports) {
  // The dump must not wait for a lock that the crashed fiber holds.
  const ChildEnd end = crash([] {
    Scheduler scheduler;
    (void)scheduler.run([] {
      (void)spawn(
          [] {
            auto* slot = detail::slot_of_stack(__builtin_frame_address(0));
            slot->lock.lock();
            return recurse(kEndless);
          },
          {.name = "deep"})
          .join();
    });
  });
  EXPECT_EQ(end.signal, SIGSEGV);
  EXPECT_TRUE(has(end, "'deep' overflowed its stack")) << end.out;
  EXPECT_TRUE(has(end, " 1 changing\n")) << end.out;
}

// ---------------------------------------------------------------- alternate signal stacks

stack_t signal_stack() {
  stack_t now{};
  ::sigaltstack(nullptr, &now);
  return now;
}

TEST_F(Crash, EveryHubThreadHasASignalStackAndKeepsOneOfItsOwn) {
  const ChildEnd end = run_child([] {
    static char own[64 * 1024];
    const stack_t mine{own, 0, sizeof own};
    ::sigaltstack(&mine, nullptr);
    Scheduler scheduler({.hubs = 2});
    auto ran = scheduler.run([] {
      if (signal_stack().ss_sp != own) return 1;
      const stack_t other = spawn([] { return signal_stack(); }, {.hub = 1}).join().value();
      return other.ss_flags == 0 && other.ss_sp != own && other.ss_size >= 32 * 1024 ? 0 : 2;
    });
    if (signal_stack().ss_sp != own) return 3;
    return ran.value_or(4);
  });
  EXPECT_EQ(end.code, 0) << end.out;
}

TEST_F(Crash, SignalStacksGoWithTheirThreads) {
  auto maps = [] {
    int count = 0;
    std::FILE* file = std::fopen("/proc/self/maps", "r");
    for (int c; (c = std::fgetc(file)) != EOF;)
      count += c == '\n';
    std::fclose(file);
    return count;
  };
  auto use = [] {
    std::thread([] {
      Scheduler scheduler;
      (void)scheduler.run([] {});
    }).join();
  };
  for (int i = 0; i < 5; ++i)
    use();
  const int before = maps();
  for (int i = 0; i < 50; ++i)
    use();
  EXPECT_LE(maps(), before + 4);
}

TEST(Fault, IsToldByWhereItWas) {
  int local = 0;
  EXPECT_EQ(classify_fault(&local).kind, Fault::Kind::elsewhere);
  EXPECT_EQ(classify_fault(&local).fiber, 0u);
  EXPECT_EQ(classify_fault(nullptr).kind, Fault::Kind::elsewhere);
  Scheduler scheduler;
  ASSERT_TRUE(scheduler.run([] {
    const StackBounds own = bounds_of_this_stack();
    const Fault fault = classify_fault(own.guard);
    EXPECT_EQ(fault.kind, Fault::Kind::overflow);
    EXPECT_EQ(fault.fiber, this_fiber::id());
    EXPECT_STREQ(fault.name, "main");
    EXPECT_EQ(fault.stack_size, own.size);
    EXPECT_EQ(classify_fault(&own).kind, Fault::Kind::elsewhere);
    EXPECT_EQ(classify_fault(&own).fiber, this_fiber::id());
    auto other = spawn([&] { return classify_fault(own.guard); }, {.name = "other", .hub = 0});
    const Fault foreign = other.join().value();
    EXPECT_EQ(foreign.kind, Fault::Kind::foreign_guard);
    EXPECT_STREQ(foreign.name, "other");
  }));
  EXPECT_EQ(classify_fault(&local).fiber, 0u);
}

}  // namespace
}  // namespace runloom
