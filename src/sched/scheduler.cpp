#include "runloom/sched/scheduler.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "process.hpp"
#include "runloom/sched/check.hpp"
#include "scheduler_impl.hpp"
#include "watchdog.hpp"

namespace runloom {

using namespace std::chrono_literals;
using detail::HubImpl;

// ---------------------------------------------------------------- idle and end of a run

Scheduler::Impl::Impl(Scheduler& scheduler, Options given)
    : owner(scheduler),
      options(std::move(given)),
      max_fibers(options.max_fibers),
      stack_size(options.stack_size),
      deadlock_mode(options.deadlock),
      pid(::getpid()) {
  options.hubs = std::clamp(options.hubs, 1, 256);
  // So that they can be counted in nanoseconds.
  options.idle_spin = std::clamp<std::chrono::microseconds>(options.idle_spin, 0s, 60s);
  options.stall_threshold = std::min<std::chrono::milliseconds>(options.stall_threshold, 24h);
  for (int i = 0; i < options.hubs; ++i)
    hubs.push_back(std::make_unique<HubImpl>(scheduler, *this, i));
  active = options.hubs;
  if (options.stall_threshold.count() > 0)
    watchdog = std::make_unique<detail::Watchdog>(*this, options.stall_threshold);
}

Scheduler::Impl::~Impl() = default;

std::uint64_t Scheduler::Impl::ended() const noexcept {
  std::uint64_t count = 0;
  for (const auto& hub : hubs)
    count += hub->ended.get();
  return count;
}

std::uint64_t Scheduler::Impl::live() const noexcept {
  // `ended` first: a fiber counted as ended was counted as started before.
  const std::uint64_t went = ended();
  std::uint64_t came = 0;
  for (const auto& hub : hubs)
    came += hub->started.get() + hub->foreign_started.load(std::memory_order_relaxed);
  return came > went ? came - went : 0;
}

bool Scheduler::Impl::others_have_fresh(const HubImpl& hub) const noexcept {
  for (const auto& other : hubs)
    if (other.get() != &hub && other->fresh.size() != 0) return true;
  return false;
}

void Scheduler::Impl::wake_one_idle() noexcept {
  // As in HubImpl::wake_if_sleeping: a hub that does not seem to sleep must see the fiber, when it
  // goes to sleep. Nobody else may look at it for long: its own hub is busy.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (const auto& hub : hubs) {
    if (hub.get() == detail::tl_hub || !hub->sleeping.load(std::memory_order_relaxed)) continue;
    hub->wake_if_sleeping();
    return;
  }
}

void Scheduler::Impl::wake_all() noexcept {
  for (const auto& hub : hubs)
    if (hub.get() != detail::tl_hub) hub->wake_if_sleeping();
}

void Scheduler::Impl::end_run(End reason) noexcept {
  {
    std::lock_guard hold(mutex);
    if (end == End::none) end = reason;
    run_over.store(true, std::memory_order_seq_cst);
  }
  wake_all();
}

bool Scheduler::Impl::enter_idle() {
  std::unique_lock hold(mutex);
  ++idle;
  if (idle < active) return true;
  bool outside = false;
  for (const auto& each : hubs) {
    // A message for a hub that sleeps is on its way to it.
    if (!each->inbox_empty() || each->fresh.size() != 0) return true;
    outside |= each->external.load(std::memory_order_relaxed) != 0 ||
               each->timers_armed.load(std::memory_order_relaxed) != 0;
  }
  const std::uint64_t alive = live();
  const SwitchHooks& hooks = options.hooks;
  if (!outside && alive > nested_count && hooks.expects_wake)
    outside = hooks.expects_wake(hooks.context);
  if (outside && alive > nested_count) return true;
  const End reason = alive == nested_count ? End::done : End::deadlock;
  if (nested_count != 0) {
    // A run inside a fiber ends first; the outer one goes on with what that fiber does next.
    while (detail::WaitNode* node = nested.pop_front()) {
      --nested_count;
      *static_cast<End*>(node->data) = reason;
      if (detail::claim(node->token, detail::kWakeUser)) detail::schedule(node->token.waiter);
    }
    return true;
  }
  --idle;
  hold.unlock();
  end_run(reason);
  return false;
}

void Scheduler::Impl::leave_idle() noexcept {
  std::lock_guard hold(mutex);
  --idle;
}

void Scheduler::Impl::report_deadlock() noexcept {
  if (deadlock_mode.load(std::memory_order_relaxed) != DeadlockMode::warn) return;
  static constexpr char kHead[] = "runloom: all fibers are blocked -- deadlock\n";
  [[maybe_unused]] auto written = ::write(2, kHead, sizeof kHead - 1);
  owner.dump(2);
}

