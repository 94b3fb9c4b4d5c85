// One round of the net stress: everything at once, cut at any moment.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "stress/stress_flow.hpp"

namespace runloom::test {

// What is under way in one round. Its choices follow from the seed.
class Round {
 public:
  explicit Round(std::uint64_t number) : seed(number) {}

  std::uint64_t begin() {
    const std::lock_guard hold(mutex_);
    const std::uint64_t id = mix64(seed * 1'000'003 + ++count_);
    open_.emplace(id, 0);
    return id;
  }
  // An end of a connection that says that it is `id`. Each number has one server's end.
  bool meet(std::uint64_t id) {
    const std::lock_guard hold(mutex_);
    const auto found = open_.find(id);
    return found != open_.end() && found->second++ == 0;
  }

  const std::uint64_t seed;
  std::atomic<std::uint64_t> whole{0}, cut{0}, strangers{0}, datagrams{0};

 private:
  std::mutex mutex_;
  std::uint64_t count_ = 0;
  std::unordered_map<std::uint64_t, int> open_;
};

// On a fiber of a scheduler with so many hubs. Returns when all that it has started is over.
void run_round(Round& round, int hubs);

}  // namespace runloom::test
