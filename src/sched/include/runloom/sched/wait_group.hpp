// WaitGroup: waits until a number of things are done.
#pragma once

#include <cstdint>

#include "runloom/sched/deadline.hpp"
#include "runloom/sched/park.hpp"
#include "runloom/sched/result.hpp"
#include "runloom/sched/spin_lock.hpp"

namespace runloom {

// Any thread. A counter; whoever waits is released when it falls to zero. It may be used again
// after that; those who waited are released even if somebody adds at once. The waiter may destroy
// it when wait() succeeded. JoinSet is the better choice where the things are fibers.
class WaitGroup {
 public:
  explicit WaitGroup(std::uint32_t count = 0) noexcept : count_(count) {}
  ~WaitGroup();
  WaitGroup(const WaitGroup&) = delete;
  WaitGroup& operator=(const WaitGroup&) = delete;

  // Never park. The counter must not fall below zero (or past 2^63).
  void add(std::uint32_t count = 1) noexcept;
  void done(std::uint32_t count = 1) noexcept;
  // For bindings: both in one; fails with over_release, and changes nothing, where those abort.
  Result<void> try_add(std::int64_t delta) noexcept;
  // Parks until the counter is zero; does not park when it is. Fails with timed_out, cancelled.
  Result<void> wait(Deadline deadline = {});
  // A snapshot.
  std::int64_t count() const noexcept;

 private:
  mutable detail::SpinLock lock_{detail::LockRank::primitive};
  std::int64_t count_;  // guarded by lock_, as waiters_ is
  detail::WaitList waiters_;
};

}  // namespace runloom
