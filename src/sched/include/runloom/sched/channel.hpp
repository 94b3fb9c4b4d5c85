// Channel<T>: a FIFO of values between fibers, and between fibers and OS threads.
//
// With capacity 0 a send and a receive meet: each parks until the other is there. With capacity n
// up to n values wait in the channel. A value goes straight to a parked receiver, and a parked
// sender's value straight to a receiver or into the buffer, so waiters are served strictly in the
// order of their arrival and no value overtakes another.
//
// Closing follows Go. After close() sends fail with Errc::closed, at once or woken from their
// park; receives take what is buffered and then fail with Errc::closed. A second close fails too.
//
// Any thread; but Scheduler::run() can't know that an OS thread is going to send or receive, see
// there. Everything but the destructor may be called while others use the channel; the
// destructor needs that nobody is parked in it and destroys what is buffered.
#pragma once

#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

#include "runloom/sched/channel_core.hpp"
#include "runloom/sched/deadline.hpp"
#include "runloom/sched/result.hpp"

namespace runloom {

// T's move constructor must not throw, because a value changes hands while both sides are
// committed. It and the destructor may run under a short lock: they must neither park nor use
// the same channel.
template <class T>
class Channel {
  static_assert(std::is_nothrow_move_constructible_v<T> && std::is_nothrow_destructible_v<T>);

 public:
  // `capacity` values are stored without a receiver; memory for them is taken here.
  explicit Channel(std::size_t capacity = 0) : core_(capacity, detail::kValueOps<T>) {}

  // Parks until a receiver took the value or it was buffered. The value is moved from only on
  // success. Fails with closed, timed_out, cancelled.
  Result<void> send(T&& value, Deadline deadline = {}) {
    return result(core_.send(&value, deadline));
  }
  Result<void> send(const T& value, Deadline deadline = {}) { return send(T(value), deadline); }

  // Parks until there is a value. Fails with closed once the channel is closed and drained,
  // timed_out, cancelled. A value that arrives together with a cancel is returned.
  Result<T> recv(Deadline deadline = {}) {
    Slot slot;
    return take(slot, core_.recv(slot.bytes, deadline));
  }

  // Never park. Fail with would_block when the channel is full, or empty, and nobody waits at the
  // other side. try_send moves from the value only on success.
  Result<void> try_send(T&& value) noexcept { return result(core_.try_send(&value)); }
  Result<void> try_send(const T& value) { return try_send(T(value)); }
  Result<T> try_recv() noexcept {
    Slot slot;
    return take(slot, core_.try_recv(slot.bytes));
  }

  // Never parks. Wakes everyone who is parked in the channel. Fails with closed when it is.
  Result<void> close() noexcept { return result(core_.close()); }

  // Snapshots; another thread may change them before they are looked at.
  bool closed() const noexcept { return core_.closed(); }
  std::size_t size() const noexcept { return core_.size(); }  // values buffered
  std::size_t capacity() const noexcept { return core_.capacity(); }

  // Calls fn(T&) for each buffered value, oldest first, with the channel locked: for a garbage
  // collector. `fn` must not use the channel.
  template <class F>
  void for_each_buffered(F&& fn) {
    core_.for_each_buffered([](void* value, void* f) { (*static_cast<F*>(f))(*as_value(value)); },
                            &fn);
  }

  // For select().
  detail::ChannelCore& core() noexcept { return core_; }

 private:
  struct Slot {
    alignas(T) unsigned char bytes[sizeof(T)];  // NOLINT(bugprone-sizeof-expression)
  };
  static T* as_value(void* memory) noexcept { return std::launder(static_cast<T*>(memory)); }

  static Result<void> result(detail::WakeCode code) noexcept {
    if (code == detail::kWakeUser) return {};
    return fail(detail::channel_error(code));
  }
  static Result<T> take(Slot& slot, detail::WakeCode code) noexcept {
    if (code != detail::kWakeUser) return fail(detail::channel_error(code));
    T* value = as_value(slot.bytes);
    Result<T> taken(std::move(*value));
    value->~T();
    return taken;
  }

  detail::ChannelCore core_;
};

}  // namespace runloom
