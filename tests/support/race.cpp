#include "support/race.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "runloom/sched/cancel.hpp"

namespace runloom::test {

std::uint64_t race_seed() {
  static const std::uint64_t seed = [] {
    const char* given = std::getenv("RUNLOOM_SEED");
    const std::uint64_t value = given ? std::stoull(given) : std::random_device{}();
    std::printf("RUNLOOM_SEED=%llu\n", static_cast<unsigned long long>(value));
    std::fflush(stdout);
    return value;
  }();
  return seed;
}

RaceBudget::RaceBudget() {
  const char* given = std::getenv("RUNLOOM_RACE_MS");
  end_ =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(given ? std::stol(given) : 200);
}

ForeignThreads::~ForeignThreads() {
  if (!threads_.empty()) join();
}

// Each thread gives the joiner a permit when it ends; the joiner takes one per thread.
void ForeignThreads::start(std::function<void()> body) {
  const FiberHandle joiner = this_fiber::handle();
  threads_.emplace_back([joiner, body = std::move(body)] {
    body();
    joiner.unpark();
  });
}

void ForeignThreads::join() {
  Shield shield;
  for (std::size_t ended = 0; ended < threads_.size(); ++ended)
    EXPECT_TRUE(this_fiber::park(Deadline::never(), true));
  for (std::thread& thread : threads_)
    thread.join();
  threads_.clear();
}

}  // namespace runloom::test
