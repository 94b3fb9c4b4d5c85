// The set's lock guards the list of children and what they left. A child's last touch of the set
// is the unlock in finish(): it wakes the waiter after that, through the waiter alone, so that the
// owner may destroy the set as soon as it runs.
#include "runloom/sched/join_set.hpp"

#include <mutex>

#include "fiber_impl.hpp"
#include "wait_list.hpp"

namespace runloom::detail {

JoinSetCore::~JoinSetCore() = default;

void JoinSetCore::add(Child& child) noexcept {
  std::lock_guard hold(lock_);
  child.next = children_;
  if (children_) children_->prev = &child;
  children_ = &child;
  ++count_;
  if (cancelled_) child.fiber->cancel.store(true, std::memory_order_release);
}

void JoinSetCore::finish(Child& child, Item* item, std::error_code error,
                         std::exception_ptr exception) noexcept {
  WakeBatch woken;
  {
    std::lock_guard hold(lock_);
    (child.prev ? child.prev->next : children_) = child.next;
    if (child.next) child.next->prev = child.prev;
    --count_;
    if (item) {
      *newest_ = item;
      newest_ = &item->next;
    }
    // What cancelled children report is a consequence, not a cause.
    if ((error || exception) && !failed_ && !cancelled_) {
      failed_ = true;
      error_ = error;
      exception_ = std::move(exception);
      cancel_locked();
    }
    // Waiters look at the state themselves; almost always there is one.
    woken.claim_all(waiters_);
  }
  woken.schedule();
}

void JoinSetCore::cancel_locked() noexcept {
  cancelled_ = true;
  for (Child* child = children_; child; child = child->next)
    cancel_fiber(child->fiber);
}

void JoinSetCore::cancel() noexcept {
  std::lock_guard hold(lock_);
  if (!cancelled_) cancel_locked();
}

std::size_t JoinSetCore::size() const noexcept {
  std::lock_guard hold(lock_);
  return count_;
}

WakeCode JoinSetCore::park(Deadline deadline, bool cancellable) {
  WaitNode node(begin_wait());
  waiters_.push_back(node);
  lock_.unlock();
  const WakeCode code = detail::wait(node.token, {.reason = WaitReason::join_set,
                                                  .object = this,
                                                  .deadline = deadline,
                                                  .cancellable = cancellable});
  lock_.lock();
  waiters_.remove_if_linked(node);
  return code;
}

Result<void> JoinSetCore::wait(Deadline deadline, bool cancellable) {
  lock_.lock();
  while (count_ != 0) {
    const WakeCode code = park(deadline, cancellable);
    if (code == kWakeUser || count_ == 0) continue;
    // The destructor may not return before the children, whatever ended its wait.
    lock_.unlock();
    if (cancellable) return fail(wake_error(code));
    this_fiber::yield();
    lock_.lock();
  }
  lock_.unlock();
  return cancellable ? failure() : Result<void>();
}

Result<void> JoinSetCore::failure() {
  std::exception_ptr exception;
  std::error_code error;
  {
    std::lock_guard hold(lock_);
    exception = std::exchange(exception_, nullptr);
    error = error_;
  }
  if (exception) std::rethrow_exception(exception);
  if (error) return Unexpected{error};
  return {};
}

JoinSetCore::Item* JoinSetCore::take_item() noexcept {
  std::lock_guard hold(lock_);
  Item* item = oldest_;
  if (!item) return nullptr;
  oldest_ = item->next;
  if (!oldest_) newest_ = &oldest_;
  return item;
}

Result<JoinSetCore::Item*> JoinSetCore::next(Deadline deadline) {
  for (;;) {
    if (Item* item = take_item()) return item;
    lock_.lock();
    if (failed_ || (count_ == 0 && !oldest_)) {
      lock_.unlock();
      if (const auto failed = failure(); !failed) return Unexpected{failed.error()};
      return static_cast<Item*>(nullptr);
    }
    if (oldest_) {
      lock_.unlock();
      continue;
    }
    const WakeCode code = park(deadline, true);
    lock_.unlock();
    if (code != kWakeUser) return fail(wake_error(code));
  }
}

}  // namespace runloom::detail