// ---------------------------------------------------------------- runs

void Scheduler::Impl::hub_thread(HubImpl& hub) {
  detail::prepare_hub_thread(hub);
  hub.bind();
  std::uint64_t seen;
  {
    std::lock_guard hold(mutex);
    seen = generation;
  }
  while (solo != &hub) {  // a child forked on this thread ends with it when its run is over
    {
      std::unique_lock hold(mutex);
      ++paused;
      changed.notify_all();
      changed.wait(hold, [&] { return quit || generation != seen; });
      --paused;
      if (quit) break;
      seen = generation;
    }
    hub.loop();
  }
  hub.unbind();
}

Result<void> Scheduler::Impl::start_threads() {
  for (std::size_t i = 1; i < hubs.size(); ++i) {
    HubImpl& hub = *hubs[i];
    if (hub.os_thread.joinable()) continue;
    try {
      hub.os_thread = detail::start_thread([this, &hub] { hub_thread(hub); });
    } catch (const std::exception&) {  // those that did start wait for the next run
      return fail(Errc::thread_limit);
    }
  }
  wait_paused();
  return {};
}

void Scheduler::Impl::wait_paused() {
  std::unique_lock hold(mutex);
  changed.wait(hold, [&] { return paused == active - 1; });
}

void Scheduler::Impl::stop_threads() noexcept {
  {
    std::lock_guard hold(mutex);
    quit = true;
    changed.notify_all();
  }
  for (const auto& hub : hubs)
    if (hub->os_thread.joinable()) hub->os_thread.join();
}

Result<std::uint64_t> Scheduler::Impl::run_once() {
  HubImpl& home = *hubs[0];
  HubImpl* outer = detail::tl_hub;
  const bool bind = !home.bound;
  RUNLOOM_CHECK(bind || outer == &home, "Scheduler::run() on two threads");
  {
    std::lock_guard hold(mutex);
    active = static_cast<int>(hubs.size());
    if (solo) solo = nullptr;
  }
  if (auto started = start_threads(); !started) return Unexpected{started.error()};
  if (bind) home.bind();
  detail::enter_run(home);
  const std::uint64_t before = ended();
  {
    std::lock_guard hold(mutex);
    end = End::none;
    idle = 0;
    run_over.store(false, std::memory_order_seq_cst);
    ++generation;
    changed.notify_all();
  }
  if (watchdog) watchdog->wake();
  home.loop();
  wait_paused();  // so that nothing runs outside of a run
  if (bind) home.unbind();
  detail::tl_hub = outer;
  return ended() - before;
}

Result<std::uint64_t> Scheduler::Impl::run_nested() {
  const std::uint64_t before = ended();
  End reason = End::none;
  detail::WaitNode node(detail::begin_wait());
  node.data = &reason;
  {
    std::lock_guard hold(mutex);
    nested.push_back(node);
    ++nested_count;
  }
  const auto code = detail::wait(node.token, {.reason = WaitReason::nested_run});
  {
    std::lock_guard hold(mutex);
    if (node.linked) {
      nested.remove(node);
      --nested_count;
    }
  }
  if (code != detail::kWakeUser) return fail(detail::wake_error(code));
  if (reason == End::deadlock) {
    report_deadlock();
    return fail(Errc::deadlock);
  }
  return ended() - before;
}

