// Park and unpark: a round trip between two fibers of one hub, and between two hubs.
#include "on_fiber.hpp"
#include "runloom/sched/fiber.hpp"

namespace runloom::bench {
namespace {

// One iteration: the main fiber wakes the other one and parks until that wakes it.
void round_trip(benchmark::State& state, int hub_of_other) {
  const FiberHandle main = this_fiber::handle();
  bool stop = false;
  auto other = spawn(
      [&] {
        for (;;) {
          require(this_fiber::park(), "park");
          if (stop) return;
          main.unpark();
        }
      },
      {.hub = hub_of_other});
  const FiberHandle handle = other.handle();
  for (auto _ : state) {
    handle.unpark();
    require(this_fiber::park(), "park");
  }
  stop = true;
  handle.unpark();
  require(other.join(), "join");
}

const auto* const kSameHub =
    one_core("park+unpark round trip", [](benchmark::State& state) { round_trip(state, 0); });
const auto* const kCrossHub =
    two_cores("cross-hub round trip", [](benchmark::State& state) { round_trip(state, 1); });

}  // namespace
}  // namespace runloom::bench
