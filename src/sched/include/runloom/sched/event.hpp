// Event: a flag to wait for.
#pragma once

#include "runloom/sched/deadline.hpp"
#include "runloom/sched/park.hpp"
#include "runloom/sched/result.hpp"
#include "runloom/sched/select_source.hpp"
#include "runloom/sched/spin_lock.hpp"

namespace runloom {

// Any thread. set() releases everyone who waits at that moment, also when clear() follows at
// once: a pulse loses nobody. Scheduler::run() can't know that an OS thread is going to set it, see
// there. The waiter that saw the event set may destroy it, even while set()
// has not returned yet.
class Event {
 public:
  Event() noexcept = default;
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void set() noexcept;
  void clear() noexcept;
  bool is_set() const noexcept;
  // Parks until the event is set; does not park when it is. Fails with timed_out, cancelled.
  Result<void> wait(Deadline deadline = {});

  // For select().
  detail::Joined join(detail::WaitNode& node) noexcept;
  void leave(detail::WaitNode& node) noexcept;

 private:
  mutable detail::SpinLock lock_{detail::LockRank::primitive};
  bool set_ = false;  // guarded by lock_, as waiters_ is
  detail::WaitList waiters_;
};

}  // namespace runloom
