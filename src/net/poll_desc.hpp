// PollDesc: everything that is known of one descriptor that runloom owns. Two machines live in it.
//
// Lifetime and locks, in one word, so that close is safe against every operation in flight:
//
//     generation:32 | closed | read lock | write lock | read queue | write queue | references:27
//
// - A handle (Fd) is {PollDesc*, generation}. PollDescs are type-stable and recycled (I5): a stale
//   handle misses by its generation, and so does an event that was fetched before a close.
// - The handle holds one reference, every operation one more. The last one closes the descriptor
//   (I6), so its number can't be reused under an operation.
// - An operation of a direction holds that direction's lock. Others queue, first come first
//   served; the lock is handed over, so nobody overtakes. A queue bit says that the queue is not
//   empty; it and the queue change under `lock`.
//
// Readiness, per direction, for backends that wait for readiness:
//
// - `seq` counts the events of the direction. `drained` is the value of `seq` at which the
//   direction was seen to be drained: the system call said EAGAIN, or moved less than asked for.
//   seq == drained: nothing has happened since, don't try. Else: try.
// - An operation reads seq, calls, and on EAGAIN stores what it had read in `drained`. An event
//   that came in between has made seq differ, so it is never lost (S02), whichever hub runs the
//   operation and whichever polls.
// - `waiter` is the operation parked in the direction; at most one, because it holds the lock.
//   `watchers` wait for readiness without holding a lock.
// - `sticky` keeps the conditions that come once and end the rule that a short transfer means
//   drained: data and the end of the stream may come in one event, and no further edge follows.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "runloom/net/fd.hpp"
#include "runloom/net/netpoll.hpp"
#include "runloom/sched/park.hpp"
#include "runloom/sched/spin_lock.hpp"

namespace runloom::net {

struct PollHome;

// Index of a direction.
enum Side : unsigned { kReadSide = 0, kWriteSide = 1 };
constexpr unsigned direction_of(Side side) noexcept {
  return side == kReadSide ? kRead : kWrite;
}

// The end of a wait by an event.
inline constexpr detail::WakeCode kWakeEvent = detail::kWakeUser;

inline Watch& watch_of(const detail::WaitNode& node) noexcept {
  return *static_cast<Watch*>(node.data);
}
// The directions that the watchers of a list wait for.
inline unsigned watched_directions(const detail::WaitList& watchers) noexcept {
  unsigned all = 0;
  for (const detail::WaitNode* node = watchers.front(); node; node = node->next)
    all |= watch_of(*node).directions;
  return all;
}
// Unlinks and claims, with its own code, each watcher that waits for one of `ready`; calls
// `woken(node)` for those that were claimed.
template <class Fn>
void claim_watchers(detail::WaitList& watchers, unsigned ready, Fn&& woken) noexcept {
  for (detail::WaitNode* node = watchers.front(); node;) {
    detail::WaitNode& each = *node;
    node = node->next;
    const unsigned hit = watch_of(each).directions & ready;
    if (hit == 0) continue;
    watchers.remove(each);
    watch_of(each).ready = hit;
    if (detail::claim(each.token, each.code)) woken(each);
  }
}

struct alignas(64) PollDesc {
  static constexpr std::uint64_t kClosed = 1ull << 31;
  static constexpr std::uint64_t kReadLock = 1ull << 30;
  static constexpr std::uint64_t kWriteLock = 1ull << 29;
  static constexpr std::uint64_t kReadQueue = 1ull << 28;
  static constexpr std::uint64_t kWriteQueue = 1ull << 27;
  static constexpr std::uint64_t kReferences = kWriteQueue - 1;
  static constexpr std::uint64_t lock_bit(Side side) noexcept { return kReadLock >> side; }
  static constexpr std::uint64_t queue_bit(Side side) noexcept { return kReadQueue >> side; }
  static constexpr std::uint32_t generation_of(std::uint64_t word) noexcept {
    return static_cast<std::uint32_t>(word >> 32);
  }

  struct Direction {
    std::atomic<std::uint32_t> seq{1};
    std::atomic<std::uint32_t> drained{0};
    detail::WaitNode* waiter = nullptr;  // guarded by lock
  };

  std::atomic<std::uint64_t> word{kClosed};
  std::atomic<int> fd{-1};
  bool short_is_drained = false;  // a TCP connection
  bool restore_blocking = true;   // how release() hands it out
  bool keep_open = false;         // release(): the last reference does not close it
  bool write_broken = false;      // a message was cut off; guarded by the write lock
  bool read_broken = false;       // received bytes were lost; guarded by the read lock
  FdKind kind = FdKind::other;
  // Registered without events for writing: the home must be told of who waits to write. Set with
  // `home`, under lock.
  std::atomic<bool> reads_only{false};
  std::atomic<std::uint32_t> sticky{0};
  detail::SpinLock lock{detail::LockRank::descriptor};
  Direction direction[2];
  std::atomic<PollHome*> home{nullptr};  // where it is registered; changes under lock
  // Where the last reader that waited lies in memory, to fetch it early. No more than addresses:
  // what was there may be gone.
  std::atomic<const void*> reader{nullptr};
  std::atomic<const void*> reader_node{nullptr};

