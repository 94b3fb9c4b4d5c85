// Mutex: the cost where nobody contends.
#include "on_fiber.hpp"
#include "runloom/sched/mutex.hpp"

namespace runloom::bench {
namespace {

void lock_unlock(benchmark::State& state) {
  Mutex mutex;
  for (auto _ : state) {
    mutex.lock();
    mutex.unlock();
  }
}

const auto* const kLockUnlock = one_core("mutex lock+unlock", lock_unlock);

}  // namespace
}  // namespace runloom::bench
