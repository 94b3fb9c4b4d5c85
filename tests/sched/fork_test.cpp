// Rows K01, K02, K04: what a forked child finds.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "runloom/sched/blocking.hpp"
#include "runloom/sched/scheduler.hpp"
#include "runloom/sched/timer.hpp"
#include "support/child.hpp"
#include "support/fiber_test.hpp"

namespace runloom {
namespace {

using test::wait_child;
using namespace std::chrono_literals;

// Memory that parent and children share.
template <class T>
class Shared {
 public:
  Shared()
      : object_(new (::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                            -1, 0)) T) {}
  ~Shared() { ::munmap(object_, sizeof(T)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  T* operator->() { return object_; }

 private:
  T* object_;
};

// Which processes ran a fiber.
struct Pids {
  std::atomic<int> count{0};
  std::atomic<int> pid[4096];
  void add() { pid[count.fetch_add(1) % 4096].store(::getpid()); }
  bool only(int wanted) const {
    for (int i = 0; i < std::min(count.load(), 4096); ++i)
      if (pid[i].load() != wanted) return false;
    return true;
  }
};

#ifdef RUNLOOM_TEST_TSAN
constexpr bool kTsan = true;
#else
constexpr bool kTsan = false;
#endif

struct SkipUnderTsan : testing::Test {
  void SetUp() override {
    if (kTsan) GTEST_SKIP() << "tsan refuses to start threads after a fork of several";
  }
};
class ForkThreadTest : public SkipUnderTsan {};
class ForkTest : public SkipUnderTsan, public testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Hubs, ForkTest, testing::Values(1, 2));

// K01
TEST_P(ForkTest, K01_ChildRunsNoFiberOfTheParent) {
  Shared<Pids> pids;
  Scheduler scheduler({.hubs = GetParam()});
  auto ran = scheduler.run([&] {
    std::atomic<bool> stop = false;
    std::vector<JoinHandle<void>> writers;
    for (int i = 0; i < 4; ++i)
      writers.push_back(spawn([&] {
        while (!stop) {
          pids->add();
          this_fiber::yield();
        }
      }));
    for (int i = 0; i < 10; ++i) {
      this_fiber::yield();
      const int pid = ::fork();
      if (pid == 0) {
        // The child yields and sleeps: only itself may come back.
        for (int k = 0; k < 100; ++k)
          this_fiber::yield();
        (void)this_fiber::sleep_for(1ms);
        ::_exit(Scheduler::current()->stats().live == 1 ? 0 : 1);
      }
      ASSERT_GT(pid, 0);
      EXPECT_EQ(wait_child(pid).code, 0);
    }
    stop = true;
    for (auto& writer : writers)
      EXPECT_TRUE(writer.join());
  });
  ASSERT_TRUE(ran) << ran.error().message();
  EXPECT_GT(pids->count.load(), 0);
  EXPECT_TRUE(pids->only(::getpid()));
}

// K01: a hook that was registered before ours runs before ours in the child.
bool hook_yields = false;
void yielding_hook() {
  if (hook_yields) this_fiber::yield();
}

TEST(ForkHookTest, K01_AtForkHookThatYieldsRunsNoOtherFiber) {
  // Ours are installed with the first scheduler, so this is the first in its process.
  ASSERT_EQ(::pthread_atfork(nullptr, &yielding_hook, &yielding_hook), 0);
  Shared<Pids> pids;
  Scheduler scheduler;
  auto ran = scheduler.run([&] {
    auto other = spawn([&] {
      for (int i = 0; i < 10; ++i) {
        pids->add();
        this_fiber::yield();
      }
    });
    hook_yields = true;
    const int pid = ::fork();
    hook_yields = false;
    if (pid == 0) {
      this_fiber::yield();
      ::_exit(0);
    }
    EXPECT_EQ(wait_child(pid).code, 0);
    EXPECT_TRUE(other.join());
  });
  ASSERT_TRUE(ran);
  EXPECT_EQ(pids->count.load(), 10);
  EXPECT_TRUE(pids->only(::getpid()));
}

// K02
TEST_P(ForkTest, K02_ChildGoesOnWithNewFibersAndItsRunEnds) {
  Scheduler scheduler({.hubs = GetParam()});
  int child = -1;
  auto ran = scheduler.run([&] {
    auto parked = spawn([] { return this_fiber::park(); });
    auto sleeper = spawn([] { (void)this_fiber::sleep_for(1h); });
    this_fiber::yield();
    child = ::fork();
    if (child == 0) {
      // All of these are gone.
      if (parked.handle().unpark() || parked.handle().cancel() || parked.handle().alive())
        ::_exit(2);
      if (parked.join().error() != Errc::cancelled) ::_exit(3);
      if (sleeper.join().error() != Errc::cancelled) ::_exit(4);
      // And the scheduler works.
      int sum = 0;
      std::vector<JoinHandle<int>> workers;
      for (int i = 0; i < 100; ++i)
        workers.push_back(spawn(
            [i] {
              (void)this_fiber::sleep_for(100us);
              return i;
            },
            {.hub = i % 2 ? i : -1}));
      for (auto& worker : workers)
        sum += *worker.join();
      if (sum != 4950) ::_exit(5);
      return;
    }
    parked.handle().unpark();
    EXPECT_TRUE(parked.join());
    sleeper.cancel();
    EXPECT_TRUE(sleeper.join());
  });
  if (child == 0) {
    // The run that forked has ended here, too; a second one has all hubs again.
    if (!ran) ::_exit(10);
    std::atomic<int> done = 0;
    auto again = scheduler.run([&] {
      std::vector<JoinHandle<void>> workers;
      for (int hub = 0; hub < scheduler.hubs(); ++hub)
        workers.push_back(spawn([&] { ++done; }, {.hub = hub}));
      for (auto& worker : workers)
        (void)worker.join();
    });
    if (!again || done != scheduler.hubs()) ::_exit(11);
    ::_exit(0);
  }
  ASSERT_TRUE(ran) << ran.error().message();
  EXPECT_EQ(wait_child(child).code, 0);
}

TEST_F(ForkThreadTest, K02_ForkOnAForeignThreadDropsTheRun) {
  Scheduler scheduler({.hubs = 2});
  std::atomic<bool> running = false;
  std::thread runner([&] {
    (void)scheduler.run([&] {
      running = true;
      (void)this_fiber::park({}, true);
    });
  });
  while (!running)
    std::this_thread::yield();
  const int pid = ::fork();
  if (pid == 0) {
    if (scheduler.stats().live != 0) ::_exit(1);
    auto value = scheduler.run([] { return 42; });
    ::_exit(value && *value == 42 ? 0 : 2);
  }
  EXPECT_EQ(wait_child(pid).code, 0);
  scheduler.cancel_all();
  runner.join();
}

// Of what was in the heap, the deadlines of the parent's fibers go and the timers stay.
TEST_P(ForkTest, K02_TimersOfTheForkingHubFireInTheChild) {
  Scheduler scheduler({.hubs = GetParam()});
  auto ran = scheduler.run([&] {
    Timer timer(20ms);
    const SpawnOptions here{.hub = Hub::current()->index()};
    auto sleeper = spawn([] { return this_fiber::sleep_for(1h); }, here);
    auto brief = spawn([] { return this_fiber::sleep_for(1ms); }, here);
    test::until_parked(sleeper.handle(), WaitReason::sleep);
    test::until_parked(brief.handle(), WaitReason::sleep);
    const int pid = ::fork();
    if (pid == 0) {
      if (scheduler.stats().sleeping != 1) ::_exit(1);
      if (!timer.channel().recv()) ::_exit(2);
      if (timer.reset(Deadline::after(1ms)) || !timer.channel().recv()) ::_exit(3);
      ::_exit(scheduler.stats().sleeping == 0 ? 0 : 4);
    }
    EXPECT_EQ(wait_child(pid).code, 0);
    EXPECT_TRUE(brief.join());
    EXPECT_TRUE(timer.channel().recv());
    sleeper.cancel();
  });
  EXPECT_TRUE(ran);
}

TEST_F(ForkThreadTest, K02_ChildForkedOnAHubThreadEndsWithItsRun) {
#ifdef RUNLOOM_TEST_ASAN
  GTEST_SKIP() << "the leak checker at exit takes what the parent's threads own for leaked";
#endif
  Scheduler scheduler({.hubs = 2});
  auto ran = scheduler.run([&] {
    auto pid = spawn(
                   [] {
                     const int child = ::fork();
                     if (child == 0) {
                       auto other = spawn([] { return 7; });
                       if (*other.join() != 7) ::_exit(1);
                     }
                     return child;
                   },
                   {.hub = 1})
                   .join();
    // In the child nobody is left who would see this value.
    EXPECT_EQ(wait_child(*pid).code, 0);
  });
  EXPECT_TRUE(ran);
}

TEST_F(ForkThreadTest, OuterRunsOfTheThreadGoOn) {
  Scheduler outer;
  int child = -1;
  auto ran = outer.run([&] {
    auto dropped = spawn([] { return this_fiber::park(); });
    Scheduler inner;
    auto inner_ran = inner.run([&] { child = ::fork(); });
    if (child == 0) {
      if (!inner_ran) ::_exit(1);
      if (dropped.join().error() != Errc::cancelled) ::_exit(2);
      this_fiber::yield();
      return;
    }
    dropped.cancel();
    (void)dropped.join();
  });
  if (child == 0) ::_exit(ran ? 0 : 3);
  EXPECT_TRUE(ran);
  EXPECT_EQ(wait_child(child).code, 0);
}

// K04
TEST_P(ForkTest, K04_ForkWhileThreadsAreInAJob) {
  Scheduler scheduler({.hubs = GetParam()});
  auto ran = scheduler.run([&] {
    std::atomic<int> begun = 0;
    std::atomic<bool> go_on = false;
    std::vector<JoinHandle<Result<int>>> jobs;
    for (int i = 0; i < 4; ++i)
      jobs.push_back(spawn([&, i] {
        return blocking([&, i] {
          ++begun;
          while (!go_on)
            std::this_thread::yield();
          return i;
        });
      }));
    while (begun < 4)
      this_fiber::yield();
    for (int i = 0; i < 8; ++i) {
      const int pid = ::fork();
      if (pid == 0) {
        if (jobs[0].join().error() != Errc::cancelled) ::_exit(1);
        // A pool of the child's own.
        auto value = blocking([] { return ::getpid(); });
        ::_exit(value && *value == ::getpid() ? 0 : 2);
      }
      EXPECT_EQ(wait_child(pid).code, 0);
    }
    go_on = true;
    int sum = 0;
    for (auto& job : jobs)
      sum += *job.join();
    EXPECT_EQ(sum, 6);
  });
  EXPECT_TRUE(ran);
}

TEST_F(ForkThreadTest, K04_ForkInsideAJob) {
  Scheduler scheduler;
  auto ran = scheduler.run([&] {
    auto pid = blocking([] {
      const int child = ::fork();
      if (child == 0) ::_exit(Scheduler::current() == nullptr && !this_fiber::exists() ? 0 : 1);
      return child;
    });
    EXPECT_EQ(wait_child(*pid).code, 0);
  });
  EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace runloom
