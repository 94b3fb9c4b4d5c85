// A channel's operations, each under one short hold of its lock.
//
// A hand-off between parked peers needs no second hold: the waker unlinks and claims the other's
// node under the lock, and a claimed waiter does not run before it is scheduled, so the value is
// moved to or from its stack after the unlock. Whoever was claimed returns without the lock.
//
// Rejected: moving values on the woken side. The sender would have to stay parked until the
// receiver ran, and a receiver that ends between claim and move would take the value with it.
#include "runloom/sched/channel_core.hpp"

#include <mutex>

#include "runloom/sched/check.hpp"
#include "wait_list.hpp"

namespace runloom::detail {
namespace {

ChannelTransfer& transfer(const WaitNode& node) noexcept {
  return *static_cast<ChannelTransfer*>(node.data);
}

// True when somebody other than `self` waits: a select never meets itself.
bool has_peer(const WaitList& list, const Waiter* self) noexcept {
  const WaitNode* node = list.front();
  while (node && node->token.waiter == self)
    node = node->next;
  return node != nullptr;
}

std::byte* make_buffer(std::size_t capacity, const ValueOps& ops) {
  if (capacity == 0) return nullptr;
  if (capacity > PTRDIFF_MAX / ops.size) throw std::bad_alloc();
  return static_cast<std::byte*>(
      ::operator new(capacity* ops.size, static_cast<std::align_val_t>(ops.align)));
}

}  // namespace

std::error_code channel_error(WakeCode code) noexcept {
  return code == kWakePending ? make_error_code(Errc::would_block) : wake_error(code);
}

ChannelCore::ChannelCore(std::size_t capacity, const ValueOps& ops)
    : ops_(ops), capacity_(capacity), buffer_(make_buffer(capacity, ops)) {}

ChannelCore::~ChannelCore() {
  RUNLOOM_CHECK(senders_.empty() && receivers_.empty(),
                "a channel was destroyed while somebody waits in it");
  for (; count_ != 0; --count_) {
    ops_.destroy(at(head_));
    head_ = head_ + 1 == capacity_ ? 0 : head_ + 1;
  }
  if (buffer_) ::operator delete(buffer_, static_cast<std::align_val_t>(ops_.align));
}

void ChannelCore::push(void* value) noexcept {
  std::size_t tail = head_ + count_;
  if (tail >= capacity_) tail -= capacity_;
  ops_.move(at(tail), value);
  ++count_;
}

// Completes a send if that is possible now and releases the lock; kWakePending: it is not, and
// the lock is still held.
WakeCode ChannelCore::finish_send(void* value) noexcept {
  if (closed_) [[unlikely]] {
    lock_.unlock();
    return kWakeClosed;
  }
  if (WaitNode* receiver = receivers_.claim_front()) {
    lock_.unlock();
    ops_.move(transfer(*receiver).value, value);
    schedule(receiver->token.waiter);
    return kWakeUser;
  }
  if (count_ < capacity_) {
    push(value);
    lock_.unlock();
    return kWakeUser;
  }
  return kWakePending;
}

// As finish_send. What is buffered goes before "closed".
WakeCode ChannelCore::finish_recv(void* slot) noexcept {
  if (count_ != 0) {
    void* oldest = at(head_);
    ops_.move(slot, oldest);
    ops_.destroy(oldest);
    head_ = head_ + 1 == capacity_ ? 0 : head_ + 1;
    --count_;
    WaitNode* sender = senders_.claim_front();
    if (sender) push(transfer(*sender).value);
    lock_.unlock();
    if (sender) schedule(sender->token.waiter);
    return kWakeUser;
  }
  if (WaitNode* sender = senders_.claim_front()) {
    lock_.unlock();
    ops_.move(slot, transfer(*sender).value);
    schedule(sender->token.waiter);
    return kWakeUser;
  }
  if (closed_) {
    lock_.unlock();
    return kWakeClosed;
  }
  return kWakePending;
}

WakeCode ChannelCore::send(void* value, Deadline deadline) {
  lock_.lock();
  if (const WakeCode code = finish_send(value)) return code;
  ChannelTransfer passed{value};
  return park_transfer(senders_, passed, WaitReason::channel_send, deadline);
}

WakeCode ChannelCore::recv(void* slot, Deadline deadline) {
  lock_.lock();
  if (const WakeCode code = finish_recv(slot)) return code;
  ChannelTransfer passed{slot};
  return park_transfer(receivers_, passed, WaitReason::channel_recv, deadline);
}

// Waits for a peer or close(). Called with the lock held, returns with it released.
WakeCode ChannelCore::park_transfer(WaitList& list, ChannelTransfer& passed, WaitReason reason,
                                    Deadline deadline) {
  WakeCode code =
      park_in(list, lock_, {.reason = reason, .object = this, .deadline = deadline}, &passed);
  return code == kWakeUser && passed.closed ? kWakeClosed : code;
}

WakeCode ChannelCore::try_send(void* value) noexcept {
  lock_.lock();
  const WakeCode code = finish_send(value);
  if (code == kWakePending) lock_.unlock();
  return code;
}

WakeCode ChannelCore::try_recv(void* slot) noexcept {
  lock_.lock();
  const WakeCode code = finish_recv(slot);
  if (code == kWakePending) lock_.unlock();
  return code;
}

WakeCode ChannelCore::close() noexcept {
  WakeBatch woken;
  {
    std::lock_guard hold(lock_);
    if (closed_) return kWakeClosed;
    closed_ = true;
    for (WaitList* list : {&senders_, &receivers_}) {
      while (WaitNode* node = list->claim_front()) {
        transfer(*node).closed = true;
        woken.add(*node);
      }
    }
  }
  woken.schedule();
  return kWakeUser;
}

void ChannelCore::for_each_buffered(void (*fn)(void* value, void* arg), void* arg) {
  std::lock_guard hold(lock_);
  for (std::size_t i = 0; i < count_; ++i)
    fn(at((head_ + i) % capacity_), arg);
}

bool ChannelCore::closed() const noexcept {
  std::lock_guard hold(lock_);
  return closed_;
}

std::size_t ChannelCore::size() const noexcept {
  std::lock_guard hold(lock_);
  return count_;
}

// ---------------------------------------------------------------- select

// A select publishes its wait to several channels before it is complete, so when it finds this
// one ready it must first win its own wait, and only then a peer's. Claiming the peer first would
// leave a peer woken for nothing if another channel claimed the select meanwhile. The price is
// `retry`: the own wait is closed and the last peer has just gone.
Joined ChannelCore::join(WaitNode& node, WaitList& own, bool ready,
                         WakeCode (ChannelCore::*finish)(void*) noexcept) noexcept {
  if (!ready) {
    own.push_back(node);
    lock_.unlock();
    return Joined::waiting;
  }
  if (!claim(node.token, node.code)) {
    lock_.unlock();
    return Joined::lost;
  }
  // Nodes of this select in the other list can't be claimed any more; they are dropped.
  const WakeCode code = (this->*finish)(transfer(node).value);
  if (code == kWakePending) {
    lock_.unlock();
    return Joined::retry;
  }
  transfer(node).closed = code == kWakeClosed;
  return Joined::done;
}

Joined ChannelCore::join_send(WaitNode& node) noexcept {
  lock_.lock();
  const bool ready = closed_ || count_ < capacity_ || has_peer(receivers_, node.token.waiter);
  return join(node, senders_, ready, &ChannelCore::finish_send);
}

Joined ChannelCore::join_recv(WaitNode& node) noexcept {
  lock_.lock();
  const bool ready = closed_ || count_ != 0 || has_peer(senders_, node.token.waiter);
  return join(node, receivers_, ready, &ChannelCore::finish_recv);
}

void ChannelCore::leave_send(WaitNode& node) noexcept {
  std::lock_guard hold(lock_);
  senders_.remove_if_linked(node);
}

void ChannelCore::leave_recv(WaitNode& node) noexcept {
  std::lock_guard hold(lock_);
  receivers_.remove_if_linked(node);
}

}  // namespace runloom::detail
