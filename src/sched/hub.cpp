#include <sched.h>

#include <algorithm>

#include "hub_timer.hpp"
#include "runloom/sched/check.hpp"
#include "scheduler_impl.hpp"
#include "watchdog.hpp"

namespace runloom {
namespace detail {

constinit thread_local HubImpl* tl_hub __attribute__((tls_model("initial-exec"))) = nullptr;

namespace {
constexpr int kMostSwitches = 61;            // between two looks at timers and events
constexpr std::int64_t kTurnNs = 1'000'000;  // and the time those may take
constexpr std::int64_t kHousekeepingNs = 1'000'000'000;
constexpr std::int64_t kLeastSpinNs = 2'000;
}  // namespace

HubImpl::HubImpl(Scheduler& scheduler, Scheduler::Impl& owner, int index)
    : Hub(scheduler, index), impl(owner), timer_home(std::make_shared<TimerHome>(this)) {
  main.home.store(this, std::memory_order_relaxed);
  multi = owner.options.hubs > 1;
  switched = owner.options.hooks.switched;
  switched_context = owner.options.hooks.context;
  spin_ns = std::chrono::nanoseconds(owner.options.idle_spin).count();
}

HubImpl::~HubImpl() {
  wait_for_visitors();
  HubTimer::hub_ends(*this);
  stacks.flush();
}

void HubImpl::bind() noexcept {
  RUNLOOM_CHECK(!bound, "the hub already runs on a thread");
  bound = true;
  tl_hub = this;
  thread.bind();
  main.context.adopt_thread();
  if (!driver_) {
    driver_ = impl.options.make_driver ? impl.options.make_driver(*this) : make_futex_driver();
  }
  waker.store(driver_.get(), std::memory_order_release);
  turn_ns_.store(read_clock(), std::memory_order_relaxed);
}

void HubImpl::unbind() noexcept {
  driver_->leave_thread();
  bound = false;
  tl_hub = nullptr;
}

std::uint64_t HubImpl::load() const noexcept {
  const std::uint64_t came =
      started.get() + stolen.get() + foreign_started.load(std::memory_order_relaxed);
  const std::uint64_t went = ended.get() + lost.load(std::memory_order_relaxed);
  return came > went ? came - went : 0;
}

std::int64_t HubImpl::read_clock() noexcept {
  const std::int64_t simulated = driver_->now_ns();
  if (simulated != 0) return simulated;
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// ---------------------------------------------------------------- inbox

void HubImpl::wait_for_visitors() const noexcept {
  while (visitors.load(std::memory_order_acquire) != 0)
    ::sched_yield();
}

void HubImpl::push(Message& message) noexcept {
  const bool visitor = !tl_hub || &tl_hub->impl != &impl;
  if (visitor) visitors.fetch_add(1, std::memory_order_relaxed);  // published with the message
  Message* head = inbox.load(std::memory_order_relaxed);
  do
    message.next = head;
  while (!inbox.compare_exchange_weak(head, &message, std::memory_order_release,
                                      std::memory_order_relaxed));
  wake_if_sleeping();
  if (visitor) visitors.fetch_sub(1, std::memory_order_release);
}

// The other half of the announcement in idle(): either we see `sleeping`, or the hub sees what
// was pushed.
void HubImpl::wake_if_sleeping() noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!sleeping.load(std::memory_order_relaxed)) return;
  if (!sleeping.exchange(false, std::memory_order_acq_rel)) return;
  wakes_sent.fetch_add(1, std::memory_order_relaxed);
  if (Driver* driver = waker.load(std::memory_order_acquire)) driver->wake();
}

void HubImpl::drain_inbox() noexcept {
  if (inbox_empty()) return;
  Message* newest = inbox.exchange(nullptr, std::memory_order_acquire);
  Message* oldest = nullptr;
  while (newest) {
    Message* next = newest->next;
    newest->next = oldest;
    oldest = newest;
    newest = next;
  }
  while (oldest) {
    Message* next = oldest->next;  // the message may be pushed again once its fn has begun
    oldest->fn(*this, *oldest);
    oldest = next;
  }
}

// ---------------------------------------------------------------- queues and switches

void HubImpl::enqueue_fresh(Fiber& fiber) noexcept {
  fiber.stamp = ++stamp_;
  if (!multi || fiber.pinned) {
    ready.push(fiber);
    return;
  }
  {
    std::lock_guard hold(fresh_lock);
    fresh.push(fiber);
  }
  impl.wake_one_idle();
}

Fiber* HubImpl::next_of_both() noexcept {
  std::lock_guard hold(fresh_lock);
  Fiber* first = fresh.front();
  if (first && (ready.empty() || first->stamp < ready.front()->stamp)) return fresh.pop();
  return ready.pop();
}

void HubImpl::switch_last(Fiber& self) noexcept {
  Fiber* next = --budget > 0 ? next_ready() : nullptr;
  if (next) next->state.store(FiberState::running, std::memory_order_relaxed);
  if (switched) [[unlikely]]
    switched(switched_context, &self, next);
  current = next;
  zombie = &self;
  Context::jump_last(self.context, next ? next->context : main.context, thread);
}

void HubImpl::reap_zombie() noexcept {
  Fiber* dead = zombie;
  zombie = nullptr;
  drop_reference(*dead);
}

bool HubImpl::steal() noexcept {
  const auto count = impl.hubs.size();
  for (std::size_t i = 1; i < count; ++i) {
    HubImpl& victim = *impl.hubs[(static_cast<std::size_t>(index_) + i) % count];
    if (victim.fresh.size() == 0) continue;
    // Half of what stands there, oldest first; their order among themselves stays.
    FiberQueue loot;
    {
      std::lock_guard hold(victim.fresh_lock);
      for (std::uint32_t n = (victim.fresh.size() + 1) / 2; n > 0; --n) {
        Fiber* fiber = victim.fresh.pop();
        if (!fiber) break;
        fiber->home.store(this, std::memory_order_relaxed);
        fiber->hub_index.store(index_, std::memory_order_relaxed);
        loot.push(*fiber);
        victim.lost.fetch_add(1, std::memory_order_relaxed);
      }
    }
    if (loot.empty()) continue;
    std::lock_guard hold(fresh_lock);
    while (Fiber* fiber = loot.pop()) {
      fiber->stamp = ++stamp_;
      stolen.add(1);
      fresh.push(*fiber);
    }
    return true;
  }
  return false;
}

// ---------------------------------------------------------------- the loop

void HubImpl::turn() {
  turns.add(1);
  drain_inbox();
  const std::int64_t before = turn_ns();
  const std::int64_t now = read_clock();
  turn_ns_.store(now, std::memory_order_relaxed);
  // A turn that took too long shortens the next ones, a quick one lengthens them.
  if (now - before > kTurnNs) {
    turn_budget = std::max(1, turn_budget / 2);
  } else if (turn_budget < kMostSwitches) {
    turn_budget = std::min(kMostSwitches, turn_budget * 2);
  }
  if (!timers.empty()) {
    timers.expire(now);
    timers_armed.store(timers.size(), std::memory_order_relaxed);
  }
  if (polls_now()) {
    polls.add(1);
    driver_->poll(0);
  }
}

// Whether this turn looks for events before it runs what is ready. With nothing ready, idle() polls
// and may block, and what it found need not be looked for again: one system call instead of two.
bool HubImpl::polls_now() noexcept {
  if (std::exchange(just_polled_, false)) return false;
  if ((ready.empty() && fresh.size() == 0) || !driver_->wants_poll()) return false;
  // Behind many that are ready an event waits as well in the kernel, where it doesn't push out of
  // the cache what its fiber needs. For a few turns and a millisecond, since those may go on for
  // ever.
  constexpr int kMostSkipped = 2;
  const auto backlog = static_cast<int>(std::min<std::uint32_t>(ready.size(), 1u << 20));
  if (backlog > 2 * turn_budget && polls_skipped_ < kMostSkipped &&
      turn_ns() - polled_at_ < kTurnNs) {
    ++polls_skipped_;
    return false;
  }
  polls_skipped_ = 0;
  polled_at_ = turn_ns();
  return true;
}

void HubImpl::loop() {
  reap();
  // Once: a fiber that comes to a park later finds the scheduler ending.
  if (impl.ending.load(std::memory_order_relaxed)) cancel_parked();
  for (;;) {
    if (impl.run_over.load(std::memory_order_acquire)) return;
    if (impl.ending.load(std::memory_order_relaxed)) [[unlikely]] {
      if (read_clock() >= impl.end_by.load(std::memory_order_relaxed)) {
        impl.end_run(Scheduler::Impl::End::stopped);
        return;
      }
    }
    turn();
    budget = turn_budget;
    if (Fiber* next = next_ready()) {
      switch_to(main, *next);
      switches.add(static_cast<std::uint64_t>(turn_budget - std::max<int>(budget, 0)));
    } else if (!idle()) {
      return;
    }
  }
}

bool HubImpl::work_pending() const noexcept {
  return !inbox_empty() || fresh.size() != 0 || impl.run_over.load(std::memory_order_acquire) ||
         (multi && impl.others_have_fresh(*this));
}

std::int64_t HubImpl::idle_timeout() noexcept {
  std::int64_t until = timers.empty() ? INT64_MAX : timers.next_ns();
  if (stacks.has_untrimmed() && housekeeping_at == 0) housekeeping_at = turn_ns() + kHousekeepingNs;
  if (housekeeping_at != 0) until = std::min(until, housekeeping_at);
  if (impl.ending.load(std::memory_order_relaxed))
    until = std::min(until, impl.end_by.load(std::memory_order_relaxed));
  if (until == INT64_MAX) return -1;
  return std::max<std::int64_t>(0, until - read_clock());
}

void HubImpl::housekeeping() noexcept {
  if (housekeeping_at == 0 || turn_ns() < housekeeping_at) return;
  housekeeping_at = 0;
  stacks.trim();
  driver_->trim();
}

// Polls for a while before sleeping: waking an idle core costs more than a short spin. Starts
// only after real work, doubles on a hit and halves on a miss.
bool HubImpl::spin() {
  const std::int64_t most = std::chrono::nanoseconds(impl.options.idle_spin).count();
  if (most == 0 || spin_ns < kLeastSpinNs) {
    // Every sleep that ends in work earns a short spin again.
    spin_ns = std::min<std::int64_t>(most, kLeastSpinNs);
    if (most == 0) return false;
  }
  if (impl.live() == 0) return false;  // nothing to wait for: the run is over
  const std::int64_t end = read_clock() + spin_ns;
  const SwitchHooks& hooks = impl.options.hooks;
  bool hit = false;
  if (hooks.before_block) hooks.before_block(hooks.context);
  do {
    polls.add(1);
    hit = driver_->poll(0) > 0 || !ready.empty() || work_pending();
    if (!hit && !timers.empty() && timers.next_ns() <= read_clock()) hit = true;
  } while (!hit && read_clock() < end);
  if (hooks.after_block) hooks.after_block(hooks.context);
  just_polled_ = hit;
  spin_ns = hit ? std::min(most, spin_ns * 2) : spin_ns / 2;
  return hit;
}

bool HubImpl::idle() {
  if (multi && steal()) return true;
  housekeeping();
  if (spin()) return true;
  const std::int64_t timeout = idle_timeout();
  sleeping.store(true, std::memory_order_release);  // with the driver that shall be woken
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (work_pending()) {
    sleeping.store(false, std::memory_order_relaxed);
    return true;
  }
  if (!impl.enter_idle()) {
    sleeping.store(false, std::memory_order_relaxed);
    return false;
  }
  if (!ready.empty()) {  // enter_idle woke a nested run
    sleeping.store(false, std::memory_order_relaxed);
    impl.leave_idle();
    return true;
  }
  const SwitchHooks& hooks = impl.options.hooks;
  if (hooks.before_block) hooks.before_block(hooks.context);
  polls.add(1);
  sleeps.add(1);
  driver_->poll(timeout);
  just_polled_ = true;
  sleeping.store(false, std::memory_order_relaxed);
  impl.leave_idle();
  if (impl.watchdog) impl.watchdog->wake();
  if (hooks.after_block) hooks.after_block(hooks.context);
  turn_ns_.store(read_clock(), std::memory_order_relaxed);
  return true;
}

void HubImpl::cancel_parked() noexcept {
  for_each_fiber(&scheduler(), [this](Fiber& fiber) {
    if (fiber.hub() == this && fiber.state.load(std::memory_order_relaxed) == FiberState::parked &&
        fiber.cancellable)
      wake(fiber.waiting, kWakeCancelled);
  });
}

}  // namespace detail

// ---------------------------------------------------------------- Hub

Hub::~Hub() = default;

Hub* Hub::current() noexcept {
  return detail::tl_hub;
}

void Hub::set_driver(std::unique_ptr<Driver> driver) {
  auto& self = static_cast<detail::HubImpl&>(*this);
  RUNLOOM_CHECK(detail::tl_hub == &self, "set_driver off the hub's thread");
  self.old_drivers.push_back(std::exchange(driver_, std::move(driver)));
  self.waker.store(driver_.get(), std::memory_order_release);
}

void Hub::post(Message& message) noexcept {
  static_cast<detail::HubImpl&>(*this).push(message);
}

std::int64_t monotonic_ns() noexcept {
  if (detail::tl_hub) return detail::tl_hub->read_clock();
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace runloom
