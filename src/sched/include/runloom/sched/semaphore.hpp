// Semaphore: a number of permits.
#pragma once

#include <cstdint>

#include "runloom/sched/deadline.hpp"
#include "runloom/sched/park.hpp"
#include "runloom/sched/result.hpp"
#include "runloom/sched/spin_lock.hpp"

namespace runloom {

// Any thread. FIFO: who waits for many permits is not overtaken by who wants few. An acquire that
// times out or is cancelled has taken no permit and lets those behind it pass.
class Semaphore {
 public:
  static constexpr std::uint32_t kUnbounded = ~std::uint32_t{0};

  // `permits` are free at first; there are never more than `capacity`.
  explicit Semaphore(std::uint32_t permits) noexcept : Semaphore(permits, permits) {}
  Semaphore(std::uint32_t permits, std::uint32_t capacity) noexcept;
  ~Semaphore();
  Semaphore(const Semaphore&) = delete;
  Semaphore& operator=(const Semaphore&) = delete;

  // Parks until it has `count` permits. Fails with timed_out, cancelled, and with
  // std::errc::invalid_argument for more permits than the capacity.
  Result<void> acquire(std::uint32_t count = 1, Deadline deadline = {});
  // Never parks. False when there are too few permits or others wait for some.
  bool try_acquire(std::uint32_t count = 1) noexcept;
  // Gives `count` permits back; never parks. The total must stay within the capacity.
  void release(std::uint32_t count = 1) noexcept;
  // For bindings: fails with over_release, and changes nothing, where release() would abort.
  Result<void> try_release(std::uint32_t count = 1) noexcept;

  // Snapshot of the free permits.
  std::uint32_t available() const noexcept;
  std::uint32_t capacity() const noexcept { return capacity_; }

 private:
  const std::uint32_t capacity_;
  mutable detail::SpinLock lock_{detail::LockRank::primitive};
  std::uint32_t permits_;     // guarded by lock_, as waiters_ is
  detail::WaitList waiters_;  // a node's data: how many permits it wants
};

}  // namespace runloom
