// CondVar: waits for a condition that a mutex protects.
#pragma once

#include <cstddef>
#include <mutex>
#include <utility>

#include "runloom/sched/deadline.hpp"
#include "runloom/sched/mutex.hpp"
#include "runloom/sched/park.hpp"
#include "runloom/sched/result.hpp"
#include "runloom/sched/spin_lock.hpp"

namespace runloom {

// Any thread. Waiters are woken in the order in which they came. A wait that was notified
// succeeds, also when its deadline passed or it was cancelled at the same moment; one that timed
// out or was cancelled has consumed no notification. There are no spurious wake-ups, but others
// may run, and change what the mutex protects, before the woken waiter has the mutex again.
class CondVar {
 public:
  CondVar() noexcept = default;
  ~CondVar();
  CondVar(const CondVar&) = delete;
  CondVar& operator=(const CondVar&) = delete;

  // Unlocks the mutex (a recursive one whatever its depth), parks until notified, and locks it
  // again: also when the wait fails, and then whatever the cancellation of the caller, as
  // Mutex::lock() does. The caller must hold the mutex. Fails with timed_out, cancelled.
  Result<void> wait(Mutex& mutex, Deadline deadline = {});
  Result<void> wait(RecursiveMutex& mutex, Deadline deadline = {});
  template <class M>
  Result<void> wait(std::unique_lock<M>& lock, Deadline deadline = {}) {
    return wait(*lock.mutex(), deadline);
  }
  // Waits until `ready()`, which is called with the mutex held. Succeeds whenever it is true, also
  // at the deadline.
  template <class Lock, class Predicate>
  Result<void> wait_until(Lock& lock, Predicate ready, Deadline deadline = {}) {
    while (!ready()) {
      Result<void> woken = wait(lock, deadline);
      if (!woken && !ready()) return woken;
    }
    return {};
  }

  // Wake the first `count` waiters, or all. The mutex need not be held.
  void notify_one() noexcept { notify(1); }
  void notify(std::size_t count) noexcept;
  void notify_all() noexcept;

 private:
  template <class Unlock, class Relock>
  Result<void> wait_between(Unlock unlock, Relock relock, Deadline deadline);

  detail::SpinLock lock_{detail::LockRank::primitive};
  detail::WaitList waiters_;  // guarded by lock_
};

}  // namespace runloom
