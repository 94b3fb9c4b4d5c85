#include "runloom/sched/cond_var.hpp"

#include "runloom/sched/check.hpp"
#include "wait_list.hpp"

namespace runloom {

CondVar::~CondVar() {
  RUNLOOM_CHECK(waiters_.empty(), "a condition variable was destroyed while somebody waits");
}

// The node is linked before the mutex is unlocked, so that a notify by the next holder finds it.
template <class Unlock, class Relock>
Result<void> CondVar::wait_between(Unlock unlock, Relock relock, Deadline deadline) {
  detail::WaitNode node(detail::begin_wait());
  lock_.lock();
  waiters_.push_back(node);
  lock_.unlock();
  unlock();
  const detail::WakeCode code = detail::wait(
      node.token, {.reason = WaitReason::cond_var, .object = this, .deadline = deadline});
  if (code != detail::kWakeUser) {
    lock_.lock();
    waiters_.remove_if_linked(node);
    lock_.unlock();
  }
  relock();
  return detail::wait_result(code);
}

Result<void> CondVar::wait(Mutex& mutex, Deadline deadline) {
  return wait_between([&] { mutex.unlock(); }, [&] { mutex.lock(); }, deadline);
}

Result<void> CondVar::wait(RecursiveMutex& mutex, Deadline deadline) {
  std::uint32_t depth = 0;
  return wait_between([&] { depth = mutex.unlock_all(); }, [&] { mutex.lock_to(depth); }, deadline);
}

void CondVar::notify(std::size_t count) noexcept {
  detail::WakeBatch woken;
  lock_.lock();
  for (; count > 0; --count) {
    detail::WaitNode* node = waiters_.claim_front();
    if (!node) break;
    woken.add(*node);
  }
  lock_.unlock();
  woken.schedule();
}

void CondVar::notify_all() noexcept {
  detail::WakeBatch woken;
  lock_.lock();
  woken.claim_all(waiters_);
  lock_.unlock();
  woken.schedule();
}

}  // namespace runloom
