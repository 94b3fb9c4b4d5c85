// The stack pool: a warm stack taken and given back, as a spawn and a fiber's end do it.
#include <benchmark/benchmark.h>

#include <system_error>

#include "stack_pool.hpp"

namespace runloom::detail {
namespace {

void stack_get_put(benchmark::State& state) {
  StackClass* stacks = stack_class(Options{}.stack_size);
  StackCache cache;
  std::error_code error;
  for (auto _ : state) {
    StackSlot* slot = cache.take(*stacks, GuardMode::automatic, error);
    if (!slot) {
      state.SkipWithError(error.message().c_str());
      break;
    }
    slot->high()[-1] = 1;
    benchmark::ClobberMemory();
    cache.give(slot);
  }
  cache.flush();
}

const auto* const kStack = benchmark::RegisterBenchmark("one-core/stack get+put", stack_get_put)
                               -> MeasureProcessCPUTime();

}  // namespace
}  // namespace runloom::detail
