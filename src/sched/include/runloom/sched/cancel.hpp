// Cancellation: scopes with deadlines, and shields.
//
// Cancellation is level-triggered: once a scope is cancelled, or its deadline has passed, every
// parking call inside it fails until the scope is left. A call that can complete without parking
// still completes (bytes that arrived win over a cancel that arrived with them).
#pragma once

#include <atomic>
#include <cstdint>

#include "runloom/sched/deadline.hpp"
#include "runloom/sched/result.hpp"

namespace runloom {

namespace detail {
struct Waiter;
struct ScopeAccess;
}  // namespace detail

// Bounds what runs inside it on the fiber (or OS thread) that made it. Made and destroyed on that
// fiber, nested strictly. cancel() and set_deadline() may be called from any thread while it
// lives; on an OS thread's scope they take effect at its next wait.
class CancelScope {
 public:
  explicit CancelScope(Deadline deadline = {}) noexcept;
  ~CancelScope();
  CancelScope(const CancelScope&) = delete;
  CancelScope& operator=(const CancelScope&) = delete;

  // Parking calls inside fail with Errc::cancelled.
  void cancel() noexcept;
  // Parking calls inside fail with Errc::timed_out once it has passed. Moving it back in time
  // takes effect on a call that is already parked; moving it forward re-arms.
  void set_deadline(Deadline deadline) noexcept;
  Deadline deadline() const noexcept {
    return Deadline::at_ns(deadline_ns_.load(std::memory_order_acquire));
  }
  bool cancelled() const noexcept { return cancelled_.load(std::memory_order_acquire); }
  bool timed_out() const noexcept { return deadline().passed(); }

 private:
  friend struct detail::ScopeAccess;
  std::atomic<std::int64_t> deadline_ns_;
  std::atomic<bool> cancelled_{false};
  bool shield_ = false;
  detail::Waiter* owner_;
  CancelScope* parent_;

 protected:
  struct ShieldTag {};
  explicit CancelScope(ShieldTag) noexcept;
};

// Hides cancellation and deadlines of the enclosing scopes and of the fiber, for clean-up that
// must park. Give the calls inside deadlines of their own.
class Shield : private CancelScope {
 public:
  Shield() noexcept : CancelScope(ShieldTag{}) {}
};

}  // namespace runloom
