// Park and wake: what every primitive and every I/O wait is written over. For authors of layers
// above the scheduler; programs use the primitives.
//
// A *wait* is one blocking step of one waiter, a fiber or an OS thread. Its life:
//
//     lock.lock();
//     if (ready) { take it; lock.unlock(); return; }
//     WaitNode node(begin_wait());         // opens the wait: a fresh ticket
//     list.push_back(node);                // I3: enqueue under the lock
//     lock.unlock();
//     WakeCode code = wait(node.token, {WaitReason::mutex, this, deadline});
//     if (code is one of ours) return;     // the waker unlinked the node under the lock
//     lock.lock(); list.remove_if_linked(node); lock.unlock();   // timed out or cancelled
//
// and of its waker:
//
//     lock.lock();
//     while (WaitNode* n = list.pop_front())
//       if (claim(n->token, code)) break;  // exactly one claimer wins a wait
//     lock.unlock();
//     schedule(n->token.waiter);           // the winner, and only it, makes the waiter run
//
// Rules
// - A wait ends exactly once: begin_wait publishes {ticket, pending} in the waiter's wait word;
//   claimers compare-and-swap the code in. A loser consumes nothing.
// - The lock is released before the switch, not after it. That is sound because a started fiber
//   stays on its hub (I1): a claimer on another thread pushes the fiber to its hub's inbox, which
//   only that hub's own thread drains, and it can't drain while the fiber still runs on it.
// - A claimed waiter does not run before schedule(). So a node on its stack stays valid until the
//   claimer calls schedule(), and not one instruction longer.
// - After wait() returned, the caller unlinks whatever nodes of the wait are still linked, each
//   under the lock of its list, before they go out of scope.
// - Waiters are type-stable memory: a stale token can miss, it can't corrupt.
#pragma once

#include <cstdint>

#include "runloom/sched/deadline.hpp"
#include "runloom/sched/error.hpp"

namespace runloom {

class Hub;

// What a parked fiber waits for, as shown by the registry.
enum class WaitReason : std::uint8_t {
  none,
  sleep,
  park,
  channel_send,
  channel_recv,
  select,
  mutex,
  cond_var,
  event,
  semaphore,
  wait_group,
  join,
  join_set,
  blocking,
  io_read,
  io_write,
  io_accept,
  io_connect,
  io_close,
  io_poll,
  nested_run,
};
const char* to_string(WaitReason reason) noexcept;

namespace detail {

struct Waiter;

// Names one wait: the waiter and the ticket of begin_wait().
struct WaitToken {
  Waiter* waiter = nullptr;
  std::uint64_t ticket = 0;
};

// How a wait ended. Codes from kWakeUser on belong to the primitive.
using WakeCode = std::uint16_t;
inline constexpr WakeCode kWakePending = 0;
inline constexpr WakeCode kWakeTimedOut = 1;
inline constexpr WakeCode kWakeCancelled = 2;
inline constexpr WakeCode kWakeClosed = 3;
inline constexpr WakeCode kWakeForbidden = 4;  // the fiber may not park here
inline constexpr WakeCode kWakeAbandoned = 5;  // try_abandon() closed the wait
inline constexpr WakeCode kWakeUser = 16;

// The error of a code below kWakeUser: timed_out, cancelled, closed or park_forbidden.
std::error_code wake_error(WakeCode code) noexcept;

struct WaitOptions {
  WaitReason reason = WaitReason::park;
  const void* object = nullptr;  // shown by the registry; an fd is cast to a pointer
  Deadline deadline{};
  bool cancellable = true;  // false: neither cancel nor an enclosing scope's deadline ends it
  bool external = false;    // something outside the scheduler can end it: no deadlock, run() waits
};

// Opens a wait of the calling fiber or OS thread. Must be followed by wait() or try_abandon().
WaitToken begin_wait() noexcept;

// Parks until the wait is claimed. Returns the claimer's code, kWakeTimedOut or kWakeCancelled.
// The deadlines and cancellation of the enclosing CancelScopes apply unless !cancellable. A wait
// that was already claimed returns at once, whatever the deadline.
WakeCode wait(const WaitToken& token, const WaitOptions& options);

// Fetches into the cache what the fibers that are to run next on this hub will touch. For whoever
// is about to spend a microsecond in the kernel.
void prefetch_ready() noexcept;

// True when other fibers are ready to run on the calling fiber's hub.
bool others_ready() noexcept;

// Closes a wait that turned out to be unneeded. False: somebody claimed it; call wait() to learn
// the code and to consume the wake.
bool try_abandon(const WaitToken& token) noexcept;

// Ends the wait if it is still pending. Any thread. On true the caller owes a schedule().
bool claim(const WaitToken& token, WakeCode code) noexcept;

// Makes a claimed waiter runnable: appended to its hub's queue, or to the hub's inbox (waking
// the hub only if it sleeps) from another thread; a futex wake for an OS thread. Any thread.
void schedule(Waiter* waiter) noexcept;

inline bool wake(const WaitToken& token, WakeCode code) noexcept {
  if (!claim(token, code)) return false;
  schedule(token.waiter);
  return true;
}

// True on a fiber; false on an OS thread, the hub's own context included.
bool on_fiber() noexcept;
// True on a fiber that a wait would park, and not fail with kWakeForbidden.
bool may_park() noexcept;
// The hub of the calling fiber; null off a fiber.
Hub* fiber_hub() noexcept;

// The earliest deadline of the caller's enclosing CancelScopes, up to a shield: for waits of an
// OS thread that block in something else than wait().
Deadline enclosing_deadline() noexcept;

// A waiter's entry in the wait list of one source. On the waiter's stack.
struct WaitNode {
  explicit WaitNode(const WaitToken& wait, WakeCode wake_code = kWakeUser) noexcept
      : token(wait), code(wake_code) {}
  WaitNode(const WaitNode&) = delete;
  WaitNode& operator=(const WaitNode&) = delete;

