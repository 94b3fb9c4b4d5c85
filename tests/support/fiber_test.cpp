#include "support/fiber_test.hpp"

#include <dirent.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace runloom::test {
namespace {

struct LeakCheck {
  std::string what;
  std::function<long()> count;
};

long open_descriptors() {
  DIR* dir = ::opendir("/proc/self/fd");
  if (!dir) return -1;
  long count = 0;
  while (const dirent* entry = ::readdir(dir))
    if (entry->d_name[0] != '.') ++count;
  ::closedir(dir);
  return count - 1;  // the directory's own
}

// Those held by fibers and by handles that nobody joined; caches of hubs that are gone are empty.
long stacks_in_use() {
  const Stats stats = Scheduler().stats();
  return static_cast<long>(stats.stacks_mapped) - static_cast<long>(stats.stacks_free);
}

std::vector<LeakCheck>& leak_checks() {
  static std::vector<LeakCheck> checks{{"open descriptors", open_descriptors},
                                       {"stacks in use", stacks_in_use}};
  return checks;
}

class FiberTest : public ::testing::Test {
 public:
  FiberTest(int hubs, void (*body)()) : hubs_(hubs), body_(body) {}
  void TestBody() override { run_fiber_test(fiber_test_options(hubs_), body_); }

 private:
  int hubs_;
  void (*body_)();
};

}  // namespace

Options fiber_test_options(int hubs) {
  Options options;
  options.hubs = hubs;
  options.stack_size = 256 * 1024;
  options.deadlock = DeadlockMode::warn;
  return options;
}

void add_leak_check(std::string what, std::function<long()> count) {
  leak_checks().push_back({std::move(what), std::move(count)});
}

void run_fiber_test(Options options, const std::function<void()>& body) {
  std::vector<long> before;
  for (const LeakCheck& check : leak_checks())
    before.push_back(check.count());
  HangGuard guard;
  auto scheduler = std::make_unique<Scheduler>(std::move(options));
  guard.watch(scheduler.get());
  const Result<void> ran = scheduler->run([&body] { body(); });
  EXPECT_TRUE(ran) << ran.error().message();
  const std::uint64_t live = scheduler->stats().live;
  EXPECT_EQ(live, 0u) << "fibers are left";
  if (live != 0) scheduler->dump(2);
  scheduler.reset();  // may hang as well
  guard.watch(nullptr);
  for (std::size_t i = 0; i < before.size(); ++i)
    EXPECT_EQ(leak_checks()[i].count(), before[i]) << leak_checks()[i].what << " are left";
}

void until_parked(const FiberHandle& fiber, WaitReason reason) {
  yield_until([&] {
    for (const FiberInfo& info : Scheduler::current()->fibers())
      if (info.id == fiber.id()) return info.reason == reason;
    return false;
  });
}

bool register_fiber_test(const char* suite, const char* name, const char* file, int line,
                         void (*body)()) {
  for (int hubs : {1, 2}) {
    const std::string full = std::string(name) + "/hubs" + std::to_string(hubs);
    ::testing::RegisterTest(
        suite, full.c_str(), nullptr, nullptr, file, line,
        [hubs, body]() -> ::testing::Test* { return new FiberTest(hubs, body); });
  }
  return true;
}

// ---------------------------------------------------------------- HangGuard

struct HangGuard::Impl {
  static constexpr std::chrono::seconds kLimit{kSanitized ? 60 : 10};

  Impl() : watchdog([this] { watch(); }) {}

  void watch() {
    std::unique_lock hold(mutex);
    if (changed.wait_for(hold, kLimit, [this] { return over; })) return;
    const ::testing::TestInfo* test = ::testing::UnitTest::GetInstance()->current_test_info();
    std::fprintf(stderr, "%s.%s hangs\n", test ? test->test_suite_name() : "?",
                 test ? test->name() : "?");
    if (scheduler) scheduler->dump(2);
    std::abort();
  }

  std::mutex mutex;
  std::condition_variable changed;
  const Scheduler* scheduler = nullptr;
  bool over = false;
  std::thread watchdog;  // last: it uses the others
};

HangGuard::HangGuard() : impl_(std::make_unique<Impl>()) {}

void HangGuard::watch(const Scheduler* scheduler) {
  std::lock_guard hold(impl_->mutex);
  impl_->scheduler = scheduler;
}

HangGuard::~HangGuard() {
  {
    std::lock_guard hold(impl_->mutex);
    impl_->over = true;
    impl_->changed.notify_one();
  }
  impl_->watchdog.join();
}

}  // namespace runloom::test
