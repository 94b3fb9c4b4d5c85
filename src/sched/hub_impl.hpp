// The loop of a hub, and the queues it owns.
//
// A parking fiber takes the next ready fiber off the queue and jumps straight to it. Only when
// the queue is empty, or the turn's budget of switches is used up, does it jump to the hub's own
// context, which runs a turn: inbox, expired timers, the driver's events, in that order, are
// appended to the tail of the queue (FIFO: nothing overtakes). A turn's budget is 61 switches, or
// fewer when 61 took longer than a millisecond. Behind a long queue events are looked for only each
// third turn, or after a millisecond.
//
// Ownership (I2): run queue, timers, driver and everything else here without a comment belongs to
// the hub's thread. Other threads push to `inbox` and wake the hub if it sleeps; unstarted fibers
// that may be stolen stand in `fresh`, under its lock. `stamp` orders the two queues.
//
// Sleep: announce (sleeping = true), fence, look again at the inbox, then block. A waker pushes,
// fences, and calls Driver::wake only if it was the one to clear `sleeping`.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "fiber_impl.hpp"
#include "stack_pool.hpp"
#include "timer_heap.hpp"

namespace runloom::detail {

class FiberQueue {
 public:
  bool empty() const noexcept { return head_ == nullptr; }
  Fiber* front() const noexcept { return head_; }
  std::uint32_t size() const noexcept { return size_.load(std::memory_order_relaxed); }
  void push(Fiber& fiber) noexcept {
    fiber.next = nullptr;
    (tail_ ? tail_->next : head_) = &fiber;
    tail_ = &fiber;
    add(1);
  }
  Fiber* pop() noexcept {
    Fiber* fiber = head_;
    if (fiber) {
      head_ = fiber->next;
      if (!head_) tail_ = nullptr;
      add(-1);
    }
    return fiber;
  }

 private:
  void add(int n) noexcept {
    size_.store(size_.load(std::memory_order_relaxed) + static_cast<std::uint32_t>(n),
                std::memory_order_relaxed);
  }
  Fiber* head_ = nullptr;
  Fiber* tail_ = nullptr;
  std::atomic<std::uint32_t> size_{0};  // written by the owner, read by anyone
};

// A value that only the hub's thread writes and others may read.
template <class T>
class Owned {
 public:
  explicit Owned(T value) noexcept : value_(value) {}
  operator T() const noexcept { return value_.load(std::memory_order_relaxed); }
  T operator->() const noexcept { return value_.load(std::memory_order_relaxed); }
  Owned& operator=(T value) noexcept {
    value_.store(value, std::memory_order_relaxed);
    return *this;
  }
  T operator--() noexcept {
    const T less = value_.load(std::memory_order_relaxed) - 1;
    value_.store(less, std::memory_order_relaxed);
    return less;
  }

