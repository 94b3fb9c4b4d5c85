#include "watchdog.hpp"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <new>
#include <string>

#include "process.hpp"
#include "scheduler_impl.hpp"
#include "stack_capture.hpp"
#include "symbolize.hpp"

namespace runloom::detail {

Watchdog::Watchdog(Scheduler::Impl& impl, std::chrono::milliseconds threshold)
    : impl_(impl),
      threshold_ns_(std::chrono::nanoseconds(threshold).count()),
      threads_(std::make_unique<std::atomic<pid_t>[]>(impl.hubs.size())),
      seen_(impl.hubs.size()) {}

Watchdog::~Watchdog() {
  if (!thread_.joinable()) return;
  state_.store(kStopped, std::memory_order_seq_cst);
  ::syscall(SYS_futex, &state_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  thread_.join();
}

void Watchdog::watch_this_thread(const HubImpl& hub) {
  allow_stack_capture();
  threads_[static_cast<std::size_t>(hub.index())].store(::gettid(), std::memory_order_relaxed);
  // Only hub 0's thread starts it, so there is one start at a time.
  if (hub.index() != 0 || thread_.joinable()) return;
  try {
    thread_ = start_thread([this] { loop(); });
  } catch (const std::exception&) {
  }
}

void Watchdog::after_fork() noexcept {
  // The std::thread names a thread that is gone: neither joined nor detached.
  new (&thread_) std::thread;
  state_.store(kWatching, std::memory_order_relaxed);
  forget_stack_capture();
}

// The hub has announced that it is awake (sleeping is false) before it looks at our state; we
// announce that we sleep before we look at `sleeping` again. One of the two sees the other.
void Watchdog::wake() noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (state_.load(std::memory_order_relaxed) != kAsleep) return;
  std::uint32_t asleep = kAsleep;
  if (state_.compare_exchange_strong(asleep, kWatching, std::memory_order_acq_rel))
    ::syscall(SYS_futex, &state_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

void Watchdog::wait(State expected, const std::int64_t* timeout_ns) noexcept {
  timespec limit{};
  if (timeout_ns) limit = {*timeout_ns / 1'000'000'000, *timeout_ns % 1'000'000'000};
  ::syscall(SYS_futex, &state_, FUTEX_WAIT_PRIVATE, expected, timeout_ns ? &limit : nullptr,
            nullptr, 0);
}

bool Watchdog::all_asleep() const noexcept {
  const bool between_runs = impl_.run_over.load(std::memory_order_acquire);
  return std::all_of(impl_.hubs.begin(), impl_.hubs.end(), [&](const auto& hub) {
    return hub->sleeping.load(std::memory_order_relaxed) ||
           (between_runs && hub->current == static_cast<Fiber*>(nullptr));
  });
}

void Watchdog::loop() {
  pthread_setname_np(pthread_self(), "runloom-watch");
  const std::int64_t period = std::clamp<std::int64_t>(threshold_ns_ / 4, 1'000'000, 250'000'000);
  for (;;) {
    for (std::size_t i = 0; i < seen_.size(); ++i)
      look(*impl_.hubs[i], seen_[i]);
    std::uint32_t watching = kWatching;
    if (all_asleep() && state_.compare_exchange_strong(watching, kAsleep)) {
      std::atomic_thread_fence(std::memory_order_seq_cst);
      if (!all_asleep()) wake();
      while (state_.load(std::memory_order_acquire) == kAsleep)
        wait(kAsleep, nullptr);
    } else {
      wait(kWatching, &period);
    }
    if (state_.load(std::memory_order_acquire) == kStopped) return;
  }
}

void Watchdog::look(HubImpl& hub, Seen& seen) {
  const Seen now{.fiber = hub.current,
                 .turns = hub.turns.get(),
                 .budget = hub.budget,
                 .since_ns = monotonic_ns()};
  if (now.fiber == nullptr || !now.same_run(seen)) {
    seen = now;
  } else if (!seen.reported && now.since_ns - seen.since_ns >= threshold_ns_) {
    seen.reported = true;
    report(hub, seen);
  }
}

void Watchdog::report(HubImpl& hub, const Seen& seen) {
  const auto index = static_cast<std::size_t>(hub.index());
  std::vector<void*> stack = capture_stack(threads_[index].load(std::memory_order_relaxed));
  // Read under the fiber's lock: it may have ended meanwhile, and its stack have a new owner.
  StackSlot* slot = slot_of_stack(seen.fiber);
  if (!slot) return;
  FiberId id = 0;
  char name[sizeof(Fiber::name)] = {};
  {
    std::lock_guard hold(slot->lock);
    const Seen now{.fiber = hub.current, .turns = hub.turns.get(), .budget = hub.budget};
    if (!now.same_run(seen)) return;  // it did pause after all, at the last moment
    id = slot->id.load(std::memory_order_relaxed);
    std::copy(std::begin(seen.fiber->name), std::end(seen.fiber->name), name);
  }
  const std::int64_t ms = (monotonic_ns() - seen.since_ns) / 1'000'000;
  std::string text = "runloom: fiber " + std::to_string(id) + " '" + name + "' keeps hub " +
                     std::to_string(index) + " for " + std::to_string(ms) + " ms now, at\n";
  if (stack.empty()) text += "    (its stack can't be read)\n";
  for (std::size_t i = 0; i < stack.size(); ++i)
    text += "    #" + std::to_string(i) + " " + describe_frame(stack[i], i != 0) + "\n";
  [[maybe_unused]] const auto written = ::write(2, text.data(), text.size());
}

}  // namespace runloom::detail
