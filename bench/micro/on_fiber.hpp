// on_fiber.hpp: benchmarks whose body runs on a fiber.
//
// Names are "one-core/CASE" or "two-cores/CASE": the cases are those of the peers, see bench/peers.
// One-core cases are measured in CPU time of the process, which says what an operation costs
// whatever else runs on that core; two-core cases in wall time, which says how long a round trip
// takes.
#pragma once

#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "runloom/sched/scheduler.hpp"

namespace runloom::bench {

// Ends the process when `result` is an error: a benchmark that lost an operation measured nothing.
template <class R>
void require(const R& result, const char* what) {
  if (result) return;
  std::fprintf(stderr, "%s: %s\n", what, result.error().message().c_str());
  std::abort();
}

// Runs `body(state)` on the main fiber of a scheduler with `hubs` hubs.
template <class Body>
void run_on_fiber(benchmark::State& state, int hubs, Body body) {
  Options options;
  options.hubs = hubs;
  require(run([&] { body(state); }, std::move(options)), "run");
}

// Registers a benchmark in a static initialiser: `const auto x = one_core("yield", yield);`
template <class Body>
benchmark::internal::Benchmark* one_core(const std::string& name, Body body) {
  return benchmark::RegisterBenchmark(
             ("one-core/" + name).c_str(),
             [body](benchmark::State& state) { run_on_fiber(state, 1, body); })
      ->MeasureProcessCPUTime();
}

template <class Body>
benchmark::internal::Benchmark* two_cores(const std::string& name, Body body) {
  return benchmark::RegisterBenchmark(
             ("two-cores/" + name).c_str(),
             [body](benchmark::State& state) { run_on_fiber(state, 2, body); })
      ->UseRealTime();
}

}  // namespace runloom::bench
