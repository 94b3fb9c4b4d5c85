// A fiber writes behind an array in its frame, after it was parked.
#include "runloom/sched/scheduler.hpp"

namespace {

[[gnu::noinline]] void write_behind(volatile int* array, int index) {
  array[index] = 1;
}

}  // namespace

int main() {
  runloom::Scheduler scheduler;
  auto ran = scheduler.run([] {
    auto writer = runloom::spawn([] {
      volatile int array[8] = {};
      runloom::this_fiber::yield();
      write_behind(array, 8);
      return array[0];
    });
    (void)writer.join();
  });
  return ran ? 0 : 1;
}
