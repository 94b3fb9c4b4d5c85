// Fibers on two hubs add to one variable without a lock.
#include <atomic>
#include <cstdio>

#include "runloom/sched/scheduler.hpp"

int main() {
  runloom::Scheduler scheduler({.hubs = 2});
  long sum = 0;
  // Both add at the same time. Relaxed: the meeting itself must order nothing.
  std::atomic<int> arrived = 0;
  auto ran = scheduler.run([&] {
    auto add = [&] {
      arrived.fetch_add(1, std::memory_order_relaxed);
      while (arrived.load(std::memory_order_relaxed) < 2)
        runloom::this_fiber::yield();
      for (int i = 0; i < 1'000; ++i) {
        ++sum;
        if (i % 100 == 0) runloom::this_fiber::yield();
      }
    };
    auto here = runloom::spawn(add, {.hub = 0});
    auto there = runloom::spawn(add, {.hub = 1});
    (void)here.join();
    (void)there.join();
  });
  std::printf("%ld\n", sum);
  return ran ? 0 : 1;
}