  WaitNode* prev = nullptr;
  WaitNode* next = nullptr;
  WaitToken token;
  WakeCode code;  // what a normal wake by this source reports
  bool linked = false;
  void* data = nullptr;  // the primitive's: a value slot, a count
};

// FIFO of waiters; guarded by the owner's lock.
class WaitList {
 public:
  WaitList() = default;
  WaitList(const WaitList&) = delete;
  WaitList& operator=(const WaitList&) = delete;

  bool empty() const noexcept { return head_ == nullptr; }
  WaitNode* front() const noexcept { return head_; }
  void push_back(WaitNode& node) noexcept {
    node.prev = tail_;
    node.next = nullptr;
    (tail_ ? tail_->next : head_) = &node;
    tail_ = &node;
    node.linked = true;
  }
  void remove(WaitNode& node) noexcept {
    (node.prev ? node.prev->next : head_) = node.next;
    (node.next ? node.next->prev : tail_) = node.prev;
    node.linked = false;
  }
  void remove_if_linked(WaitNode& node) noexcept {
    if (node.linked) remove(node);
  }
  WaitNode* pop_front() noexcept {
    WaitNode* node = head_;
    if (node) remove(*node);
    return node;
  }
  // Unlinks nodes until one is claimed with its own code; null when none could be.
  WaitNode* claim_front() noexcept {
    while (WaitNode* node = pop_front())
      if (claim(node->token, node->code)) return node;
    return nullptr;
  }

 private:
  WaitNode* head_ = nullptr;
  WaitNode* tail_ = nullptr;
};

// Called around a wait of an OS thread that will really block (the bindings release the GIL).
struct ThreadWaitHooks {
  void* (*before)() = nullptr;
  void (*after)(void* state) = nullptr;
  // A signal ended the system call. True: the wait ends as if it was cancelled, where it may be.
  bool (*interrupted)(void* state) = nullptr;
};
void set_thread_wait_hooks(ThreadWaitHooks hooks) noexcept;
ThreadWaitHooks thread_wait_hooks() noexcept;

}  // namespace detail
}  // namespace runloom
