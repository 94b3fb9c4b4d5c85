// SpinLock: the short lock under the primitives (channels, mutexes, wait lists), and the order in
// which such locks may be taken. Held for tens of instructions, never across a park (I4), a
// system call that may block, or user code.
#pragma once

#include <atomic>
#include <cstdint>

namespace runloom::detail {

// Lock order: a thread takes locks in strictly increasing rank. Checked in debug builds.
enum class LockRank : std::uint8_t {
  join_set = 10,    // JoinSet's list of children; taken before a child's own lock
  registry = 15,    // introspection walks
  timer = 18,       // a Timer; its channel is taken under it
  primitive = 20,   // channel, mutex, cond var, event, semaphore, wait group: one at a time
  select = 21,      // held while a select removes its nodes from one source at a time
  descriptor = 30,  // PollDesc and Fd waiter lists
  fiber = 40,       // a fiber's joiners, permits and cancel flag
  queue = 50,       // a hub's queue of unstarted fibers
  scheduler = 60,   // idle bookkeeping of a scheduler
  pool = 70,        // stack slabs, blocking pool
};

// Debug builds: abort with both ranks when the order is broken; count for the park check.
void lock_acquired(LockRank rank) noexcept;
void lock_tried(LockRank rank) noexcept;  // got by try_lock, which may break the order
void lock_released(LockRank rank) noexcept;
// Aborts when the calling thread holds a SpinLock. Called before every switch in debug builds.
void check_no_lock_held(const char* where) noexcept;
// Waits until `state` may be free: spins, then yields the processor.
void spin_wait(const std::atomic<std::uint8_t>& state) noexcept;

class SpinLock {
 public:
  explicit constexpr SpinLock(LockRank rank) noexcept : rank_(rank) {}
  SpinLock(const SpinLock&) = delete;
  SpinLock& operator=(const SpinLock&) = delete;

  void lock() noexcept {
    while (state_.exchange(1, std::memory_order_acquire) != 0)
      [[unlikely]] spin_wait(state_);
#ifdef RUNLOOM_DEBUG
    lock_acquired(rank_);
#endif
  }
  bool try_lock() noexcept {
    if (state_.exchange(1, std::memory_order_acquire) != 0) return false;
#ifdef RUNLOOM_DEBUG
    lock_tried(rank_);
#endif
    return true;
  }
  void unlock() noexcept {
#ifdef RUNLOOM_DEBUG
    lock_released(rank_);
#endif
    state_.store(0, std::memory_order_release);
  }
  // Around fork(): all locks of the process at once, outside of the order.
  void lock_for_fork() noexcept {
    while (state_.exchange(1, std::memory_order_acquire) != 0)
      spin_wait(state_);
  }
  // Also frees, in the child, a lock whose holder is gone.
  void unlock_for_fork() noexcept {
    state_.store(0, std::memory_order_release);
  }

 private:
  std::atomic<std::uint8_t> state_{0};
  [[maybe_unused]] LockRank rank_;  // read in debug builds only
};

}  // namespace runloom::detail
