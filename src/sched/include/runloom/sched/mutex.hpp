// Mutex and RecursiveMutex: exclusion between fibers, and between fibers and OS threads.
//
// FIFO: unlock() hands the mutex to the waiter that came first; nobody overtakes it. A waiter
// that is cancelled or times out at the moment of the hand-off either returns with the mutex or
// lets it pass to the next one.
//
// Two ways to lock:
//  - lock(deadline) -> Result is a cancel point. Use it where waiting may take long.
//  - lock() is what std::lock_guard calls. It waits whatever the deadline or cancellation of the
//    enclosing scopes, because a guard has no way to say that it failed, and because state that a
//    mutex protects is needed for cleaning up after a cancel as well. It throws
//    std::system_error(park_forbidden) where the caller may not park and would have to.
//
// A fiber that waits for a mutex that an OS thread, or a fiber of another scheduler, has or will
// have before it is no reason for Scheduler::run() to report a deadlock.
//
// Nobody may be waiting when a mutex is destroyed. Whoever locked it last may destroy it after
// its own unlock.
#pragma once

#include <atomic>
#include <cstdint>

#include "runloom/sched/deadline.hpp"
#include "runloom/sched/park.hpp"
#include "runloom/sched/result.hpp"
#include "runloom/sched/spin_lock.hpp"

namespace runloom {

// Not recursive: locking it twice waits for somebody else's unlock. As in Go it belongs to nobody
// in particular: one fiber or thread may lock it and another unlock it.
class Mutex {
 public:
  Mutex() noexcept = default;
  ~Mutex();
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock();
  // Fails with timed_out, cancelled, park_forbidden; the caller does not have the mutex then. Does
  // not fail when the mutex is free.
  Result<void> lock(Deadline deadline);
  bool try_lock() noexcept;
  // Never parks. The mutex must be locked.
  void unlock() noexcept;
  // For bindings: false when it is not locked.
  bool try_unlock() noexcept;
  // A snapshot.
  bool locked() const noexcept;

 private:
  detail::WakeCode acquire(Deadline deadline, bool cancellable);
  void take() noexcept;

  mutable detail::SpinLock lock_{detail::LockRank::primitive};
  // Guarded by lock_.
  bool locked_ = false;          // stays true across a hand-off
  bool mixed_ = false;           // since it was last free, more than one party locked or waited
  const void* party_ = nullptr;  // who locked it first: the fibers of a scheduler, or null: threads
  detail::WaitList waiters_;
};

// May be locked again by its owner, the fiber or OS thread that locked it, and is free after as
// many unlocks. A fiber and the OS thread that it runs on are different owners.
class RecursiveMutex {
 public:
  RecursiveMutex() noexcept = default;
  RecursiveMutex(const RecursiveMutex&) = delete;
  RecursiveMutex& operator=(const RecursiveMutex&) = delete;

  // As those of Mutex.
  void lock();
  Result<void> lock(Deadline deadline);
  bool try_lock() noexcept;
  // Only by the owner.
  void unlock() noexcept;
  // For bindings: false when the caller is not the owner.
  bool try_unlock() noexcept;
  // True when the caller is the owner.
  bool owned() const noexcept;
  bool locked() const noexcept { return mutex_.locked(); }

  // Frees the mutex whatever its depth and returns the depth; lock_to() takes it back to there,
  // as lock() does. For condition variables.
  std::uint32_t unlock_all() noexcept;
  void lock_to(std::uint32_t depth);

 private:
  // A waiter's memory is reused, so its address alone would make a later fiber the owner of what
  // an earlier one left locked.
  struct Owner {
    const void* waiter;
    std::uint64_t life;
  };
  static Owner caller() noexcept;
  bool owned_by(const Owner& who) const noexcept;
  void own(const Owner& who, std::uint32_t depth) noexcept;

  Mutex mutex_;
  // Written by the owner, compared by everyone: only the owner finds itself there.
  std::atomic<const void*> owner_{nullptr};
  std::atomic<std::uint64_t> owner_life_{0};
  std::uint32_t depth_ = 0;  // only the owner
};

}  // namespace runloom
