// SimDriver: a Driver whose clock, whose events and whose mishaps come from a seed, so that a
// program on one hub runs the same way each time: a failure is replayed from one integer.
//
// Time passes only here: a little with each look at the clock, and to the next timer or event when
// the hub has nothing to do. So an hour's sleep costs nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runloom/sched/driver.hpp"
#include "runloom/sched/park.hpp"
#include "runloom/sched/result.hpp"
#include "runloom/sched/scheduler.hpp"

namespace runloom::test {

// A random sequence that is the same on every machine (splitmix64).
class SimRandom {
 public:
  explicit SimRandom(std::uint64_t seed) noexcept : state_(seed) {}
  std::uint64_t next() noexcept {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // Uniform in [0, bound).
  std::uint64_t below(std::uint64_t bound) noexcept { return next() % bound; }
  bool one_in(std::uint64_t n) noexcept { return below(n) == 0; }

 private:
  std::uint64_t state_;
};

// How often, each as one in n; 0: never.
struct SimFaults {
  std::uint32_t spurious_return = 8;  // a poll returns before its time, with nothing
  std::uint32_t held_back = 4;        // an event that is due is delivered by a later poll
  std::uint32_t late = 8;             // the sleep overruns, by up to 100 us
  std::uint32_t repeated = 4;         // an event comes again, for a wait that is over
  std::uint32_t failed = 8;           // an operation completes with an error
};

class SimDriver final : public Driver {
 public:
  explicit SimDriver(std::uint64_t seed, SimFaults faults = {}) noexcept;

  // A pretended operation of the calling fiber: completes within `most_ns`, with a number or
  // with EIO. Parks; a cancel point. The event of a wait that ended otherwise misses.
  Result<std::uint64_t> operate(std::int64_t most_ns, Deadline deadline = {});

  std::size_t pending() const noexcept { return operations_.size(); }
  // Changes with everything that happens: equal for equal runs.
  std::uint64_t trace() const noexcept { return trace_; }

  int poll(std::int64_t timeout_ns) override;
  void wake() noexcept override { woken_ = true; }
  bool wants_poll() const noexcept override { return !operations_.empty(); }
  std::int64_t now_ns() noexcept override { return now_ += 10; }

 private:
  struct Operation {
    std::int64_t due_ns;
    detail::WaitToken token;
    std::uint64_t number;
  };
  bool chance(std::uint32_t one_in) noexcept { return one_in != 0 && random_.one_in(one_in); }
  void note(std::uint64_t what) noexcept;
  int deliver();
  std::int64_t next_due() const noexcept;

  SimRandom random_;
  const SimFaults faults_;
  std::int64_t now_ = 1'000'000'000;
  std::vector<Operation> operations_;
  std::vector<detail::WaitToken> over_;  // waits that have ended, for `repeated`
  std::uint64_t numbers_ = 0;
  std::uint64_t trace_ = 0;
  bool woken_ = false;
};

// The calling hub's driver.
SimDriver& sim_driver() noexcept;

// Options of a scheduler of one hub with a SimDriver.
Options sim_options(std::uint64_t seed, SimFaults faults = {});

}  // namespace runloom::test
