// One fiber keeps the address of another's local variable beyond the return of its function.
#include <cstdio>

#include "runloom/sched/scheduler.hpp"

namespace {

volatile int* kept = nullptr;

[[gnu::noinline]] void publish_a_local() {
  volatile int local = 42;
  kept = &local;
  runloom::this_fiber::yield();  // the frame lives, parked
}

}  // namespace

int main() {
  runloom::Scheduler scheduler;
  auto ran = scheduler.run([] {
    auto owner = runloom::spawn([] {
      publish_a_local();
      runloom::this_fiber::yield();  // now it does not
    });
    runloom::this_fiber::yield();
    std::printf("while it lives: %d\n", *kept);
    runloom::this_fiber::yield();
    std::printf("afterwards: %d\n", *kept);
    (void)owner.join();
  });
  return ran ? 0 : 1;
}
