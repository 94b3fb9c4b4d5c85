#include "runloom/sched/park.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <mutex>
#include <utility>

#include "process.hpp"
#include "runloom/sched/cancel.hpp"
#include "scheduler_impl.hpp"

namespace runloom::detail {
namespace {

constexpr std::uint64_t pending_word(const WaitToken& token) noexcept {
  return token.ticket << 16;
}
constexpr WakeCode code_of(std::uint64_t word) noexcept {
  return static_cast<WakeCode>(word & 0xffff);
}

ThreadWaitHooks thread_hooks;

// Thread waiters are recycled and never freed, so that a stale token stays harmless.
SpinLock pool_lock{LockRank::pool};
ThreadWaiter* free_waiters = nullptr;

struct MadeWaiter {
  ThreadWaiter waiter;
  MadeWaiter* next;
};
MadeWaiter* made_waiters = nullptr;  // all there are, for leak checkers; guarded by pool_lock

ThreadWaiter* make_waiter() {
  auto* made = new MadeWaiter;
  std::lock_guard hold(pool_lock);
  made->next = made_waiters;
  made_waiters = made;
  return &made->waiter;
}

// Outside of its owner: thread-local objects that are destroyed after the owner may still wait, and
// must not share what another thread has by then. They get a waiter that is not given back.
constinit thread_local ThreadWaiter* tl_waiter = nullptr;
struct ThreadWaiterOwner {
  ~ThreadWaiterOwner() {
    ThreadWaiter* waiter = std::exchange(tl_waiter, nullptr);
    std::lock_guard hold(pool_lock);
    waiter->next_free = free_waiters;
    free_waiters = waiter;
  }
};

void expire_wait(TimerNode& node) {
  auto& timer = static_cast<WaitTimer&>(node);
  if (wake(timer.token, kWakeTimedOut)) return;
  // Whoever claimed the wait has still to schedule the fiber. Until it runs it counts as one that
  // something outside wakes: with the timer gone the hub could take it for blocked for ever.
  timer.lost = true;
  timer.token.waiter->hub()->external.fetch_add(1, std::memory_order_relaxed);
}

WakeCode park_fiber(HubImpl& hub, Fiber& fiber, const WaitToken& token,
                    const WaitOptions& options) {
  WakeCode forced = kWakePending;
  if (fiber.noyield || fiber.forbid != 0) [[unlikely]] {
    forced = kWakeForbidden;
  } else if (options.cancellable) {
    if (hub.impl.ending.load(std::memory_order_relaxed)) [[unlikely]] {
      forced = kWakeCancelled;
    } else if (fiber.scope || fiber.cancel.load(std::memory_order_relaxed)) {
      forced = pending_cancel(fiber, fiber.cancel.load(std::memory_order_acquire));
    }
  }
  // A wait that somebody else has claimed first can't end here: the fiber is, or is about to be,
  // queued, and must go through the park to be taken off the queue.
  if (forced != kWakePending && claim(token, forced)) {
    if (hub.impl.ending.load(std::memory_order_relaxed) && forced == kWakeCancelled) [[unlikely]] {
      // A loop that ignores the failure must not keep the others from ending. Only now, when the
      // wait is closed: a waker would queue the fiber a second time.
      hub.enqueue(fiber);
      hub.switch_away(fiber);
    }
    return forced;
  }

  Deadline deadline = options.deadline;
  if (options.cancellable && fiber.scope)
    deadline = Deadline::earlier(deadline, scope_deadline(fiber));
  if (!deadline.is_never() && deadline.passed() && claim(token, kWakeTimedOut))
    return kWakeTimedOut;

  WaitTimer timer;
  timer.fire = &expire_wait;
  timer.token = token;
  if (!deadline.is_never()) hub.arm(timer, deadline);
  fiber.timer = &timer;
  fiber.waiting = token;
  fiber.own_deadline = options.deadline;
  fiber.cancellable = options.cancellable;
  fiber.reason.store(options.reason, std::memory_order_relaxed);
  fiber.object.store(options.object, std::memory_order_relaxed);
  if (code_of(fiber.word.load(std::memory_order_relaxed)) == kWakePending) {
    fiber.state.store(FiberState::parked, std::memory_order_relaxed);
    fiber.since.store(hub.turn_ns(), std::memory_order_relaxed);
  }
  if (options.external) hub.external.fetch_add(1, std::memory_order_relaxed);

  hub.switch_away(fiber);

  if (options.external) hub.external.fetch_sub(1, std::memory_order_relaxed);
  if (timer.armed()) hub.disarm(timer);
  if (timer.lost) hub.external.fetch_sub(1, std::memory_order_relaxed);
  fiber.timer = nullptr;
  fiber.reason.store(WaitReason::none, std::memory_order_relaxed);
  return code_of(fiber.word.load(std::memory_order_acquire));
}

// Blocks until signalled, else says why not: the time is up, or a signal's handler ends the wait.
WakeCode wait_signal(ThreadWaiter& waiter, Deadline deadline, bool interruptible, void* state) {
  while (waiter.signal.load(std::memory_order_acquire) == 0) {
    timespec until{};
    timespec* limit = nullptr;
    if (!deadline.is_never()) {
      const std::int64_t ns = deadline.ns() < 0 ? 0 : deadline.ns();
      until.tv_sec = ns / 1'000'000'000;
      until.tv_nsec = ns % 1'000'000'000;
      limit = &until;
    }
    // FUTEX_WAIT_BITSET takes an absolute CLOCK_MONOTONIC time.
    const long rc = ::syscall(SYS_futex, &waiter.signal, FUTEX_WAIT_BITSET_PRIVATE, 0, limit,
                              nullptr, FUTEX_BITSET_MATCH_ANY);
    if (rc == 0) continue;
    WakeCode why = kWakePending;
    if (errno == ETIMEDOUT) why = kWakeTimedOut;
    if (errno == EINTR && interruptible && thread_hooks.interrupted &&
        thread_hooks.interrupted(state))
      why = kWakeCancelled;
    if (why != kWakePending && waiter.signal.load(std::memory_order_acquire) == 0) return why;
  }
  return kWakePending;
}

WakeCode block_thread(const WaitToken& token, const WaitOptions& options) {
  auto& waiter = static_cast<ThreadWaiter&>(*token.waiter);
  Deadline deadline = options.deadline;
  if (options.cancellable && waiter.scope) {
    const WakeCode forced = pending_cancel(waiter, false);
    if (forced != kWakePending && claim(token, forced)) return forced;
    deadline = Deadline::earlier(deadline, scope_deadline(waiter));
  }
  if (waiter.signal.load(std::memory_order_acquire) == 0) {
    void* state = thread_hooks.before ? thread_hooks.before() : nullptr;
    // Ended early, unless somebody claims the wait first: then the signal is on its way.
    const WakeCode early = wait_signal(waiter, deadline, options.cancellable, state);
    if (early != kWakePending && !claim(token, early))
      wait_signal(waiter, Deadline::never(), false, state);
    if (thread_hooks.after) thread_hooks.after(state);
  }
  waiter.signal.store(0, std::memory_order_relaxed);
  return code_of(waiter.word.load(std::memory_order_acquire));
}

void resume_message(Hub& hub, Hub::Message& message) {
  static_cast<HubImpl&>(hub).enqueue(*static_cast<FiberMessage&>(message).fiber);
}

}  // namespace

ThreadWaiter& thread_waiter() noexcept {
  if (!tl_waiter) {
    {
      std::lock_guard hold(pool_lock);
      tl_waiter = free_waiters;
      if (free_waiters) free_waiters = free_waiters->next_free;
    }
    if (!tl_waiter) tl_waiter = make_waiter();
    thread_local const ThreadWaiterOwner owner;
    (void)owner;
  }
  return *tl_waiter;
}

void fork_thread_waiters(ForkStage stage) noexcept {
  // Those of threads that are gone are not recycled: they may be linked somewhere.
  stage == ForkStage::prepare ? pool_lock.lock_for_fork() : pool_lock.unlock_for_fork();
}

Fiber* current_fiber() noexcept {
  return tl_hub ? static_cast<Fiber*>(tl_hub->current) : nullptr;
}

Waiter& current_waiter() noexcept {
  Fiber* fiber = current_fiber();
  return fiber ? static_cast<Waiter&>(*fiber) : thread_waiter();
}

bool others_ready() noexcept {
  const HubImpl* hub = tl_hub;
  return hub && (!hub->ready.empty() || hub->fresh.size() != 0);
}

void prefetch_ready() noexcept {
  constexpr int kControlLines = 3;  // what a wake and a switch touch
  constexpr int kStackLines = 12;   // the frames between a wait and the fiber's own code
  HubImpl* hub = tl_hub;
  if (!hub) return;
  const Fiber* next = hub->ready.front();
  if (!next) return;
  const auto* stack = static_cast<const char*>(next->context.stack_pointer());
  for (int line = 0; line < kStackLines; ++line)
    __builtin_prefetch(stack + 64 * line, 1);
  const auto* frame = static_cast<const char*>(next->frame);  // what the fiber was spawned with
  __builtin_prefetch(frame, 1);
  __builtin_prefetch(frame + 64, 1);
  const auto* second = reinterpret_cast<const char*>(next->next);
  if (!second) return;
  for (int line = 0; line < kControlLines; ++line)
    __builtin_prefetch(second + 64 * line, 1);
}

bool on_fiber() noexcept {
  return current_fiber() != nullptr;
}

bool may_park() noexcept {
  const Fiber* fiber = current_fiber();
  return fiber && !fiber->noyield && fiber->forbid == 0;
}

Hub* fiber_hub() noexcept {
  HubImpl* hub = tl_hub;
  return hub && hub->current ? hub : nullptr;
}

WaitToken begin_wait() noexcept {
  Waiter& waiter = current_waiter();
  const std::uint64_t ticket = (waiter.word.load(std::memory_order_relaxed) >> 16) + 1;
  // Published to claimers by the lock under which the node is enqueued.
  waiter.word.store(ticket << 16, std::memory_order_relaxed);
  return {&waiter, ticket};
}

WakeCode wait(const WaitToken& token, const WaitOptions& options) {
  HubImpl* hub = token.waiter->hub();
  if (hub) return park_fiber(*hub, *hub->current, token, options);
  return block_thread(token, options);
}

bool try_abandon(const WaitToken& token) noexcept {
  return claim(token, kWakeAbandoned);
}

bool claim(const WaitToken& token, WakeCode code) noexcept {
  std::uint64_t expected = pending_word(token);
  return token.waiter->word.compare_exchange_strong(
      expected, expected | code, std::memory_order_acq_rel, std::memory_order_relaxed);
}

void schedule(Waiter* waiter) noexcept {
  HubImpl* hub = waiter->hub();
  if (!hub) {
    auto& thread = static_cast<ThreadWaiter&>(*waiter);
    thread.signal.store(1, std::memory_order_release);
    ::syscall(SYS_futex, &thread.signal, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
    return;
  }
  auto& fiber = static_cast<Fiber&>(*waiter);
  if (hub == tl_hub) {
    hub->enqueue(fiber);
    return;
  }
  fiber.run_message.fiber = &fiber;
  fiber.run_message.fn = &resume_message;
  hub->push(fiber.run_message);
}

std::error_code wake_error(WakeCode code) noexcept {
  switch (code) {
    case kWakeTimedOut:
      return make_error_code(Errc::timed_out);
    case kWakeCancelled:
      return make_error_code(Errc::cancelled);
    case kWakeForbidden:
      return make_error_code(Errc::park_forbidden);
    default:
      return make_error_code(Errc::closed);
  }
}

void set_thread_wait_hooks(ThreadWaitHooks hooks) noexcept {
  thread_hooks = hooks;
}

ThreadWaitHooks thread_wait_hooks() noexcept {
  return thread_hooks;
}

Deadline enclosing_deadline() noexcept {
  return scope_deadline(current_waiter());
}

}  // namespace runloom::detail

namespace runloom {

const char* to_string(WaitReason reason) noexcept {
  switch (reason) {
    case WaitReason::none:
      return "none";
    case WaitReason::sleep:
      return "sleep";
    case WaitReason::park:
      return "park";
    case WaitReason::channel_send:
      return "channel send";
    case WaitReason::channel_recv:
      return "channel receive";
    case WaitReason::select:
      return "select";
    case WaitReason::mutex:
      return "mutex";
    case WaitReason::cond_var:
      return "condition variable";
    case WaitReason::event:
      return "event";
    case WaitReason::semaphore:
      return "semaphore";
    case WaitReason::wait_group:
      return "wait group";
    case WaitReason::join:
      return "join";
    case WaitReason::join_set:
      return "join set";
    case WaitReason::blocking:
      return "blocking call";
    case WaitReason::io_read:
      return "read";
    case WaitReason::io_write:
      return "write";
    case WaitReason::io_accept:
      return "accept";
    case WaitReason::io_connect:
      return "connect";
    case WaitReason::io_close:
      return "close";
    case WaitReason::io_poll:
      return "poll";
    case WaitReason::nested_run:
      return "nested run";
  }
  return "?";
}

}  // namespace runloom
