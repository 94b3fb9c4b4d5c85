// is_set() and wait() take the lock although a plain flag would do for reading it: the setter's
// unlock is then its last access, and a waiter may destroy the event at once.
#include "runloom/sched/event.hpp"

#include <mutex>

#include "runloom/sched/check.hpp"
#include "wait_list.hpp"

namespace runloom {

using detail::Joined;

Event::~Event() {
  RUNLOOM_CHECK(waiters_.empty(), "an event was destroyed while somebody waits for it");
}

void Event::set() noexcept {
  detail::WakeBatch woken;
  {
    std::lock_guard hold(lock_);
    set_ = true;
    woken.claim_all(waiters_);
  }
  woken.schedule();
}

void Event::clear() noexcept {
  std::lock_guard hold(lock_);
  set_ = false;
}

bool Event::is_set() const noexcept {
  std::lock_guard hold(lock_);
  return set_;
}

Result<void> Event::wait(Deadline deadline) {
  lock_.lock();
  if (set_) {
    lock_.unlock();
    return {};
  }
  return detail::wait_result(detail::park_in(
      waiters_, lock_, {.reason = WaitReason::event, .object = this, .deadline = deadline}));
}

Joined Event::join(detail::WaitNode& node) noexcept {
  std::lock_guard hold(lock_);
  if (!set_) {
    waiters_.push_back(node);
    return Joined::waiting;
  }
  return detail::claim(node.token, node.code) ? Joined::done : Joined::lost;
}

void Event::leave(detail::WaitNode& node) noexcept {
  std::lock_guard hold(lock_);
  waiters_.remove_if_linked(node);
}

}  // namespace runloom
