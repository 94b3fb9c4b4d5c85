// Guests: fibers that C++ code starts for the language whose binding the scheduler serves.
#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "runloom/sched/error.hpp"
#include "runloom/sched/fiber.hpp"
#include "runloom/sched/join_set.hpp"
#include "runloom/sched/scheduler.hpp"
#include "support/fiber_test.hpp"

namespace runloom {
namespace {

// A binding that notes what is asked of it.
struct Binding {
  std::vector<std::string> log;
  bool has_memory = true;

  SwitchHooks hooks() {
    SwitchHooks out;
    out.context = this;
    out.guest = {
        .local_size = [](void*, std::size_t stack_size) -> std::size_t {
          return stack_size == 0 ? 64 : 128;
        },
        .make =
            [](void* self, detail::Fiber* fiber, std::size_t size) {
              auto& binding = *static_cast<Binding*>(self);
              binding.log.push_back("make " + std::to_string(size));
              *static_cast<int*>(detail::fiber_local(fiber)) = 7;
              return binding.has_memory;
            },
        .drop =
            [](void* self, detail::Fiber* fiber) {
              EXPECT_EQ(*static_cast<int*>(detail::fiber_local(fiber)), 7);
              static_cast<Binding*>(self)->log.push_back("drop");
            },
        .run =
            [](void* self, void (*run)(void*), void* frame) {
              auto& calls = static_cast<Binding*>(self)->log;
              EXPECT_EQ(*static_cast<int*>(this_fiber::local()), 7);
              calls.push_back("begin");
              struct End {
                std::vector<std::string>& calls;
                ~End() { calls.push_back("end"); }
              } end{calls};
              run(frame);
            },
    };
    return out;
  }
};

struct ThrowsWhenCopied {
  ThrowsWhenCopied() = default;
  ThrowsWhenCopied(const ThrowsWhenCopied&) { throw std::runtime_error("no copy"); }
  void operator()() const {}
};

template <class Main>
void run(Binding& binding, Main&& main) {
  Options options = test::fiber_test_options(1);
  options.hooks = binding.hooks();
  test::run_fiber_test(std::move(options), main);
}

TEST(Guest, RunsInTheBindingsHands) {
  Binding binding;
  int result = 0;
  run(binding, [&] {
    auto guest = spawn(
        [&] {
          binding.log.emplace_back("body");
          this_fiber::yield();
          return 3;
        },
        {.guest = true});
    result = guest.join().value();
  });
  EXPECT_EQ(result, 3);
  EXPECT_EQ(binding.log, (std::vector<std::string>{"make 64", "begin", "body", "end"}));
}

TEST(Guest, HasTheLocalMemoryOfItsStack) {
  Binding binding;
  run(binding, [&] { (void)spawn([] {}, {.stack_size = 65536, .guest = true}).join(); });
  ASSERT_FALSE(binding.log.empty());
  EXPECT_EQ(binding.log.front(), "make 128");
}

TEST(Guest, AnExceptionPassesThroughTheBinding) {
  Binding binding;
  run(binding, [&] {
    auto guest = spawn([] { throw std::runtime_error("from the guest"); }, {.guest = true});
    EXPECT_THROW((void)guest.join(), std::runtime_error);
  });
  EXPECT_EQ(binding.log.back(), "end");
}

TEST(Guest, IsDroppedWhenItWillNeverStart) {
  Binding binding;
  run(binding, [&] {
    const ThrowsWhenCopied fn;
    EXPECT_THROW((void)spawn(fn, {.guest = true}), std::runtime_error);
  });
  EXPECT_EQ(binding.log, (std::vector<std::string>{"make 64", "drop"}));
}

TEST(Guest, WithoutMemoryTheSpawnFails) {
  Binding binding;
  binding.has_memory = false;
  run(binding, [&] {
    const auto guest = spawn([] {}, {.guest = true});
    EXPECT_EQ(guest.error(), errno_code(ENOMEM));
  });
  EXPECT_EQ(binding.log, std::vector<std::string>{"make 64"});
}

TEST(Guest, ChildrenOfAJoinSetMayBeGuests) {
  Binding binding;
  int ran = 0;
  run(binding, [&] {
    JoinSet<> set;
    for (int i = 0; i < 3; ++i)
      ASSERT_TRUE(set.spawn([&] { ++ran; }, {.guest = true}));
    EXPECT_TRUE(set.wait());
  });
  EXPECT_EQ(ran, 3);
}

TEST(Guest, IsAnOrdinaryFiberWhereThereIsNoSuchLanguage) {
  bool ran = false;
  test::run_fiber_test(test::fiber_test_options(1),
                       [&] { (void)spawn([&] { ran = true; }, {.guest = true}).join(); });
  EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace runloom
