// Fork: the child goes on with the fiber that forked, and with nothing else.
//
// Before: the locks of the process (schedulers, blocking pool, stack pool, thread waiters) are
// taken, so that the child finds what they guard in order; and the forking fiber may not park or
// yield until its own child handler has run, so that a handler that was registered before ours
// can't run a fiber of the parent in the child.
//
// In the child, of each living scheduler:
// - Fibers that stand on the forking thread's stack survive: the one that forks, and one for each
//   outer run that this thread is inside of. All others are dropped without running: no
//   destructor, no result. Handles find them ended, a join gives Errc::cancelled. Their stacks
//   are never used again, because wait nodes on them may be linked in channels, mutexes and so
//   on; wakers skip those, since the waits are closed.
// - The forking thread's hub keeps its timers, but for the deadlines of dropped fibers. Hubs whose
//   thread is gone keep their driver, which is told to start afresh, and lose everything else:
//   queues, timers, inbox, cached stacks. Nothing that such a thread may have been changing at
//   that moment is read.
// - The run that the forking fiber is in goes on with its hub alone; spawns all go there. The
//   next run() starts threads for all hubs again. A hub thread that forked ends with its run, and
//   with it the child, as if main had returned: the thread that called run() does not exist there.
//
// What can't be saved: a primitive that another thread was changing while this one forked keeps
// its short lock taken, and one on which an OS thread waited refers to a stack that is gone.
// Fibers of the child should use what the child made.
#include <pthread.h>
#include <unistd.h>

#include <new>

#include "hub_timer.hpp"
#include "process.hpp"
#include "scheduler_impl.hpp"
#include "watchdog.hpp"

namespace runloom {
namespace detail {
namespace {

// The fiber that forks, between the handlers.
constinit thread_local Fiber* tl_forking = nullptr;

void prepare() noexcept {
  tl_forking = current_fiber();
  if (tl_forking) ++tl_forking->forbid;
  fork_schedulers(ForkStage::prepare);
  fork_blocking_pool(ForkStage::prepare);
  fork_stack_pool(ForkStage::prepare);
  fork_thread_waiters(ForkStage::prepare);
}

void finish(ForkStage stage) noexcept {
  fork_thread_waiters(stage);
  fork_stack_pool(stage);
  fork_blocking_pool(stage);
  fork_schedulers(stage);
  if (tl_forking) --tl_forking->forbid;
  tl_forking = nullptr;
}

void parent() noexcept {
  finish(ForkStage::parent);
}
void child() noexcept {
  finish(ForkStage::child);
}

// Replaces an object without looking at what is in it: another thread may have been changing it.
template <class T, class... Args>
void replace(T& object, Args&&... args) noexcept {
  new (&object) T(std::forward<Args>(args)...);
}

}  // namespace

void install_fork_handlers() noexcept {
  ::pthread_atfork(&prepare, &parent, &child);
}

void HubImpl::after_fork(bool has_thread) noexcept {
  HubTimer::hub_forks(*this, has_thread);
  replace(ready);
  replace(fresh);
  replace(fresh_lock, LockRank::queue);
  inbox.store(nullptr, std::memory_order_relaxed);
  sleeping.store(false, std::memory_order_relaxed);
  visitors.store(0, std::memory_order_relaxed);
  external.store(0, std::memory_order_relaxed);
  if (!has_thread) {
    replace(timers);
    bound = false;
    current = nullptr;
    zombie = nullptr;
    replace(os_thread);
    replace(stacks);
    next_id = last_id = 0;
  }
  timers_armed.store(timers.size(), std::memory_order_relaxed);
  if (driver_) driver_->after_fork();
  for (const auto& old : old_drivers)
    old->after_fork();
}

}  // namespace detail

void Scheduler::Impl::after_fork() noexcept {
  if (pid == ::getpid()) return;
  pid = ::getpid();
  detail::ThreadPointers here;
  here.bind();
  HubImpl* own = nullptr;
  for (const auto& hub : hubs) {
    if (hub->bound && hub->thread.error == here.error) own = hub.get();
  }
  detail::Fiber* survivor = own ? static_cast<detail::Fiber*>(own->current) : nullptr;
  detail::for_each_slot([&](detail::StackSlot& slot) {
    slot.lock.unlock_for_fork();  // its holder may be gone
    if (slot.done.load(std::memory_order_relaxed)) return;
    detail::Fiber& fiber = detail::fiber_of(slot);
    if (fiber.scheduler == &owner && &fiber != survivor) {
      if (fiber.hub() == own && fiber.timer && fiber.timer->armed())
        own->timers.remove(*fiber.timer);
      fiber.state.store(detail::FiberState::ended, std::memory_order_relaxed);
      detail::abandon_fiber(fiber);
    }
  });
  for (const auto& hub : hubs)
    hub->after_fork(hub.get() == own);
  if (survivor) {
    survivor->check_posted.store(false, std::memory_order_relaxed);
    survivor->run_message.next = survivor->check_message.next = nullptr;
  }
  const std::uint64_t dropped = live() - (survivor ? 1 : 0);
  hubs[0]->ended.add(dropped);

  new (&changed) std::condition_variable;
  detail::WaitList* list = &nested;
  new (list) detail::WaitList;
  nested_count = 0;
  idle = 0;
  paused = 0;
  active = own ? 1 : static_cast<int>(hubs.size());
  solo = own;
  if (!own) run_over.store(true, std::memory_order_relaxed);
  if (watchdog) watchdog->after_fork();
}

void Scheduler::after_fork() noexcept {
  impl_->after_fork();
}

}  // namespace runloom
