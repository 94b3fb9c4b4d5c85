#include "poll_desc.hpp"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <mutex>
#include <new>
#include <utility>

#include "backends.hpp"
#include "poll_home.hpp"
#include "runloom/sched/check.hpp"
#include "thread_wake.hpp"

namespace runloom::net {
namespace {

using detail::WaitNode;
using detail::WakeCode;

// ---------------------------------------------------------------- pool

constexpr std::size_t kSlab = 64;
struct Slab {
  PollDesc desc[kSlab];
  Slab* next = nullptr;
};

// Guards the slabs and the free list.
detail::SpinLock pool_lock{detail::LockRank::pool};
Slab* slabs = nullptr;
PollDesc* free_descs = nullptr;
std::atomic<std::size_t> live_count{0};

// ---------------------------------------------------------------- numbers

// Which PollDesc owns a number. Two levels, because a process may be allowed a billion numbers.
// An entry is set while the number is ours, so set and clear never meet.
constexpr std::size_t kChunk = 4096;
constexpr std::size_t kChunks = 1024;
using Chunk = std::array<std::atomic<PollDesc*>, kChunk>;
std::atomic<Chunk*> numbers[kChunks];

std::atomic<PollDesc*>* number_slot(int fd, bool make) noexcept {
  const auto index = static_cast<std::size_t>(fd);
  if (index >= kChunk * kChunks) return nullptr;
  std::atomic<Chunk*>& entry = numbers[index / kChunk];
  Chunk* chunk = entry.load(std::memory_order_acquire);
  if (!chunk) {
    if (!make) return nullptr;
    auto* fresh = new (std::nothrow) Chunk{};
    if (!fresh) return nullptr;
    if (entry.compare_exchange_strong(chunk, fresh, std::memory_order_acq_rel)) {
      chunk = fresh;
    } else {
      delete fresh;
    }
  }
  return &(*chunk)[index % kChunk];
}

// ---------------------------------------------------------------- fork

// In the child only the forking fiber goes on: operations, queues and registrations that belonged
// to others are forgotten, and locks that others held are free again. A descriptor whose handle
// lives stays usable and registers afresh.
void reset_after_fork(PollDesc& desc) noexcept {
  const std::uint64_t word = desc.word.load(std::memory_order_relaxed);
  desc.lock.unlock_for_fork();
  for (auto& direction : desc.direction) {
    direction.waiter = nullptr;
    direction.seq.store(direction.drained.load(std::memory_order_relaxed) + 1,
                        std::memory_order_relaxed);
  }
  new (&desc.watchers) detail::WaitList;
  new (&desc.queue[0]) detail::WaitList;
  new (&desc.queue[1]) detail::WaitList;
  new (&desc.close_waiters) detail::WaitList;
  if (PollHome* home = desc.home.exchange(nullptr, std::memory_order_relaxed))
    home->drop_reference();
  desc.poll_index = 0;
  if ((word & PollDesc::kReferences) == 0) return;
  const bool closed = (word & PollDesc::kClosed) != 0;
  desc.word.store(word >> 32 << 32 | (closed ? PollDesc::kClosed : 0) | 1,
                  std::memory_order_relaxed);
  if (closed) leave(desc);  // the operation that would have closed it is gone
}

void fork_prepare() {
  lock_backends(ForkStage::prepare);
  pool_lock.lock_for_fork();
}
void fork_parent() {
  pool_lock.unlock_for_fork();
  lock_backends(ForkStage::parent);
}
void fork_child() {
  pool_lock.unlock_for_fork();
  lock_backends(ForkStage::child);
  note_fork();
  for (Slab* slab = slabs; slab; slab = slab->next)
    for (PollDesc& desc : slab->desc)
      reset_after_fork(desc);
}

PollDesc* take_free() noexcept {
  std::lock_guard hold(pool_lock);
  if (!free_descs) return nullptr;
  PollDesc* desc = free_descs;
  free_descs = desc->next_free;
  return desc;
}

PollDesc* take_from_new_slab() noexcept {
  static const int registered = pthread_atfork(&fork_prepare, &fork_parent, &fork_child);
  (void)registered;
  auto* slab = new (std::nothrow) Slab;
  if (!slab) return nullptr;
  // An event carries the address of its PollDesc in 41 bits, see event_word().
  RUNLOOM_CHECK((reinterpret_cast<std::uintptr_t>(slab) >> 47) == 0, "a heap above 128 TiB");
  std::lock_guard hold(pool_lock);
  slab->next = slabs;
  slabs = slab;
  for (std::size_t i = 1; i < kSlab; ++i) {
    slab->desc[i].next_free = free_descs;
    free_descs = &slab->desc[i];
  }
  return &slab->desc[0];
}

// The last reference has gone: nobody else can find the PollDesc any more, except with a stale
// handle or event, which the next generation turns away.
void retire(PollDesc& desc) noexcept {
  if (auto* slot = number_slot(desc.fd, false)) slot->store(nullptr, std::memory_order_release);
  if (!desc.keep_open) ::close(desc.fd);
  WaitNode* woken = nullptr;
  {
    std::lock_guard hold(desc.lock);
    while (WaitNode* node = desc.close_waiters.claim_front()) {
      node->next = woken;
      woken = node;
    }
    const std::uint64_t generation = desc.generation() + 1;
    desc.word.store(generation << 32 | PollDesc::kClosed, std::memory_order_release);
  }
  live_count.fetch_sub(1, std::memory_order_relaxed);
  {
    std::lock_guard hold(pool_lock);
    desc.next_free = free_descs;
    free_descs = &desc;
  }
  while (woken) {
    WaitNode* next = woken->next;
    detail::schedule(woken->token.waiter);
    woken = next;
  }
}

}  // namespace

PollDesc* allocate_desc(int fd, FdKind kind) noexcept {
  auto* slot = number_slot(fd, true);
  PollDesc* desc = take_free();
  if (!desc) desc = take_from_new_slab();
  if (!desc) return nullptr;
  desc->fd.store(fd, std::memory_order_relaxed);
  desc->kind = kind;
  desc->short_is_drained = kind == FdKind::tcp;
  desc->restore_blocking = true;
  desc->keep_open = false;
  desc->write_broken = false;
  desc->read_broken = false;
  desc->backend = nullptr;
  desc->sticky.store(0, std::memory_order_relaxed);
  for (auto& direction : desc->direction) {
    direction.seq.store(1, std::memory_order_relaxed);
    direction.drained.store(0, std::memory_order_relaxed);
  }
  live_count.fetch_add(1, std::memory_order_relaxed);
  const std::uint64_t generation = desc->generation();
  desc->word.store(generation << 32 | 1, std::memory_order_release);
  if (slot) slot->store(desc, std::memory_order_release);
  return desc;
}

std::size_t live_descs() noexcept {
  return live_count.load(std::memory_order_relaxed);
}

// ---------------------------------------------------------------- references and locks

bool enter(PollDesc& desc, std::uint32_t generation) noexcept {
  std::uint64_t word = desc.word.load(std::memory_order_relaxed);
  do {
    if (PollDesc::generation_of(word) != generation || (word & PollDesc::kClosed)) return false;
  } while (!desc.word.compare_exchange_weak(word, word + 1, std::memory_order_acquire,
                                            std::memory_order_relaxed));
  return true;
}

void leave(PollDesc& desc) noexcept {
  const std::uint64_t before = desc.word.fetch_sub(1, std::memory_order_acq_rel);
  if ((before & PollDesc::kReferences) == 1) retire(desc);
}

Result<void> enter_queued(PollDesc& desc, std::uint32_t generation, Side side, Deadline deadline) {
  const std::uint64_t lock_bit = PollDesc::lock_bit(side);
  const std::uint64_t queue_bit = PollDesc::queue_bit(side);
  std::unique_lock hold(desc.lock);
  std::uint64_t word = desc.word.load(std::memory_order_relaxed);
  for (;;) {
    if (PollDesc::generation_of(word) != generation || (word & PollDesc::kClosed))
      return fail(Errc::closed);
    const bool busy = (word & lock_bit) != 0;
    const std::uint64_t next = busy ? word | queue_bit : (word | lock_bit) + 1;
    if (!desc.word.compare_exchange_weak(word, next, std::memory_order_acquire,
                                         std::memory_order_relaxed))
      continue;
    if (!busy) return {};
    break;
  }
  WaitNode node(detail::begin_wait());
  desc.queue[side].push_back(node);
  const void* shown = desc.shown();
  hold.unlock();
  const WakeCode code = detail::wait(
      node.token, {.reason = side == kReadSide ? WaitReason::io_read : WaitReason::io_write,
                   .object = shown,
                   .deadline = deadline,
                   .external = true});
  if (code == detail::kWakeUser) return {};  // leave_queued handed the lock and a reference over
  hold.lock();
  // A node that is still linked proves that the PollDesc is still the same one.
  if (node.linked) {
    desc.queue[side].remove(node);
    if (desc.queue[side].empty()) desc.word.fetch_and(~queue_bit, std::memory_order_relaxed);
  }
  return fail(detail::wake_error(code));
}

void leave_queued(PollDesc& desc, Side side) noexcept {
  WaitNode* heir = nullptr;
  bool last = false;
  {
    std::lock_guard hold(desc.lock);
    heir = desc.queue[side].claim_front();
    const std::uint64_t emptied = desc.queue[side].empty() ? PollDesc::queue_bit(side) : 0;
    if (heir) {
      // The lock and this operation's reference are the heir's now.
      if (emptied) desc.word.fetch_and(~emptied, std::memory_order_relaxed);
    } else {
      std::uint64_t word = desc.word.load(std::memory_order_relaxed);
      std::uint64_t next;
      do {
        next = (word & ~(PollDesc::lock_bit(side) | emptied)) - 1;
      } while (!desc.word.compare_exchange_weak(word, next, std::memory_order_acq_rel,
                                                std::memory_order_relaxed));
      last = (next & PollDesc::kReferences) == 0;
    }
  }
  if (heir) detail::schedule(heir->token.waiter);
  if (last) retire(desc);
}

// ---------------------------------------------------------------- close

bool mark_closed(PollDesc& desc, std::uint32_t generation, bool only_if_unused) noexcept {
  std::uint64_t word = desc.word.load(std::memory_order_relaxed);
  do {
    if (PollDesc::generation_of(word) != generation || (word & PollDesc::kClosed)) return false;
    if (only_if_unused && (word & PollDesc::kReferences) != 1) return false;
  } while (!desc.word.compare_exchange_weak(word, word | PollDesc::kClosed,
                                            std::memory_order_acq_rel, std::memory_order_relaxed));
  return true;
}

namespace {

// Nodes that were claimed under a lock, to be scheduled after it. They stay valid until then,
// because a claimed waiter doesn't run before schedule().
struct Woken {
  WaitNode* first = nullptr;
  WaitNode* last = nullptr;

