// What the primitives share around a WaitList: parking in one, and waking several of its waiters.
#pragma once

#include "runloom/sched/park.hpp"
#include "runloom/sched/result.hpp"
#include "runloom/sched/spin_lock.hpp"

namespace runloom::detail {

// Waiters that were claimed under a lock, to be scheduled after its release. The object that was
// waited for may be gone as soon as the first of them runs, so nothing but the batch is used then.
class WakeBatch {
 public:
  // The node must be claimed and unlinked.
  void add(WaitNode& node) noexcept {
    node.next = nullptr;
    (tail_ ? tail_->next : head_) = &node;
    tail_ = &node;
  }
  void claim_all(WaitList& list) noexcept {
    while (WaitNode* node = list.claim_front())
      add(*node);
  }
  void schedule() noexcept {
    while (WaitNode* node = head_) {
      head_ = node->next;
      detail::schedule(node->token.waiter);
    }
  }

 private:
  WaitNode* head_ = nullptr;
  WaitNode* tail_ = nullptr;
};

// Waits at the end of `list`. Called with its `lock` held, returns with it released. kWakeUser:
// the waker has unlinked the node, the lock was not taken again.
inline WakeCode park_in(WaitList& list, SpinLock& lock, const WaitOptions& options,
                        void* data = nullptr) {
  WaitNode node(begin_wait());
  node.data = data;
  list.push_back(node);
  lock.unlock();
  const WakeCode code = wait(node.token, options);
  if (code != kWakeUser) [[unlikely]] {
    lock.lock();
    list.remove_if_linked(node);
    lock.unlock();
  }
  return code;
}

// The Result of a wait that kWakeUser ends well.
inline Result<void> wait_result(WakeCode code) noexcept {
  if (code == kWakeUser) return {};
  return fail(wake_error(code));
}

}  // namespace runloom::detail