void Scheduler::Impl::end_fibers() noexcept {
  constexpr int kRounds = 3;
  ending.store(true, std::memory_order_seq_cst);
  end_by.store(monotonic_ns() + 1'000'000'000, std::memory_order_relaxed);
  for (int round = 0; round < kRounds && live() != 0; ++round) {
    const bool ran = run_once().has_value();
    if (!ran || monotonic_ns() >= end_by.load(std::memory_order_relaxed)) break;
  }
  const std::uint64_t left = live();
  if (left == 0) return;
  std::fprintf(stderr, "runloom: %llu fibers did not end when their scheduler did; leaked:\n",
               static_cast<unsigned long long>(left));
  owner.dump(2);
}

bool Scheduler::Impl::leak_fibers() noexcept {
  bool any = false;
  detail::for_each_fiber(&owner, [&any](detail::Fiber& fiber) {
    any = true;
    detail::abandon_fiber(fiber);
    fiber.scheduler = nullptr;  // not to be found by a later scheduler at the same address
    while (detail::WaitNode* node = fiber.joiners.claim_front())
      detail::schedule(node->token.waiter);
  });
  return any;
}

// ---------------------------------------------------------------- Scheduler

Scheduler::Scheduler(Options options) : impl_(std::make_unique<Impl>(*this, std::move(options))) {
  detail::register_scheduler(*impl_);
}

std::uint64_t Scheduler::shutdown() noexcept {
  RUNLOOM_CHECK(!detail::current_fiber() || detail::current_fiber()->scheduler != this,
                "a scheduler ended by one of its own fibers");
  if (impl_->live() != 0) impl_->end_fibers();
  return impl_->live();
}

Scheduler::~Scheduler() {
  shutdown();
  detail::unregister_scheduler(*impl_);
  impl_->stop_threads();
  impl_->watchdog.reset();
  if (impl_->hubs[0]->bound) unbind_thread();
  // Whoever claimed a leaked fiber's wait and has not scheduled it yet will still touch its hub.
  if (impl_->leak_fibers()) detail::keep_leaked(*impl_.release());
}

Result<std::uint64_t> Scheduler::run() {
  detail::Fiber* self = detail::current_fiber();
  if (self && self->scheduler == this) return impl_->run_nested();
  auto ended = impl_->run_once();
  if (!ended) return ended;
  switch (impl_->end) {
    case Impl::End::deadlock:
      impl_->report_deadlock();
      return fail(Errc::deadlock);
    case Impl::End::stopped:
    case Impl::End::done:
    case Impl::End::none:
      break;
  }
  return ended;
}

void Scheduler::stop() noexcept {
  // Async-signal-safe: no lock; `end` stays none, which run() takes for a stop.
  HubImpl& home = *impl_->hubs[0];
  home.visitors.fetch_add(1, std::memory_order_relaxed);
  impl_->run_over.store(true, std::memory_order_seq_cst);
  // A hub that stops itself goes no further than the fiber that runs.
  if (detail::tl_hub && &detail::tl_hub->impl == impl_.get()) detail::tl_hub->budget = 0;
  for (const auto& hub : impl_->hubs)
    hub->wake_if_sleeping();
  home.visitors.fetch_sub(1, std::memory_order_release);
}

void Scheduler::cancel_all() noexcept {
  detail::for_each_fiber(this, [](detail::Fiber& fiber) { detail::cancel_fiber(&fiber); });
}

void Scheduler::bind_thread() {
  impl_->hubs[0]->bind();
}
void Scheduler::unbind_thread() {
  impl_->hubs[0]->unbind();
}

Scheduler* Scheduler::current() noexcept {
  return detail::tl_hub ? &detail::tl_hub->scheduler() : nullptr;
}
int Scheduler::hubs() const noexcept {
  return static_cast<int>(impl_->hubs.size());
}
Hub& Scheduler::hub(int index) noexcept {
  return *impl_->hubs.at(static_cast<std::size_t>(index));
}

int Scheduler::least_loaded_hub() const noexcept {
  int best = 0;
  std::uint64_t least = ~std::uint64_t{0};
  for (const auto& hub : impl_->hubs) {
    const std::uint64_t load = hub->load();
    if (load < least) {
      least = load;
      best = hub->index();
    }
  }
  return best;
}

Stats Scheduler::stats() const noexcept {
  Stats stats;
  for (const auto& hub : impl_->hubs) {
    stats.spawned += hub->started.get() + hub->foreign_started.load(std::memory_order_relaxed);
    stats.completed += hub->ended.get();
    stats.ready += hub->ready.size() + hub->fresh.size();
    stats.sleeping += hub->timers_armed.load(std::memory_order_relaxed);
    stats.io_parked += static_cast<std::uint64_t>(hub->external.load(std::memory_order_relaxed));
    stats.switches += hub->switches.get();
    stats.turns += hub->turns.get();
    stats.polls += hub->polls.get();
    stats.sleeps += hub->sleeps.get();
    stats.wakes_sent += hub->wakes_sent.load(std::memory_order_relaxed);
    stats.stolen += hub->stolen.get();
  }
  stats.live = impl_->live();
  const detail::StackCounts stacks = detail::stack_counts();
  stats.stacks_mapped = stacks.carved;
  stats.stacks_free = stacks.free;
  stats.stack_trims = stacks.trims;
  return stats;
}

const Options& Scheduler::options() const noexcept {
  return impl_->options;
}
void Scheduler::set_max_fibers(std::uint64_t limit) noexcept {
  impl_->max_fibers.store(limit, std::memory_order_relaxed);
}
void Scheduler::set_default_stack_size(std::size_t bytes) noexcept {
  impl_->stack_size.store(bytes, std::memory_order_relaxed);
}
void Scheduler::set_deadlock_mode(DeadlockMode mode) noexcept {
  impl_->deadlock_mode.store(mode, std::memory_order_relaxed);
}

}  // namespace runloom
