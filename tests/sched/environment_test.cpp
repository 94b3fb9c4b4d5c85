#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "runloom/sched/scheduler.hpp"

namespace runloom {
namespace {

constexpr const char* kNames[] = {"RUNLOOM_HUBS",    "RUNLOOM_STACK_SIZE", "RUNLOOM_MAX_GOROUTINES",
                                  "RUNLOOM_SPIN_US", "RUNLOOM_STALL_MS",   "RUNLOOM_DEADLOCK",
                                  "RUNLOOM_GUARD"};

class Environment : public testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }
  static void clear() {
    for (const char* name : kNames)
      ::unsetenv(name);
  }
  // Options with one variable set; what was reported is left in `report_`.
  Options with(const char* name, const char* value) {
    ::setenv(name, value, 1);
    testing::internal::CaptureStderr();
    Options options = Options::from_environment();
    report_ = testing::internal::GetCapturedStderr();
    ::unsetenv(name);
    return options;
  }
  std::string report_;
};

TEST_F(Environment, NothingSetGivesTheDefaults) {
  const Options wanted;
  const Options options = with("RUNLOOM_UNKNOWN", "5");
  EXPECT_EQ(options.hubs, wanted.hubs);
  EXPECT_EQ(options.stack_size, wanted.stack_size);
  EXPECT_EQ(options.max_fibers, wanted.max_fibers);
  EXPECT_EQ(options.idle_spin, wanted.idle_spin);
  EXPECT_EQ(options.stall_threshold, wanted.stall_threshold);
  EXPECT_EQ(options.deadlock, wanted.deadlock);
  EXPECT_EQ(options.guard, wanted.guard);
  EXPECT_EQ(report_, "");
  EXPECT_EQ(with("RUNLOOM_HUBS", "").hubs, wanted.hubs) << "empty is not set";
  EXPECT_EQ(report_, "");
}

TEST_F(Environment, EveryVariableIsRead) {
  using namespace std::chrono_literals;
  EXPECT_EQ(with("RUNLOOM_HUBS", "4").hubs, 4);
  EXPECT_EQ(with("RUNLOOM_STACK_SIZE", "131072").stack_size, 131072u);
  EXPECT_EQ(with("RUNLOOM_MAX_GOROUTINES", "1000").max_fibers, 1000u);
  EXPECT_EQ(with("RUNLOOM_SPIN_US", "50").idle_spin, 50us);
  EXPECT_EQ(with("RUNLOOM_STALL_MS", "250").stall_threshold, 250ms);
  EXPECT_EQ(with("RUNLOOM_DEADLOCK", "off").deadlock, DeadlockMode::off);
  EXPECT_EQ(with("RUNLOOM_DEADLOCK", "warn").deadlock, DeadlockMode::warn);
  EXPECT_EQ(with("RUNLOOM_DEADLOCK", "raise").deadlock, DeadlockMode::fail);
  EXPECT_EQ(with("RUNLOOM_GUARD", "auto").guard, GuardMode::automatic);
  EXPECT_EQ(with("RUNLOOM_GUARD", "madvise").guard, GuardMode::madvise);
  EXPECT_EQ(with("RUNLOOM_GUARD", "mprotect").guard, GuardMode::mprotect);
  EXPECT_EQ(report_, "");
}

TEST_F(Environment, UnreadableValuesAreReportedAndIgnored) {
  const Options wanted;
  struct {
    const char* name;
    const char* value;
  } const bad[] = {
      {"RUNLOOM_HUBS", "0"},
      {"RUNLOOM_HUBS", "257"},
      {"RUNLOOM_HUBS", "-1"},
      {"RUNLOOM_HUBS", "4 "},
      {"RUNLOOM_HUBS", "four"},
      {"RUNLOOM_HUBS", "99999999999999999999999"},
      {"RUNLOOM_STACK_SIZE", "64k"},
      {"RUNLOOM_STACK_SIZE", "1000"},
      {"RUNLOOM_STACK_SIZE", "1e6"},
      {"RUNLOOM_MAX_GOROUTINES", "many"},
      {"RUNLOOM_SPIN_US", "-5"},
      {"RUNLOOM_STALL_MS", "1.5"},
      {"RUNLOOM_STALL_MS", "1000000000"},
      {"RUNLOOM_DEADLOCK", "fail"},
      {"RUNLOOM_DEADLOCK", "Off"},
      {"RUNLOOM_GUARD", "none"},
  };
  for (const auto& [name, value] : bad) {
    const Options options = with(name, value);
    EXPECT_EQ(report_.rfind(std::string("runloom: ") + name + "=" + value + " is ignored, ", 0), 0u)
        << name << " " << value << ": " << report_;
    EXPECT_EQ(options.hubs, wanted.hubs);
    EXPECT_EQ(options.stack_size, wanted.stack_size);
    EXPECT_EQ(options.max_fibers, wanted.max_fibers);
    EXPECT_EQ(options.idle_spin, wanted.idle_spin);
    EXPECT_EQ(options.stall_threshold, wanted.stall_threshold);
    EXPECT_EQ(options.deadlock, wanted.deadlock);
    EXPECT_EQ(options.guard, wanted.guard);
  }
}

TEST_F(Environment, RunUsesThem) {
  ::setenv("RUNLOOM_HUBS", "3", 1);
  EXPECT_EQ(run([] { return Scheduler::current()->hubs(); }).value(), 3);
}

}  // namespace
}  // namespace runloom
