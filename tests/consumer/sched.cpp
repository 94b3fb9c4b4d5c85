// Uses the scheduler as an outside project does: two hubs, a fiber that is joined, a value that
// comes back.
#include <chrono>
#include <cstdio>
#include <runloom/sched/fiber.hpp>
#include <runloom/sched/scheduler.hpp>
#include <utility>

int main() {
  runloom::Options options;
  options.hubs = 2;
  auto result = runloom::run(
      []() -> runloom::Result<int> {
        auto child = runloom::spawn([] {
          (void)runloom::this_fiber::sleep_for(std::chrono::milliseconds(1));
          return 41;
        });
        auto value = child.join();
        if (!value) return runloom::Unexpected{value.error()};
        return *value + 1;
      },
      std::move(options));
  if (!result || *result != 42) {
    std::fprintf(stderr, "the fiber gave no 42\n");
    return 1;
  }
  return 0;
}
