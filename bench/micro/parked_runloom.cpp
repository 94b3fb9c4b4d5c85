// What a parked fiber costs in memory: resident and page tables, counted like the peers'
// (micro.hpp). Usage: parked_runloom parked COUNT
#include <cstdlib>
#include <cstring>
#include <vector>

#include "../peers/micro.hpp"
#include "runloom/sched/scheduler.hpp"

namespace {

int measure(int count) {
  const auto status = runloom::run([count] {
    std::vector<runloom::JoinHandle<void>> fibers;
    fibers.reserve(static_cast<std::size_t>(count));
    const double before = micro::memory();
    int parked = 0;
    int failed = 0;
    for (int i = 0; i < count; i++) {
      fibers.push_back(runloom::spawn([&] {
        parked++;
        if (!runloom::this_fiber::park()) failed++;
      }));
    }
    while (parked < count)
      runloom::this_fiber::yield();
    micro::report("parked fiber", (micro::memory() - before) / count, "bytes");
    for (auto& fiber : fibers)
      fiber.handle().unpark();
    for (auto& fiber : fibers) {
      if (!fiber.join()) failed++;
    }
    return failed;
  });
  return status && *status == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 || std::strcmp(argv[1], "parked") != 0) return 64;
  return measure(std::atoi(argv[2]));
}
