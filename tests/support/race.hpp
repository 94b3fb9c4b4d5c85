// For race tests: seeded randomness, a time budget, OS threads beside fibers.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "runloom/sched/fiber.hpp"

namespace runloom::test {

// The seed of this run: RUNLOOM_SEED, else a fresh one. It is printed by the first call, so that a
// failure can be repeated with the same choices.
std::uint64_t race_seed();

// A random sequence. Each user of one test takes another `stream`.
class Random {
 public:
  explicit Random(std::uint64_t stream) : engine_(race_seed() * 0x9e3779b97f4a7c15 + stream) {}
  // Uniform in [0, bound).
  std::uint32_t below(std::uint32_t bound) { return static_cast<std::uint32_t>(engine_() % bound); }
  bool one_in(std::uint32_t n) { return below(n) == 0; }

 private:
  std::mt19937_64 engine_;
};

// True for as long as the race should go on: RUNLOOM_RACE_MS, by default 200 ms. At least one
// round.
class RaceBudget {
 public:
  RaceBudget();
  bool spent() const { return std::chrono::steady_clock::now() >= end_; }

 private:
  std::chrono::steady_clock::time_point end_;
};

// OS threads that use the same objects as the fibers of a test. Used by one fiber. While they run a
// fiber of its own waits for them, in a wait that only something outside can end: so it is no
// deadlock when all other fibers wait for one of the threads.
class ForeignThreads {
 public:
  ForeignThreads() = default;
  ~ForeignThreads();
  void start(std::function<void()> body);
  void join();

 private:
  std::atomic<std::size_t> ended_{0};
  std::atomic<bool> joining_{false};
  JoinHandle<void> keeper_;
  std::vector<std::thread> threads_;
};

}  // namespace runloom::test