  // --- rarely used ---
  detail::WaitList watchers;       // each with a Watch; guarded by lock, as are the next ones
  detail::WaitList queue[2];       // operations that wait for a direction's lock
  detail::WaitList close_waiters;  // wait for the last reference to go
  void* backend = nullptr;         // a completion backend's own state
  std::size_t poll_index = 0;      // the poll(2) backend's: position in its list, plus one
  PollDesc* next_free = nullptr;

  std::uint32_t generation() const noexcept {
    return generation_of(word.load(std::memory_order_relaxed));
  }
  bool closed() const noexcept { return (word.load(std::memory_order_acquire) & kClosed) != 0; }
  // As WaitOptions::object.
  const void* shown() const noexcept {
    return reinterpret_cast<void*>(static_cast<std::intptr_t>(fd.load(std::memory_order_relaxed)));
  }
};

// What a registration carries through the kernel: 41 bits of address, 21 of generation, 2 of tag.
// That many reopens of one PollDesc don't happen between the fetch of an event and its delivery.
enum class EventTag : std::uint64_t { desc = 0, foreign = 1, wake = 2, watcher = 3 };
inline constexpr std::uint32_t kGenerationMask = (1u << 21) - 1;
inline std::uint64_t event_word(const PollDesc& desc) noexcept {
  return reinterpret_cast<std::uintptr_t>(&desc) >> 6 << 23 |
         std::uint64_t{desc.generation() & kGenerationMask} << 2;
}
inline EventTag event_tag(std::uint64_t word) noexcept {
  return static_cast<EventTag>(word & 3);
}
inline PollDesc& event_desc(std::uint64_t word) noexcept {
  return *reinterpret_cast<PollDesc*>(word >> 23 << 6);
}
inline std::uint32_t event_generation(std::uint64_t word) noexcept {
  return static_cast<std::uint32_t>(word >> 2) & kGenerationMask;
}

// Unlinks and claims all of a list, which end without being ready.
template <class Fn>
void end_watchers(detail::WaitList& watchers, detail::WakeCode why, Fn&& woken) noexcept {
  while (detail::WaitNode* node = watchers.pop_front()) {
    watch_of(*node).ended = why;
    if (detail::claim(node->token, node->code)) woken(*node);
  }
}

// Takes a recycled or fresh PollDesc for `fd`, with the reference of the handle. Null: no memory.
PollDesc* allocate_desc(int fd, FdKind kind) noexcept;

// Enters an operation that holds no direction's lock. False: closed.
bool enter(PollDesc& desc, std::uint32_t generation) noexcept;
void leave(PollDesc& desc) noexcept;
// Enters an operation of one direction, queueing for its lock.
Result<void> enter_queued(PollDesc& desc, std::uint32_t generation, Side side, Deadline deadline);
void leave_queued(PollDesc& desc, Side side) noexcept;

// enter_queued, when there is nothing to queue for. False tells nothing: use enter_queued.
inline bool try_enter_side(PollDesc& desc, std::uint32_t generation, Side side) noexcept {
  std::uint64_t word = desc.word.load(std::memory_order_relaxed);
  const std::uint64_t busy = PollDesc::kClosed | PollDesc::lock_bit(side);
  return PollDesc::generation_of(word) == generation && (word & busy) == 0 &&
         desc.word.compare_exchange_strong(word, (word | PollDesc::lock_bit(side)) + 1,
                                           std::memory_order_acquire, std::memory_order_relaxed);
}

inline void leave_side(PollDesc& desc, Side side) noexcept {
  std::uint64_t word = desc.word.load(std::memory_order_relaxed);
  if ((word & (PollDesc::kClosed | PollDesc::queue_bit(side))) == 0 &&
      desc.word.compare_exchange_strong(word, (word & ~PollDesc::lock_bit(side)) - 1,
                                        std::memory_order_release, std::memory_order_relaxed))
    return;
  leave_queued(desc, side);
}

// False: it was closed already, or somebody beside the handle uses it and `only_if_unused`.
bool mark_closed(PollDesc& desc, std::uint32_t generation, bool only_if_unused = false) noexcept;
// After mark_closed: wakes the parked operations and watchers with `closed` and ends the
// registration.
void end_waits(PollDesc& desc) noexcept;

// Wakes the parked operations and watchers, and whoever queues for a lock, with `code`. Returns how
// many.
std::size_t wake_waiters(PollDesc& desc, detail::WakeCode code) noexcept;

// An event: `ready` are the directions it concerns, `sticky` is kept. Dropped when the generation
// is another one. Any thread.
void deliver_event(PollDesc& desc, std::uint32_t generation, unsigned ready,
                   std::uint32_t sticky) noexcept;
// As an event in both directions, for a PollDesc that the caller holds: everybody tries again.
void nudge(PollDesc& desc) noexcept;
// The same for each one that there is, by whoever has lost registrations.
void nudge_all() noexcept;

// The live PollDesc that owns the number `fd`, with a reference to leave(); null when none does.
PollDesc* find_desc(int fd) noexcept;
// Whether a live PollDesc owns it.
bool is_owned(int fd) noexcept;

std::size_t live_descs() noexcept;

}  // namespace runloom::net
