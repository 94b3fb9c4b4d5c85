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

struct Scheduler::Impl {
  using HubImpl = detail::HubImpl;
  enum class End : std::uint8_t { none, done, stopped, deadlock };

  Impl(Scheduler& owner, Options given);

  std::uint64_t live() const noexcept;
  bool at_fiber_limit() const noexcept {
    const std::uint64_t limit = max_fibers.load(std::memory_order_relaxed);
    return limit != 0 && live() >= limit;
  }
  // A hub with nothing to do is about to sleep. False: the run is over. Called with
  // hub.sleeping announced.
  bool enter_idle(HubImpl& hub);
  void leave_idle() noexcept;
  void end_run(End reason) noexcept;
  void wake_all() noexcept;
  bool others_have_fresh(const HubImpl& hub) const noexcept;
  // A fiber that may be stolen was queued on a busy hub: wakes one sleeping hub. A hub that was
  // woken no longer counts as sleeping, so a burst of spawns wakes each hub once.
  void wake_one_idle() noexcept;

  std::uint64_t run_once();  // hub 0 on the calling thread; sets `end`
  Result<std::uint64_t> run_nested();
  void hub_thread(HubImpl& hub);
  void start_threads();
  void stop_threads() noexcept;
  void end_fibers() noexcept;
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
  int idle = 0;
  int paused = 0;                // hub threads outside of a run
  std::uint64_t generation = 0;  // of the run
  bool quit = false;
  End end = End::none;
  detail::WaitList nested;
  std::uint64_t nested_count = 0;

  Impl* next = nullptr;  // all schedulers, for fork
};

namespace detail {
struct SchedulerAccess {
  static Scheduler::Impl& impl(Scheduler& scheduler) noexcept { return *scheduler.impl_; }
  static const Scheduler::Impl& impl(const Scheduler& scheduler) noexcept {
    return *scheduler.impl_;
  }
};

// Calls fn(Fiber&) for each slot in use whose fiber belongs to `scheduler`. Racy unless the
// scheduler stands still.
template <class Fn>
void for_each_fiber(const Scheduler* scheduler, Fn&& fn) {
  for (Slab* slab = first_slab(); slab; slab = slab->next) {
    const std::uint32_t carved = slab->carved.load(std::memory_order_acquire);
    for (std::uint32_t i = 0; i < carved; ++i) {
      StackSlot& slot = slab->slot[i];
      if (!slot.in_use.load(std::memory_order_acquire)) continue;
      auto& fiber = *reinterpret_cast<Fiber*>(slot.high() - sizeof(Fiber));
      if (fiber.scheduler == scheduler) fn(fiber);
    }
  }
}
}  // namespace detail
}  // namespace runloom
