// The set's lock guards the list of children and what they left. A child's last touch of the set
// is the unlock in finish(): it wakes the waiter after that, through the waiter alone, so that the
// owner may destroy the set as soon as it runs.
#include "runloom/sched/join_set.hpp"

#include <mutex>

#include "fiber_impl.hpp"
#include "runloom/sched/check.hpp"
#include "wait_list.hpp"

namespace runloom::detail {

JoinSetCore::~JoinSetCore() {
  if (exception_) report_unhandled(failed_name_, failed_id_, exception_);
}

void JoinSetCore::add(Child& child) noexcept {
  std::lock_guard hold(lock_);
  child.next = children_;
  if (children_) children_->prev = &child;
  children_ = &child;
  ++count_;
  if (cancelled_) child.fiber->cancel.store(true, std::memory_order_release);
}

void JoinSetCore::failed(std::error_code error, std::exception_ptr exception) noexcept {
  std::lock_guard hold(lock_);
  // Of a cancelled set a failed Result is a consequence, also when value() has thrown it.
  if (failed_ || (cancelled_ && error)) return;
  failed_ = true;
  error_ = error;
  if (exception) {
    exception_ = std::move(exception);
    failed_id_ = this_fiber::id();
    const std::string_view name = this_fiber::name();
    failed_name_[name.copy(failed_name_, sizeof failed_name_ - 1)] = '\0';
  }
  if (!cancelled_) cancel_locked();
}

void JoinSetCore::finish(Child& child, Item* item) noexcept {
  WakeBatch woken;
  {
    std::lock_guard hold(lock_);
    (child.prev ? child.prev->next : children_) = child.next;
    if (child.next) child.next->prev = child.prev;
    --count_;
    if (item) {
      *newest_ = item;
      newest_ = &item->next;
      if (WaitNode* taker = for_items_.claim_front()) woken.add(*taker);
    }
    if (count_ == 0) {
      woken.claim_all(for_items_);
      woken.claim_all(for_end_);
    }
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

// Called and left with the lock held.
WakeCode JoinSetCore::park(WaitList& list, Deadline deadline, bool cancellable) {
  const WakeCode code = park_in(list, lock_,
                                {.reason = WaitReason::join_set,
                                 .object = this,
                                 .deadline = deadline,
                                 .cancellable = cancellable});
  lock_.lock();
  return code;
}

Result<void> JoinSetCore::wait(Deadline deadline) {
  lock_.lock();
  while (count_ != 0) {
    const WakeCode code = park(for_end_, deadline, true);
    if (code != kWakeUser && count_ != 0) {
      lock_.unlock();
      return fail(wake_error(code));
    }
  }
  return take_failure();
}

void JoinSetCore::wait_for_end() noexcept {
  std::lock_guard hold(lock_);
  while (count_ != 0) {
    const WakeCode code = park(for_end_, Deadline::never(), false);
    RUNLOOM_CHECK(code == kWakeUser,
                  "a JoinSet whose children still run was destroyed where parking is forbidden");
  }
}

Result<void> JoinSetCore::take_failure() {
  const std::exception_ptr exception = std::exchange(exception_, nullptr);
  const std::error_code error = std::exchange(error_, std::error_code());
  failed_ = false;
  lock_.unlock();
  if (exception) std::rethrow_exception(exception);
  if (error) return Unexpected{error};
  return {};
}

JoinSetCore::Item* JoinSetCore::pop_item() noexcept {
  Item* item = oldest_;
  if (!item) return nullptr;
  oldest_ = item->next;
  if (!oldest_) newest_ = &oldest_;
  return item;
}

JoinSetCore::Item* JoinSetCore::take_item() noexcept {
  std::lock_guard hold(lock_);
  return pop_item();
}

Result<JoinSetCore::Item*> JoinSetCore::next(Deadline deadline) {
  lock_.lock();
  for (;;) {
    if (Item* item = pop_item()) {
      lock_.unlock();
      return item;
    }
    if (count_ == 0) {
      if (const auto all_well = take_failure(); !all_well) return Unexpected{all_well.error()};
      return static_cast<Item*>(nullptr);
    }
    const WakeCode code = park(for_items_, deadline, true);
    if (code != kWakeUser && !oldest_ && count_ != 0) {
      lock_.unlock();
      return fail(wake_error(code));
    }
  }
}

}  // namespace runloom::detail
