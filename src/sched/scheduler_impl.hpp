// What a Scheduler owns besides its hubs: the state of a run, and when it is over.
//
// A run is over when every hub is idle (nothing ready, nothing in an inbox) and no fiber lives;
// or when fibers live but nothing outside can wake one: no timer is armed and no fiber is in an
// external wait. With several hubs the last one to go idle decides, under `mutex`, when all
// others are known to sleep: their counters can't move meanwhile, except by a wake from outside,
// which is then in an inbox.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "hub_impl.hpp"
#include "runloom/sched/scheduler.hpp"

namespace runloom {

namespace detail {
class Watchdog;
}

struct Scheduler::Impl {
  using HubImpl = detail::HubImpl;
  enum class End : std::uint8_t { none, done, stopped, deadlock };

  Impl(Scheduler& owner, Options given);
  ~Impl();

  std::uint64_t live() const noexcept;
  std::uint64_t ended() const noexcept;  // fibers, ever
  bool at_fiber_limit() const noexcept {
    const std::uint64_t limit = max_fibers.load(std::memory_order_relaxed);
    return limit != 0 && live() >= limit;
  }
  // A hub with nothing to do is about to sleep. False: the run is over. Called with
  // hub.sleeping announced.
  bool enter_idle();
  void leave_idle() noexcept;
  void end_run(End reason) noexcept;
  void wake_all() noexcept;
  bool others_have_fresh(const HubImpl& hub) const noexcept;
  // A fiber that may be stolen was queued on a busy hub: wakes one sleeping hub. A hub that was
  // woken no longer counts as sleeping, so a burst of spawns wakes each hub once.
  void wake_one_idle() noexcept;

  Result<std::uint64_t> run_once();  // hub 0 on the calling thread; sets `end`
  Result<std::uint64_t> run_nested();
  void hub_thread(HubImpl& hub);
  Result<void> start_threads();
  void stop_threads() noexcept;
  void wait_paused();  // until the hub threads are outside of a run
  void end_fibers() noexcept;
  bool leak_fibers() noexcept;  // those that did not end; false: none
  void after_fork() noexcept;
  void report_deadlock() noexcept;

  Scheduler& owner;
  Options options;
  std::atomic<std::uint64_t> max_fibers;
  std::atomic<std::size_t> stack_size;
  std::atomic<DeadlockMode> deadlock_mode;
  std::vector<std::unique_ptr<HubImpl>> hubs;
  std::atomic<FiberId> next_id{1};
  std::atomic<std::uint32_t> next_hub{0};
  std::atomic<bool> run_over{true};
  std::atomic<bool> ending{false};
  std::atomic<std::int64_t> end_by{0};  // ending: when to give up

  // Guarded by mutex.
  std::mutex mutex;
  std::condition_variable changed;
  int active = 0;  // hubs with a thread, in this run
  int idle = 0;
  int paused = 0;                // hub threads outside of a run
  std::uint64_t generation = 0;  // of the run
  bool quit = false;
  End end = End::none;
  detail::WaitList nested;
  std::uint64_t nested_count = 0;

  std::unique_ptr<detail::Watchdog> watchdog;  // null: off
  // A forked child until its next run: the only hub that has a thread; all spawns go there.
  HubImpl* solo = nullptr;
  int pid;               // of the process that the state above belongs to
  Impl* next = nullptr;  // all schedulers, for fork; all that were leaked
};

namespace detail {
struct SchedulerAccess {
  static Scheduler::Impl& impl(Scheduler& scheduler) noexcept { return *scheduler.impl_; }
  static const Scheduler::Impl& impl(const Scheduler& scheduler) noexcept {
    return *scheduler.impl_;
  }
};

template <class Fn>
void for_each_slot(Fn&& fn) {
  for (Slab* slab = first_slab(); slab; slab = slab->next) {
    const std::uint32_t carved = slab->carved.load(std::memory_order_acquire);
    for (std::uint32_t i = 0; i < carved; ++i)
      fn(slab->slot[i]);
  }
}
inline Fiber& fiber_of(const StackSlot& slot) noexcept {
  return *reinterpret_cast<Fiber*>(slot.top() - sizeof(Fiber));
}

// Calls fn(Fiber&) if the slot has a fiber of `scheduler` that has not ended; true then. Under the
// fiber's lock, so that it does not end meanwhile. Any thread.
template <class Fn>
bool with_fiber(StackSlot& slot, const Scheduler* scheduler, Fn&& fn) {
  if (slot.done.load(std::memory_order_relaxed)) return false;
  std::lock_guard hold(slot.lock);
  if (slot.done.load(std::memory_order_acquire)) return false;
  Fiber& fiber = fiber_of(slot);
  if (fiber.scheduler != scheduler) return false;
  fn(fiber);
  return true;
}
template <class Fn>
void for_each_fiber(const Scheduler* scheduler, Fn&& fn) {
  for_each_slot([&](StackSlot& slot) { with_fiber(slot, scheduler, fn); });
}

// The fiber will not run again: its wait can't be claimed, handles find it ended. With its lock
// held. Does not wake its joiners.
void abandon_fiber(Fiber& fiber) noexcept;
}  // namespace detail
}  // namespace runloom
