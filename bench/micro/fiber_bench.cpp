// Fibers: a switch, and a fiber's life.
#include <vector>

#include "on_fiber.hpp"
#include "runloom/sched/fiber.hpp"

namespace runloom::bench {
namespace {

// Two fibers that yield to each other: a yield of one is a switch there and, when the other yields,
// a switch back, so a batch of two is one call.
void yield(benchmark::State& state) {
  bool stop = false;
  auto other = spawn([&] {
    while (!stop)
      this_fiber::yield();
  });
  while (state.KeepRunningBatch(2))
    this_fiber::yield();
  stop = true;
  require(other.join(), "join");
}

void spawn_join(benchmark::State& state) {
  for (auto _ : state)
    require(spawn([] {}).join(), "join");
}

void spawn_join_batch(benchmark::State& state) {
  constexpr int kBatch = 1000;
  std::vector<JoinHandle<void>> handles;
  handles.reserve(kBatch);
  while (state.KeepRunningBatch(kBatch)) {
    for (int i = 0; i < kBatch; i++)
      handles.push_back(spawn([] {}));
    for (auto& handle : handles)
      require(handle.join(), "join");
    handles.clear();
  }
}

const auto* const kYield = one_core("yield", yield);
const auto* const kSpawnJoin = one_core("spawn+join", spawn_join);
const auto* const kSpawnJoinBatch = one_core("spawn+join, 1000 at once", spawn_join_batch);

}  // namespace
}  // namespace runloom::bench
