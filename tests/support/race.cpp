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
  if (keeper_) join();
}

void ForeignThreads::start(std::function<void()> body) {
  if (!keeper_) {
    keeper_ = spawn([this] {
      Shield shield;
      while (!joining_.load() || ended_.load() < threads_.size())
        EXPECT_TRUE(this_fiber::park(Deadline::never(), true));
    });
  }
  threads_.emplace_back([this, keeper = keeper_.handle(), body = std::move(body)] {
    body();
    ended_.fetch_add(1);
    keeper.unpark();
  });
}

void ForeignThreads::join() {
  Shield shield;
  joining_.store(true);
  keeper_.handle().unpark();
  EXPECT_TRUE(keeper_.join());
  for (std::thread& thread : threads_)
    thread.join();
  threads_.clear();
  ended_.store(0);
  joining_.store(false);
}

}  // namespace runloom::test
