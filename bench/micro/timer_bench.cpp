// Timers: one more is armed and disarmed among a thousand, as a wait with a deadline does it.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

#include "timer_heap.hpp"

namespace runloom::detail {
namespace {

void add_cancel(benchmark::State& state) {
  constexpr std::int64_t kHour = 3'600'000'000'000;
  constexpr std::size_t kOthers = 1000;
  TimerHeap heap;
  std::vector<TimerNode> others(kOthers);
  std::int64_t when = kHour;
  for (auto& node : others)
    heap.insert(node, when++);
  TimerNode node;
  for (auto _ : state) {
    heap.insert(node, when++);
    heap.remove(node);
  }
  while (!heap.empty())
    heap.remove(heap.front());
}

const auto* const kTimer = benchmark::RegisterBenchmark("one-core/timer add+cancel", add_cancel)
                               -> MeasureProcessCPUTime();

}  // namespace
}  // namespace runloom::detail
