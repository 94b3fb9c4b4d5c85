#include "runloom/sched/fiber.hpp"

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <new>

#include "runloom/sched/check.hpp"
#include "scheduler_impl.hpp"

namespace runloom {
namespace detail {
namespace {

std::atomic<UnhandledExceptionHandler> unhandled_handler{nullptr};

[[noreturn]] void fiber_entry(boost::context::detail::transfer_t transfer) {
  HubImpl& hub = *tl_hub;
  Fiber& self = *hub.current;
  Context::entered(self.context, transfer);
  hub.reap();
  try {
    if (self.guest) [[unlikely]] {
      const SwitchHooks& hooks = hub.impl.options.hooks;
      hooks.guest.run(hooks.context, self.ops->run, self.frame);
    } else {
      self.ops->run(self.frame);
    }
    self.has_result = true;
  } catch (...) {
    self.exception = std::current_exception();
  }
  finish_fiber(self);
  hub.switch_last(self);
}

FiberId take_id(HubImpl* hub, Scheduler::Impl& impl) noexcept {
  constexpr FiberId kBlock = 256;
  if (!hub) return impl.next_id.fetch_add(1, std::memory_order_relaxed);
  if (hub->next_id == hub->last_id) {
    hub->next_id = impl.next_id.fetch_add(kBlock, std::memory_order_relaxed);
    hub->last_id = hub->next_id + kBlock;
  }
  return hub->next_id++;
}

void start_message(Hub& hub, Hub::Message& message) {
  static_cast<HubImpl&>(hub).enqueue_fresh(*static_cast<FiberMessage&>(message).fiber);
}

// Where a spawn of the calling thread goes.
HubImpl& target_hub(Scheduler::Impl& impl, const SpawnOptions& options) noexcept {
  const auto count = static_cast<std::uint32_t>(impl.hubs.size());
  if (options.hub < 0 && tl_hub && &tl_hub->impl == &impl) return *tl_hub;
  if (impl.solo) [[unlikely]]
    return *impl.solo;
  if (options.hub >= 0) return *impl.hubs[static_cast<std::uint32_t>(options.hub) % count];
  return *impl.hubs[impl.next_hub.fetch_add(1, std::memory_order_relaxed) % count];
}

}  // namespace

namespace {

Fiber* allocate(Scheduler* scheduler, const SpawnOptions& options, std::size_t frame_size,
                std::size_t frame_align, std::error_code& error) noexcept {
  HubImpl* hub = tl_hub;
  if (!scheduler) {
    if (!hub) {
      error = make_error_code(Errc::not_in_fiber);
      return nullptr;
    }
    scheduler = &hub->scheduler();
  }
  Scheduler::Impl& impl = SchedulerAccess::impl(*scheduler);
  if (impl.at_fiber_limit()) [[unlikely]] {
    error = make_error_code(Errc::fiber_limit);
    return nullptr;
  }
  const std::size_t size =
      options.stack_size ? options.stack_size : impl.stack_size.load(std::memory_order_relaxed);
  StackClass* cls = stack_class(size);
  // The frame and the local memory must leave stack for the function to run. Aligning the frame
  // takes up to as much as its alignment.
  const std::size_t most = cls ? cls->stack_size() / 2 : 0;
  if (frame_size > most || frame_align > most - frame_size ||
      options.local_size > most - frame_size - frame_align) {
    error = make_error_code(Errc::stack_size);
    return nullptr;
  }
  StackSlot* slot = hub ? hub->stacks.take(*cls, impl.options.guard, error)
                        : cls->take(1, impl.options.guard, error);
  if (!slot) return nullptr;

  char* top = slot->top() - sizeof(Fiber);
#ifdef RUNLOOM_ASAN
  ASAN_UNPOISON_MEMORY_REGION(slot->low(), static_cast<std::size_t>(slot->end() - slot->low()));
#endif
  auto* fiber = new (top) Fiber;
  // Tickets go on across reuse, so a token of an earlier life never matches.
  fiber->word.store((slot->wait_word & ~std::uint64_t{0xffff}) | kWakeAbandoned,
                    std::memory_order_relaxed);
  slot->touched = true;
  fiber->slot = slot;
  fiber->scheduler = scheduler;
  HubImpl& target = target_hub(impl, options);
  fiber->home.store(&target, std::memory_order_relaxed);
  fiber->hub_index.store(target.index(), std::memory_order_relaxed);
  fiber->noyield = options.noyield;
  fiber->pinned = options.hub >= 0;
  const std::size_t kept = std::min(options.name.size(), sizeof(fiber->name) - 1);
  options.name.copy(fiber->name, kept);

  auto down = [&top](std::size_t bytes, std::size_t align) {
    auto at = reinterpret_cast<std::uintptr_t>(top) - bytes;
    top = reinterpret_cast<char*>(at / align * align);
    return top;
  };
  if (options.local_size) {
    const bool above = options.local_size <= slot->slab->room;
    fiber->local = above ? slot->top() : down(options.local_size, 64);
  }
  fiber->frame = down(frame_size, std::max<std::size_t>(frame_align, 16));
  fiber->context.make(slot->low(), down(0, 64), &fiber_entry);
  HubImpl* own = hub && &hub->impl == &impl ? hub : nullptr;
  slot->id.store(take_id(own, impl), std::memory_order_release);
  slot->done.store(false, std::memory_order_release);
  slot->in_use.store(true, std::memory_order_release);
  return fiber;
}

Fiber* allocate_guest(const Scheduler& scheduler, SpawnOptions options, std::size_t frame_size,
                      std::size_t frame_align, std::error_code& error) noexcept {
  const SwitchHooks& hooks = SchedulerAccess::impl(scheduler).options.hooks;
  options.local_size = hooks.guest.local_size(hooks.context, options.stack_size);
  Fiber* fiber = allocate(nullptr, options, frame_size, frame_align, error);
  if (!fiber || (fiber->guest = hooks.guest.make(hooks.context, fiber, options.local_size)))
    return fiber;
  discard_fiber(fiber);
  error = errno_code(ENOMEM);
  return nullptr;
}

}  // namespace

Fiber* allocate_fiber(Scheduler* scheduler, const SpawnOptions& options, std::size_t frame_size,
                      std::size_t frame_align, std::error_code& error) noexcept {
  if (options.guest) [[unlikely]] {
    const Scheduler* current = Scheduler::current();
    if (current && (!scheduler || scheduler == current) &&
        SchedulerAccess::impl(*current).options.hooks.guest.make)
      return allocate_guest(*current, options, frame_size, frame_align, error);
  }
  return allocate(scheduler, options, frame_size, frame_align, error);
}

void* fiber_frame(Fiber* fiber) noexcept {
  return fiber->frame;
}
void* fiber_local(const Fiber* fiber) noexcept {
  return fiber->local;
}
StackBounds fiber_stack(const Fiber* fiber) noexcept {
  return {fiber->slot->low(), static_cast<char*>(fiber->frame)};
}
FiberId fiber_id(const Fiber* fiber) noexcept {
  return fiber->slot->id.load(std::memory_order_relaxed);
}

void discard_fiber(Fiber* fiber) noexcept {
  if (fiber->guest) {
    const SwitchHooks& hooks = SchedulerAccess::impl(*fiber->scheduler).options.hooks;
    hooks.guest.drop(hooks.context, fiber);
  }
  fiber->slot->done.store(true, std::memory_order_release);
  fiber->refs.store(1, std::memory_order_relaxed);
  drop_reference(*fiber);
}

void start_fiber(Fiber* fiber, const FrameOps* ops, bool joinable) noexcept {
  fiber->ops = ops;
  fiber->handle_dropped = !joinable;
  fiber->refs.store(joinable ? 2 : 1, std::memory_order_relaxed);
  HubImpl& target = *fiber->hub();
  fiber->since.store(target.turn_ns(), std::memory_order_relaxed);
  if (&target == tl_hub) {
    target.started.add(1);
    target.enqueue_fresh(*fiber);
    return;
  }
  target.foreign_started.fetch_add(1, std::memory_order_relaxed);
  fiber->run_message.fiber = fiber;
  fiber->run_message.fn = &start_message;
  target.push(fiber->run_message);
}

namespace {
// Destroys the result or the exception, which nobody will take any more. Their destructors and the
// handler of unhandled exceptions may park.
void drop_outcome(Fiber& fiber) noexcept {
  if (std::exception_ptr exception = std::exchange(fiber.exception, nullptr))
    report_unhandled(fiber, std::move(exception));
  if (std::exchange(fiber.has_result, false)) fiber.ops->drop(fiber.frame);
}
}  // namespace

// The order matters: the result is complete before `done` is visible; joiners are woken under the
// lock; after the unlock the handle may go at any time, but the stack stays until the running
// reference is dropped by whoever runs next on the hub (reap).
//
// Whoever that is must not run the program's destructors: one that parks there would end a wait
// that isn't its own. So the outcome belongs to the handle, or to the fiber if there is none.
void finish_fiber(Fiber& self) noexcept {
  HubImpl& hub = *self.hub();
  RUNLOOM_CHECK(self.scope == nullptr, "a fiber ended inside a CancelScope");
  for (bool ended = false; !ended;) {
    {
      std::lock_guard hold(self.slot->lock);
      ended = !self.handle_dropped || (!self.has_result && !self.exception);
      if (ended) self.slot->done.store(true, std::memory_order_release);
      while (WaitNode* node = ended ? self.joiners.claim_front() : nullptr)
        schedule(node->token.waiter);
    }
    if (!ended) drop_outcome(self);
  }
  const SwitchHooks& hooks = hub.impl.options.hooks;
  if (hooks.finished) hooks.finished(hooks.context, &self);
  self.state.store(FiberState::ended, std::memory_order_relaxed);
  hub.ended.add(1);
}

void drop_reference(Fiber& fiber) noexcept {
  // The only owner left needs no read-modify-write.
  if (fiber.refs.load(std::memory_order_acquire) != 1 &&
      fiber.refs.fetch_sub(1, std::memory_order_acq_rel) != 1)
    return;
  StackSlot* slot = fiber.slot;
  fiber.context.destroy();
  slot->wait_word = fiber.word.load(std::memory_order_relaxed);
  slot->in_use.store(false, std::memory_order_release);
  if (tl_hub) {
    tl_hub->stacks.give(slot);
  } else {
    slot->next = nullptr;
    class_of(slot)->give(slot, slot, 1);
  }
}

void abandon_fiber(Fiber& fiber) noexcept {
  // Whatever the wait's state, a claim of its token misses from now on.
  fiber.word.fetch_or(kWakeAbandoned, std::memory_order_acq_rel);
  fiber.slot->done.store(true, std::memory_order_release);
}

bool fiber_done(const Fiber* fiber) noexcept {
  return fiber->slot->done.load(std::memory_order_acquire);
}

// After `done` the result and the exception belong to the handle alone, without the lock:
// finish_fiber looks at them only when the handle was dropped before.
Result<void> join_fiber(Fiber* fiber, Deadline deadline) {
  RUNLOOM_CHECK(fiber != current_fiber(), "a fiber can't join itself");
  if (!fiber_done(fiber)) {
    SpinLock& lock = fiber->slot->lock;
    lock.lock();
    if (fiber_done(fiber)) {
      lock.unlock();
    } else {
      WaitNode node(begin_wait());
      fiber->joiners.push_back(node);
      lock.unlock();
      const WakeCode code =
          wait(node.token, {.reason = WaitReason::join, .object = fiber, .deadline = deadline});
      if (code != kWakeUser) {
        std::lock_guard hold(lock);
        fiber->joiners.remove_if_linked(node);
        if (!fiber_done(fiber)) return fail(wake_error(code));
      }
    }
  }
  // Moved out: the hub must have no part in the exception's lifetime.
  if (fiber->exception) std::rethrow_exception(std::exchange(fiber->exception, nullptr));
  // Its exception was taken by an earlier join, or it was dropped without running (fork).
  if (!fiber->has_result) return fail(Errc::cancelled);
  return {};
}

void release_fiber(Fiber* fiber) noexcept {
  if (!fiber_done(fiber)) {
    std::lock_guard hold(fiber->slot->lock);
    fiber->handle_dropped = !fiber_done(fiber);
  }
  if (!fiber->handle_dropped) drop_outcome(*fiber);
  drop_reference(*fiber);
}

void report_unhandled(const Fiber& fiber, std::exception_ptr exception) noexcept {
  report_unhandled(fiber.name, fiber_id(&fiber), std::move(exception));
}

void report_unhandled(std::string_view name, FiberId id, std::exception_ptr exception) noexcept {
  if (auto* handler = unhandled_handler.load(std::memory_order_acquire)) {
    handler(name, exception);
    return;
  }
  const auto number = static_cast<unsigned long long>(id);
  const auto length = static_cast<int>(name.size());
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& error) {
    std::fprintf(stderr,
                 "runloom: fiber %llu '%.*s' ended with an exception that nobody joins: %s\n",
                 number, length, name.data(), error.what());
  } catch (...) {
    std::fprintf(stderr,
                 "runloom: fiber %llu '%.*s' ended with an exception that is no std::exception "
                 "that nobody joins\n",
                 number, length, name.data());
  }
}

}  // namespace detail

