// The control block of a fiber, and the waiter it shares with OS threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>

#include "context.hpp"
#include "runloom/sched/fiber.hpp"
#include "runloom/sched/park.hpp"
#include "runloom/sched/scheduler.hpp"
#include "runloom/sched/spin_lock.hpp"
#include "timer_heap.hpp"

namespace runloom {
class CancelScope;
}

namespace runloom::detail {

struct Fiber;
struct HubImpl;
struct StackSlot;

// Wait word: ticket << 16 | code. Code 0 is a wait that is pending; any other, no wait.
struct Waiter {
  std::atomic<std::uint64_t> word{kWakeAbandoned};
  // Null: an OS thread. A fiber's changes only when it is stolen before it starts.
  std::atomic<HubImpl*> home{nullptr};
  CancelScope* scope = nullptr;  // innermost; only the waiter itself
  HubImpl* hub() const noexcept { return home.load(std::memory_order_relaxed); }
};

struct ThreadWaiter : Waiter {
  std::atomic<std::uint32_t> signal{0};  // futex: set by schedule()
  ThreadWaiter* next_free = nullptr;
};

enum class FiberState : std::uint8_t { fresh, runnable, running, parked, ended };

// An armed deadline of a parked fiber; on the stack of wait().
struct WaitTimer : TimerNode {
  WaitToken token;
  bool lost = false;  // it was due when somebody else had claimed the wait
};

struct FiberMessage : Hub::Message {
  Fiber* fiber = nullptr;
};

struct Fiber : Waiter {
  Context context;
  Fiber* next = nullptr;    // run queue, fresh queue
  std::uint64_t stamp = 0;  // order between the hub's two queues

  // Of the owner thread, or set before the start.
  Scheduler* scheduler = nullptr;
  StackSlot* slot = nullptr;
  const FrameOps* ops = nullptr;
  void* frame = nullptr;
  void* local = nullptr;
  WaitTimer* timer = nullptr;  // while parked with a deadline or cancellable
  WaitToken waiting;           // while parked
  Deadline own_deadline;       // the call's own, without the scopes'
  bool cancellable = false;    // the current wait
  bool has_result = false;
  bool noyield = false;
  bool guest = false;        // its local memory is the language binding's, see GuestHooks
  bool pinned = false;       // may not be stolen
  std::uint16_t forbid = 0;  // ForbidPark depth

  // Any thread.
  std::atomic<std::uint32_t> refs{0};
  std::atomic<bool> cancel{false};
  std::atomic<bool> check_posted{false};
  std::atomic<FiberState> state{FiberState::fresh};
  std::atomic<WaitReason> reason{WaitReason::none};
  std::atomic<const void*> object{nullptr};
  std::atomic<std::int64_t> since{0};
  std::atomic<int> hub_index{-1};
  FiberMessage run_message;    // inbox entry: resume, or start
  FiberMessage check_message;  // inbox entry: look at cancellation again

  // Guarded by slot->lock.
  bool handle_dropped = false;
  std::uint32_t permits = 0;
  WaitToken park_token;  // while parked in this_fiber::park()
  std::exception_ptr exception;
  WaitList joiners;
  char name[24] = {};
};

// The running fiber; null on an OS thread and in a hub's own context.
Fiber* current_fiber() noexcept;
// The calling thread's waiter when no fiber runs on it.
ThreadWaiter& thread_waiter() noexcept;
Waiter& current_waiter() noexcept;

// Why the fiber's next park must fail: kWakeCancelled, kWakeTimedOut, or kWakePending.
WakeCode pending_cancel(const Waiter& waiter, bool fiber_cancelled) noexcept;
// The earliest deadline of the enclosing scopes, up to a shield.
Deadline scope_deadline(const Waiter& waiter) noexcept;
// Lets the fiber's hub look at its cancellation again. Any thread.
void post_check(Fiber& fiber) noexcept;

// On the fiber's own stack: everything that happens after its function returned.
void finish_fiber(Fiber& self) noexcept;
// Drops a reference; the last one gives the stack back. Any thread.
void drop_reference(Fiber& fiber) noexcept;
void report_unhandled(const Fiber& fiber, std::exception_ptr exception) noexcept;
void report_unhandled(std::string_view name, FiberId id, std::exception_ptr exception) noexcept;

}  // namespace runloom::detail
