// Delivery of cancellation and scope deadlines.
//
// A fiber's own hub delivers both (I2): whoever cancels stores the flag and posts the fiber to
// its hub, which looks whether the fiber is parked in a wait that must end. So a cancel never
// races with a timer or with the fiber itself, only with a claim by another thread's wake, which
// the wait word settles.
#include "runloom/sched/cancel.hpp"

#include <mutex>

#include "scheduler_impl.hpp"

namespace runloom {
namespace detail {

struct ScopeAccess {
  static WakeCode pending(const CancelScope* scope, bool& shielded) noexcept {
    for (; scope; scope = scope->parent_) {
      if (scope->shield_) {
        shielded = true;
        return kWakePending;
      }
      if (scope->cancelled()) return kWakeCancelled;
      if (scope->timed_out()) return kWakeTimedOut;
    }
    return kWakePending;
  }
  static Deadline deadline(const CancelScope* scope) noexcept {
    Deadline earliest;
    for (; scope && !scope->shield_; scope = scope->parent_)
      earliest = Deadline::earlier(earliest, scope->deadline());
    return earliest;
  }
};

WakeCode pending_cancel(const Waiter& waiter, bool fiber_cancelled) noexcept {
  bool shielded = false;
  const WakeCode code = ScopeAccess::pending(waiter.scope, shielded);
  if (code != kWakePending || shielded) return code;
  return fiber_cancelled ? kWakeCancelled : kWakePending;
}

Deadline scope_deadline(const Waiter& waiter) noexcept {
  return ScopeAccess::deadline(waiter.scope);
}

namespace {
void check_message(Hub& hub, Hub::Message& message) {
  Fiber* fiber = static_cast<FiberMessage&>(message).fiber;
  // An exchange, so that what the last poster stored before it found `true` here is seen below.
  fiber->check_posted.exchange(false, std::memory_order_acq_rel);
  static_cast<HubImpl&>(hub).check_cancel(*fiber);
  drop_reference(*fiber);
}

void post_to(HubImpl& hub, Fiber& fiber) noexcept {
  if (fiber.check_posted.exchange(true, std::memory_order_acq_rel)) return;
  // The message lies in the fiber's stack, which must not be reused while it is in flight.
  fiber.refs.fetch_add(1, std::memory_order_relaxed);
  fiber.check_message.fiber = &fiber;
  fiber.check_message.fn = &check_message;
  hub.push(fiber.check_message);
}
}  // namespace

void post_check(Fiber& fiber) noexcept {
  HubImpl* hub = fiber.hub();
  if (hub == tl_hub) {
    hub->check_cancel(fiber);
  } else {
    post_to(*hub, fiber);
  }
}

void HubImpl::check_cancel(Fiber& fiber) noexcept {
  const FiberState state = fiber.state.load(std::memory_order_relaxed);
  if (state == FiberState::fresh && multi) {
    // A thief takes it under this lock: either it is gone and has a new hub, or whoever takes it
    // later sees the flag.
    std::lock_guard hold(fresh_lock);
  }
  HubImpl* now = fiber.hub();
  if (now != this) {
    post_to(*now, fiber);
    return;
  }
  if (state != FiberState::parked || !fiber.cancellable || !fiber.timer) return;
  const WakeCode code = pending_cancel(fiber, fiber.cancel.load(std::memory_order_acquire));
  if (code != kWakePending) {
    wake(fiber.waiting, code);
    return;
  }
  const Deadline deadline = Deadline::earlier(fiber.own_deadline, scope_deadline(fiber));
  if (fiber.timer->armed()) disarm(*fiber.timer);
  if (!deadline.is_never()) arm(*fiber.timer, deadline);
}

void cancel_fiber(Fiber* fiber) noexcept {
  fiber->cancel.store(true, std::memory_order_release);
  post_check(*fiber);
}

}  // namespace detail

CancelScope::CancelScope(Deadline deadline) noexcept
    : deadline_ns_(deadline.ns()), owner_(&detail::current_waiter()), parent_(owner_->scope) {
  owner_->scope = this;
}

CancelScope::CancelScope(ShieldTag) noexcept : CancelScope() {
  shield_ = true;
}

CancelScope::~CancelScope() {
  owner_->scope = parent_;
}

void CancelScope::cancel() noexcept {
  cancelled_.store(true, std::memory_order_release);
  if (owner_->hub()) detail::post_check(static_cast<detail::Fiber&>(*owner_));
}

void CancelScope::set_deadline(Deadline deadline) noexcept {
  deadline_ns_.store(deadline.ns(), std::memory_order_release);
  if (owner_->hub()) detail::post_check(static_cast<detail::Fiber&>(*owner_));
}

namespace this_fiber {

Result<void> check_cancelled() noexcept {
  const detail::Waiter& waiter = detail::current_waiter();
  const detail::Fiber* fiber = detail::current_fiber();
  if (fiber && fiber->hub()->impl.ending.load(std::memory_order_relaxed))
    return fail(Errc::cancelled);
  const bool cancelled = fiber && fiber->cancel.load(std::memory_order_acquire);
  const auto code = detail::pending_cancel(waiter, cancelled);
  if (code == detail::kWakePending) return {};
  return fail(detail::wake_error(code));
}

}  // namespace this_fiber
}  // namespace runloom
