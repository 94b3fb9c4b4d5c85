// ChannelCore: a channel of values whose type it does not know. Channel<T> and select() are thin
// views of it; a program uses those.
//
// Who waits: receivers only while the buffer is empty, senders only while it is full, so never
// both (but for the two cases of one select, which don't match each other).
#pragma once

#include <cstddef>
#include <new>
#include <utility>

#include "runloom/sched/deadline.hpp"
#include "runloom/sched/park.hpp"
#include "runloom/sched/select_source.hpp"
#include "runloom/sched/spin_lock.hpp"

namespace runloom::detail {

// How values are moved and destroyed.
struct ValueOps {
  std::size_t size;
  std::size_t align;
  void (*move)(void* to, void* from) noexcept;  // constructs `to`; `from` is still to be destroyed
  void (*destroy)(void* value) noexcept;
};

template <class T>
inline constexpr ValueOps kValueOps{
    sizeof(T), alignof(T),
    [](void* to, void* from) noexcept {
      new (to) T(std::move(*std::launder(static_cast<T*>(from))));
    },
    [](void* value) noexcept { std::launder(static_cast<T*>(value))->~T(); }};

// What a parked sender or receiver hands over; its WaitNode::data. The peer that claimed the wait
// writes here before it schedules the waiter.
struct ChannelTransfer {
  void* value;          // send: what to move from; receive: where to construct
  bool closed = false;  // woken by close(): nothing was moved
};

// Of a code that is not kWakeUser (done): kWakePending is an operation that would have to park.
std::error_code channel_error(WakeCode code) noexcept;

class ChannelCore {
 public:
  // `ops` must outlive the channel.
  ChannelCore(std::size_t capacity, const ValueOps& ops);
  ~ChannelCore();
  ChannelCore(const ChannelCore&) = delete;
  ChannelCore& operator=(const ChannelCore&) = delete;

  WakeCode send(void* value, Deadline deadline);
  WakeCode recv(void* slot, Deadline deadline);
  WakeCode try_send(void* value) noexcept;
  WakeCode try_recv(void* slot) noexcept;
  WakeCode close() noexcept;
  void for_each_buffered(void (*fn)(void* value, void* arg), void* arg);

  bool closed() const noexcept;
  std::size_t size() const noexcept;
  std::size_t capacity() const noexcept { return capacity_; }

  // For select(). The node's data is a ChannelTransfer.
  Joined join_send(WaitNode& node) noexcept;
  Joined join_recv(WaitNode& node) noexcept;
  void leave_send(WaitNode& node) noexcept;
  void leave_recv(WaitNode& node) noexcept;

 private:
  WakeCode finish_send(void* value) noexcept;
  WakeCode finish_recv(void* slot) noexcept;
  WakeCode park_transfer(WaitList& list, ChannelTransfer& passed, WaitReason reason,
                         Deadline deadline);
  Joined join(WaitNode& node, WaitList& own, bool ready,
              WakeCode (ChannelCore::*finish)(void*) noexcept) noexcept;
  void* at(std::size_t index) const noexcept { return buffer_ + index * ops_.size; }
  void push(void* value) noexcept;

  const ValueOps& ops_;
  const std::size_t capacity_;
  std::byte* buffer_ = nullptr;  // ring of capacity_ values
  mutable SpinLock lock_{LockRank::primitive};

  // Guarded by lock_.
  bool closed_ = false;
  std::size_t head_ = 0;  // oldest value
  std::size_t count_ = 0;
  WaitList senders_;
  WaitList receivers_;
};

}  // namespace runloom::detail