  void add(WaitNode& node) noexcept {
    node.next = nullptr;
    (last ? last->next : first) = &node;
    last = &node;
  }
  void claim(WaitNode* node, WakeCode code) noexcept {
    if (node && detail::claim(node->token, code)) add(*node);
  }
  std::size_t schedule() noexcept {
    std::size_t count = 0;
    for (; first; ++count) {
      WaitNode* next = first->next;
      if (first->data && watch_of(*first).thread) watch_of(*first).thread->signal();
      detail::schedule(first->token.waiter);
      first = next;
    }
    return count;
  }
};

void count_event(PollDesc::Direction& direction, Woken& woken) noexcept {
  direction.seq.store(direction.seq.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  woken.claim(std::exchange(direction.waiter, nullptr), kWakeEvent);
}

void apply_event(PollDesc& desc, unsigned ready, Woken& woken) noexcept {
  if (ready & kRead) count_event(desc.direction[kReadSide], woken);
  if (ready & kWrite) count_event(desc.direction[kWriteSide], woken);
  if (!desc.watchers.empty()) [[unlikely]]
    claim_watchers(desc.watchers, ready, [&](WaitNode& node) { woken.add(node); });
}

void claim_all(PollDesc& desc, WakeCode code, Woken& woken) noexcept {
  for (const Side side : {kReadSide, kWriteSide}) {
    woken.claim(std::exchange(desc.direction[side].waiter, nullptr), code);
    while (WaitNode* node = desc.queue[side].pop_front())
      woken.claim(node, code);
    desc.word.fetch_and(~PollDesc::queue_bit(side), std::memory_order_relaxed);
  }
  end_watchers(desc.watchers, code, [&](WaitNode& node) { woken.add(node); });
}
}  // namespace

std::size_t wake_waiters(PollDesc& desc, WakeCode code) noexcept {
  Woken woken;
  {
    std::lock_guard hold(desc.lock);
    claim_all(desc, code, woken);
  }
  return woken.schedule();
}

void end_waits(PollDesc& desc) noexcept {
  Woken woken;
  PollHome* home;
  {
    std::lock_guard hold(desc.lock);
    claim_all(desc, detail::kWakeClosed, woken);
    home = desc.home.exchange(nullptr, std::memory_order_relaxed);
  }
  woken.schedule();
  if (!home) return;
  home->forget(desc);
  home->drop_reference();
}

// ---------------------------------------------------------------- events

void deliver_event(PollDesc& desc, std::uint32_t generation, unsigned ready,
                   std::uint32_t sticky) noexcept {
  Woken woken;
  {
    std::lock_guard hold(desc.lock);
    const std::uint64_t word = desc.word.load(std::memory_order_relaxed);
    if (((PollDesc::generation_of(word) ^ generation) & kGenerationMask) != 0) return;
    if (sticky != 0)
      desc.sticky.store(desc.sticky.load(std::memory_order_relaxed) | sticky,
                        std::memory_order_relaxed);
    apply_event(desc, ready, woken);
  }
  woken.schedule();
}

void nudge(PollDesc& desc) noexcept {
  Woken woken;
  {
    std::lock_guard hold(desc.lock);
    apply_event(desc, kRead | kWrite, woken);
  }
  woken.schedule();
}

void nudge_all() noexcept {
  Slab* slab;
  {
    std::lock_guard hold(pool_lock);
    slab = slabs;
  }
  for (; slab; slab = slab->next)
    for (PollDesc& desc : slab->desc)
      nudge(desc);
}

PollDesc* find_desc(int fd) noexcept {
  if (fd < 0) return nullptr;
  auto* slot = number_slot(fd, false);
  PollDesc* desc = slot ? slot->load(std::memory_order_acquire) : nullptr;
  if (!desc || !enter(*desc, desc->generation())) return nullptr;
  if (desc->fd == fd) return desc;
  leave(*desc);  // recycled for another number meanwhile
  return nullptr;
}

bool is_owned(int fd) noexcept {
  PollDesc* desc = find_desc(fd);
  if (desc) leave(*desc);
  return desc != nullptr;
}

}  // namespace runloom::net