void set_unhandled_exception_handler(UnhandledExceptionHandler handler) noexcept {
  detail::unhandled_handler.store(handler, std::memory_order_release);
}

namespace {
// With the slot's lock held: does it still belong to the fiber of that id?
bool names(const detail::StackSlot& slot, FiberId id) noexcept {
  return !slot.done.load(std::memory_order_acquire) &&
         slot.id.load(std::memory_order_acquire) == id;
}
}  // namespace

FiberHandle::FiberHandle(detail::Fiber* fiber) noexcept
    : fiber_(fiber), slot_(fiber->slot), id_(detail::fiber_id(fiber)) {}

bool FiberHandle::unpark() const noexcept {
  if (!slot_) return false;
  detail::Waiter* woken = nullptr;
  {
    std::lock_guard hold(slot_->lock);
    if (!names(*slot_, id_)) return false;
    if (fiber_->park_token.waiter && detail::claim(fiber_->park_token, detail::kWakeUser)) {
      woken = fiber_;
      fiber_->park_token = {};
    } else {
      ++fiber_->permits;
    }
  }
  if (woken) detail::schedule(woken);
  return true;
}

bool FiberHandle::cancel() const noexcept {
  if (!slot_) return false;
  std::lock_guard hold(slot_->lock);
  if (!names(*slot_, id_)) return false;
  detail::cancel_fiber(fiber_);
  return true;
}

