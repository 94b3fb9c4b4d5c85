// HubTimer: a timer in a hub's heap that any thread may set, unlike the deadline of a wait.
//
// Two things are kept apart. `when_` is when the timer is due; whoever sets it holds the timer's
// lock, and what it says at that moment is exact. The entry in the heap belongs to the hub's
// thread (I2) and follows: set() on the hub's own thread adjusts it at once, set() elsewhere
// posts a message. An entry that fires too early finds `when_` later, or never, and does nothing.
//
// The handle, the heap entry and a message on its way own one reference each.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>

#include "runloom/sched/scheduler.hpp"
#include "runloom/sched/spin_lock.hpp"
#include "timer_heap.hpp"

namespace runloom::detail {

struct HubImpl;

// Tells timers that outlive their hub that it is gone.
struct TimerHome {
  explicit TimerHome(HubImpl* owner) noexcept : hub(owner) {}
  SpinLock lock{LockRank::timer};  // held around a push: the hub stays until then
  std::atomic<HubImpl*> hub;       // null: gone. Read without the lock on the hub's own thread
};

class HubTimer : private TimerNode, private Hub::Message {
 public:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  // Stopped, with one reference for the caller.
  explicit HubTimer(Hub& hub) noexcept;
  HubTimer(const HubTimer&) = delete;
  HubTimer& operator=(const HubTimer&) = delete;
  void release() noexcept;

  // From now on it is due at `when_ns`, and every `period_ns` (above zero) after that, and at no
  // other time. What an earlier setting has left behind is taken back. True when it was going to
  // fire. Any thread.
  bool start(std::int64_t when_ns, std::int64_t period_ns) noexcept;
  bool stop() noexcept;
  bool is_set() const noexcept;

  // While the hub is destroyed: lets go of the timers that it holds, and they of it.
  static void hub_ends(HubImpl& hub) noexcept;
  // In a forked child, before the inbox is dropped. Without its thread the hub has lost its heap:
  // its timers do not fire in the child.
  static void hub_forks(HubImpl& hub, bool has_thread) noexcept;

 protected:
  virtual ~HubTimer() = default;
  // Both with the timer's lock held; must neither park nor run user code.
  virtual void fire(std::int64_t now_ns) noexcept = 0;  // on the hub's thread, its own context
  virtual void take_back() noexcept = 0;

 private:
  static void expired(TimerNode& node);
  static void posted(Hub& hub, Hub::Message& message);
  bool change(std::int64_t when_ns, std::int64_t period_ns, bool taking_back) noexcept;
  void follow(HubImpl& hub);
  void post() noexcept;

  const std::shared_ptr<TimerHome> home_;
  std::atomic<std::uint32_t> refs_{1};
  mutable SpinLock lock_{LockRank::timer};
  // Guarded by lock_.
  std::int64_t when_ = kNever;
  std::int64_t period_ = 0;  // 0: once
  bool in_flight_ = false;   // the message
};

}  // namespace runloom::detail