 private:
  std::atomic<T> value_;
};

// A counter with one writer.
class OwnedCounter {
 public:
  void add(std::uint64_t n) noexcept {
    value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  std::uint64_t get() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

struct TimerHome;

struct HubImpl final : Hub {
  HubImpl(Scheduler& scheduler, Scheduler::Impl& impl, int index);
  ~HubImpl();

  // --- on the hub's thread ---
  void bind() noexcept;  // the calling thread becomes this hub
  void unbind() noexcept;
  void loop();                           // until the scheduler's run is over
  void enqueue(Fiber& fiber) noexcept {  // makes a started fiber runnable
    fiber.state.store(FiberState::runnable, std::memory_order_relaxed);
    fiber.stamp = ++stamp_;
    ready.push(fiber);
  }
  void enqueue_fresh(Fiber& fiber) noexcept;
  void switch_away(Fiber& self) noexcept;  // the fiber parks or yields; it is queued or waiting
  [[noreturn]] void switch_last(Fiber& self) noexcept;
  void check_cancel(Fiber& fiber) noexcept;  // wakes it if its wait must end
  void arm(TimerNode& timer, Deadline deadline) {
    timers.insert(timer, deadline.ns());
    timers_armed.store(timers.size(), std::memory_order_relaxed);
  }
  void disarm(TimerNode& timer) noexcept {
    timers.remove(timer);
    timers_armed.store(timers.size(), std::memory_order_relaxed);
  }
  std::int64_t read_clock() noexcept;
  void cancel_parked() noexcept;  // when the scheduler ends
  void reap() noexcept {
    if (zombie) [[unlikely]]
      reap_zombie();
  }
  void reap_zombie() noexcept;
  // In a forked child: forgets the fibers. Without its thread, also what that thread kept.
  void after_fork(bool has_thread) noexcept;

  // --- any thread ---
  void push(Message& message) noexcept;
  void wait_for_visitors() const noexcept;  // until none is left
  void wake_if_sleeping() noexcept;
  // Fibers that started here or stand here to start, and have not ended.
  std::uint64_t load() const noexcept;
  bool inbox_empty() const noexcept { return inbox.load(std::memory_order_acquire) == nullptr; }

  // What a switch touches comes first, together.
  Owned<Fiber*> current{nullptr};  // null: the hub's own context runs
  Fiber* zombie = nullptr;         // ended, still to be reaped by whoever runs next
  FiberQueue ready;
  ThreadPointers thread;
  Owned<int> budget{0};  // switches left in this turn
  int turn_budget = 61;
  bool multi = false;                                 // fresh fibers may be stolen
  void (*switched)(void*, Fiber*, Fiber*) = nullptr;  // Options::hooks
  void* switched_context = nullptr;
  Scheduler::Impl& impl;
  Fiber main;  // stands for the hub's own context
  TimerHeap timers;
  std::shared_ptr<TimerHome> timer_home;
  StackCache stacks;
  bool bound = false;                // to a thread
  std::int64_t spin_ns = 0;          // adaptive
  std::int64_t housekeeping_at = 0;  // 0: none armed
  std::vector<std::unique_ptr<Driver>> old_drivers;
  std::atomic<Driver*> waker{nullptr};  // driver_, for other threads
  std::thread os_thread;                // hubs 1..n-1
  FiberId next_id = 0, last_id = 0;     // block of ids

  SpinLock fresh_lock{LockRank::queue};
  FiberQueue fresh;  // guarded by fresh_lock; size() by anyone

  alignas(64) std::atomic<Message*> inbox{nullptr};
  std::atomic<bool> sleeping{false};
  // Threads of others that are inside push() or Scheduler::stop(). What they do may be what ends
  // the run, and the scheduler with it, while they are still on their way out.
  std::atomic<std::uint32_t> visitors{0};

  alignas(64) OwnedCounter started, ended, switches, turns, polls, sleeps, stolen;
  std::atomic<std::uint64_t> timers_armed{0};
  std::atomic<std::int64_t> external{0};          // fibers parked in external waits
  std::atomic<std::uint64_t> foreign_started{0};  // fibers that other threads started here
  std::atomic<std::uint64_t> lost{0};             // fibers that other hubs stole
  std::atomic<std::uint64_t> wakes_sent{0};

 private:
  void turn();
  void drain_inbox() noexcept;
  bool idle();  // false: the run is over
  bool spin();
  bool steal() noexcept;
  bool work_pending() const noexcept;
  void switch_to(Fiber& from, Fiber& to) noexcept;
  Fiber* next_ready() noexcept;
  Fiber* next_of_both() noexcept;
  std::int64_t idle_timeout() noexcept;
  void housekeeping() noexcept;
  bool polls_now() noexcept;
  std::uint64_t stamp_ = 0;
  bool just_polled_ = false;
  int polls_skipped_ = 0;
  std::int64_t polled_at_ = 0;
};

// constinit spares each access a call of the initialiser's guard.
extern constinit thread_local HubImpl* tl_hub __attribute__((tls_model("initial-exec")));

inline void HubImpl::switch_to(Fiber& from, Fiber& to) noexcept {
#ifdef RUNLOOM_DEBUG
  check_no_lock_held("switch");  // I4
#endif
  Fiber* next = &to == &main ? nullptr : &to;
  if (next) to.state.store(FiberState::running, std::memory_order_relaxed);
  if (switched) [[unlikely]]
    switched(switched_context, current, next);
  current = next;
  Context::jump(from.context, to.context, thread);
  reap();
}

inline Fiber* HubImpl::next_ready() noexcept {
  if (multi && fresh.size() != 0) [[unlikely]]
    return next_of_both();
  return ready.pop();
}

inline void HubImpl::switch_away(Fiber& self) noexcept {
  Fiber* next = --budget > 0 ? next_ready() : nullptr;
  if (next == &self) {
    self.state.store(FiberState::running, std::memory_order_relaxed);
    return;
  }
  switch_to(self, next ? *next : main);
}

}  // namespace runloom::detail