bool FiberHandle::uncancel() const noexcept {
  if (!slot_) return false;
  std::lock_guard hold(slot_->lock);
  if (!names(*slot_, id_)) return false;
  fiber_->cancel.store(false, std::memory_order_release);
  return true;
}

bool FiberHandle::alive() const noexcept {
  if (!slot_) return false;
  std::lock_guard hold(slot_->lock);
  return names(*slot_, id_);
}

namespace this_fiber {

bool exists() noexcept {
  return detail::current_fiber() != nullptr;
}
FiberId id() noexcept {
  const detail::Fiber* fiber = detail::current_fiber();
  return fiber ? fiber->slot->id.load(std::memory_order_relaxed) : 0;
}
FiberHandle handle() noexcept {
  detail::Fiber* fiber = detail::current_fiber();
  return fiber ? FiberHandle(fiber) : FiberHandle();
}
std::string_view name() noexcept {
  const detail::Fiber* fiber = detail::current_fiber();
  return fiber ? std::string_view(fiber->name) : std::string_view();
}
void* local() noexcept {
  const detail::Fiber* fiber = detail::current_fiber();
  return fiber ? fiber->local : nullptr;
}
std::size_t stack_left() noexcept {
  const detail::Fiber* fiber = detail::current_fiber();
  if (!fiber) return 0;
  return static_cast<std::size_t>(static_cast<char*>(__builtin_frame_address(0)) -
                                  fiber->slot->low());
}

void yield() noexcept {
  detail::HubImpl* hub = detail::tl_hub;
  if (!hub) return;
  detail::Fiber* self = hub->current;
  if (!self || self->noyield || self->forbid != 0) return;
  hub->enqueue(*self);
  hub->switch_away(*self);
}

Result<void> sleep_until(Deadline deadline) {
  if (deadline.passed()) {
    auto cancelled = check_cancelled();
    if (!cancelled) return cancelled;
    yield();
    return {};
  }
  // Nobody else knows the token: only the timer, a cancel or a scope ends the wait.
  const auto token = detail::begin_wait();
  const auto code = detail::wait(token, {.reason = WaitReason::sleep, .deadline = deadline});
  if (code == detail::kWakeTimedOut && deadline.passed()) return {};
  return fail(detail::wake_error(code));
}

Result<void> park(Deadline deadline, bool foreign_wakeable) {
  detail::Fiber* self = detail::current_fiber();
  if (!self) return fail(Errc::not_in_fiber);
  self->slot->lock.lock();
  if (self->permits > 0) {
    --self->permits;
    self->slot->lock.unlock();
    return {};
  }
  const auto token = detail::begin_wait();
  self->park_token = token;
  self->slot->lock.unlock();
  const auto code = detail::wait(
      token, {.reason = WaitReason::park, .deadline = deadline, .external = foreign_wakeable});
  if (code == detail::kWakeUser) return {};
  std::lock_guard hold(self->slot->lock);
  self->park_token = {};
  return fail(detail::wake_error(code));
}

ForbidPark::ForbidPark() noexcept {
  if (detail::Fiber* fiber = detail::current_fiber()) ++fiber->forbid;
}
ForbidPark::~ForbidPark() {
  if (detail::Fiber* fiber = detail::current_fiber()) --fiber->forbid;
}

}  // namespace this_fiber
}  // namespace runloom
