// Stacks: carved from large slabs, guarded, reused hot.
//
// A slab is one mapping of many slots; a slot is [guard][stack], and the fiber's control block
// lies at the very top of the stack, in the page that the fiber touches anyway. Slabs are
// never unmapped, so a pointer to a control block stays readable for ever (type-stable). A
// fiber's identity does not lie there but in the slot, which no trim touches: a stale handle
// finds another id, and misses.
//
// Slots of large stacks have room above the stack for fiber-local memory, which is used from its
// low end on, while the stack is used from its high end: what a fiber touches first lies together,
// in one page or two, however much local memory it has.
//
// A guard is wider than the largest frame that C code is known to have (select() in CPython: 51
// KiB): code compiled without stack probes touches a frame in any order, and would step over a
// guard of one page into the control block of the next fiber. That costs address space and 8
// bytes of page table a page.
//
// MADV_GUARD_INSTALL (Linux 6.13+) costs no kernel map; mprotect costs two a stack and ends at
// vm.max_map_count. The choice is made per slab. A guard that can't be installed fails
// the spawn: no stack without a guard, ever.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <system_error>

#include "runloom/sched/scheduler.hpp"
#include "runloom/sched/spin_lock.hpp"

namespace runloom::detail {

struct Slab;
class StackClass;
enum class ForkStage;

// Bookkeeping of a slot, outside of its pages so that trimming may drop all of them.
struct StackSlot {
  StackSlot* next = nullptr;  // free list
  Slab* slab = nullptr;
  std::atomic<bool> in_use{false};
  bool touched = false;  // since it was carved or trimmed
  // A handle holds `lock` while it uses the fiber, and looks at `done`, then at `id`. A new owner
  // stores the id before it clears `done`, so the handle of an earlier one misses either way.
  SpinLock lock{LockRank::fiber};
  std::atomic<bool> done{true};
  std::atomic<std::uint64_t> id{0};  // of the fiber that has or last had the stack
  std::uint32_t index = 0;
  std::uint64_t wait_word = 0;  // the waiter's word across a trim: tickets are never reused
  char* low() const noexcept;   // lowest usable byte, just above the guard
  char* high() const noexcept;  // one past the highest byte
  char* end() const noexcept;   // one past the room above the stack; high() when there is none
  char* top() const noexcept;   // where use of the stack begins, at most 2 KiB below high()
};

struct Slab {
  StackClass* cls = nullptr;
  Slab* next = nullptr;  // all slabs, newest first; never removed
  char* base = nullptr;
  std::size_t size = 0;    // bytes mapped
  std::size_t stride = 0;  // bytes a slot, guard and room included
  std::size_t room = 0;    // of them above the stack
  std::uint32_t slots = 0;
  std::atomic<std::uint32_t> carved{0};
  bool madvise_guard = false;
  StackSlot* slot = nullptr;  // array of `slots`
};

inline constexpr std::size_t kPage = 4096;
inline constexpr std::size_t kGuard = 64 * 1024;
inline constexpr std::size_t kMinStack = 16 * 1024;
inline constexpr std::size_t kMaxStack = std::size_t{1} << 30;
// Only address space is spent on the room of fibers that have no local memory; small stacks are
// for being many.
inline constexpr std::size_t kRoom = 16 * 1024;
inline constexpr std::size_t kRoomFrom = 256 * 1024;  // the least stack that has it

inline char* StackSlot::low() const noexcept {
  return slab->base + static_cast<std::size_t>(index) * slab->stride + kGuard;
}
// Stacks begin at the same offset of a page each, and caches choose their sets by it: were all
// fibers to begin at the top, the hot lines of a thousand would compete for a few sets.
inline char* StackSlot::top() const noexcept {
  const std::size_t colour = index % 16;
  if (slab->room == 0) return high() - colour * 128;
  // One page for both sides, whatever the colour: a short Python fiber uses some 600 bytes of local
  // memory, and less than 2,400 of control block and stack.
  return high() - 768 - colour * 64;
}
inline char* StackSlot::end() const noexcept {
  return slab->base + (static_cast<std::size_t>(index) + 1) * slab->stride;
}
inline char* StackSlot::high() const noexcept {
  return end() - slab->room;
}

// Stacks of one size; process-wide. Hubs take and give in batches (StackCache).
class StackClass {
 public:
  explicit StackClass(std::size_t stack_size) noexcept : size_(stack_size) {}
  std::size_t stack_size() const noexcept { return size_; }
  // Up to `count` stacks, chained; null and `error` when not one can be had.
  StackSlot* take(std::uint32_t count, GuardMode guard, std::error_code& error) noexcept;
  void give(StackSlot* first, StackSlot* last, std::uint32_t count) noexcept;
  // Returns the memory of the free stacks to the kernel. Counts those trimmed.
  std::uint64_t trim() noexcept;
  void fork(ForkStage stage) noexcept;
  StackClass* next = nullptr;  // all classes

 private:
  StackSlot* carve(GuardMode guard, std::error_code& error) noexcept;
  Slab* map_slab(GuardMode guard, std::error_code& error) noexcept;

  const std::size_t size_;
  SpinLock lock_{LockRank::pool};
  StackSlot* free_ = nullptr;
  std::uint32_t free_count_ = 0;
  Slab* current_ = nullptr;
};

// The class of a size (rounded up to pages), made on first use; null: Errc::stack_size.
StackClass* stack_class(std::size_t bytes) noexcept;

// A hub's own stock, used only on its thread, without a lock. LIFO: the stack that was used last
// is the one with warm cache lines and present pages.
class StackCache {
 public:
  StackSlot* take(StackClass& cls, GuardMode guard, std::error_code& error) noexcept;
  void give(StackSlot* slot) noexcept;
  bool has_untrimmed() const noexcept { return dirty_; }
  // Gives all but the hottest to the classes and returns their memory.
  void trim() noexcept;
  void flush() noexcept;

 private:
  struct Entry {
    StackClass* cls = nullptr;
    StackSlot* head = nullptr;
    std::uint32_t count = 0;
  };
  static constexpr int kEntries = 8;
  static constexpr std::uint32_t kBatch = 32;
  static constexpr std::uint32_t kMost = 2048;
  Entry* find(StackClass* cls) noexcept;
  void spill(Entry& entry, std::uint32_t keep) noexcept;
  Entry entries_[kEntries];
  bool dirty_ = false;
};

inline StackClass* class_of(const StackSlot* slot) noexcept {
  return slot->slab->cls;
}

// Every slab, newest first. Lock-free: for the registry and the crash report.
Slab* first_slab() noexcept;
// The slot whose guard holds `address`; null when none. Async-signal-safe.
StackSlot* slot_of_guard(const void* address) noexcept;
// The slot whose stack holds `address`. Async-signal-safe.
StackSlot* slot_of_stack(const void* address) noexcept;

struct StackCounts {
  std::uint64_t carved, free, trims;
};
StackCounts stack_counts() noexcept;

}  // namespace runloom::detail
