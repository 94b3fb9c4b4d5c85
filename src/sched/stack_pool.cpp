#include "stack_pool.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <new>

#include "map_reserve.hpp"
#include "process.hpp"

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102  // Linux 6.13
#endif

namespace runloom::detail {
namespace {

// A slab of small stacks holds 256 of them; of large ones, at most 64 MiB of address space.
constexpr std::uint32_t kSlabSlots = 256;
constexpr std::size_t kSlabBytes = std::size_t{64} << 20;

std::atomic<Slab*> all_slabs{nullptr};
std::atomic<StackClass*> all_classes{nullptr};
SpinLock classes_lock{LockRank::pool};  // held while one is added
std::atomic<std::uint64_t> carved_total{0}, in_classes{0}, trimmed_total{0};

std::error_code guard_error(int err) noexcept {
  if (err != ENOMEM) return errno_code(err);
  MapReserve::release();
  return make_error_code(Errc::map_limit);
}

// Drops the memory of a free stack. The fiber's wait word survives in the slot.
void drop_pages(StackSlot& slot) noexcept {
  if (!slot.touched) return;
  ::madvise(slot.low(), static_cast<std::size_t>(slot.end() - slot.low()), MADV_DONTNEED);
  slot.touched = false;
  trimmed_total.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

Slab* first_slab() noexcept {
  return all_slabs.load(std::memory_order_acquire);
}

Slab* StackClass::map_slab(GuardMode guard, std::error_code& error) noexcept {
  const std::size_t room = size_ >= kRoomFrom ? kRoom : 0;
  const std::size_t stride = size_ + room + kGuard;
  const auto slots =
      static_cast<std::uint32_t>(std::clamp<std::size_t>(kSlabBytes / stride, 1, kSlabSlots));
  std::unique_ptr<Slab> slab(new (std::nothrow) Slab);
  std::unique_ptr<StackSlot[]> slot(new (std::nothrow) StackSlot[slots]);
  if (!slab || !slot) {
    error = errno_code(ENOMEM);
    return nullptr;
  }
  slab->cls = this;
  slab->stride = stride;
  slab->room = room;
  slab->slots = slots;
  slab->size = stride * slots;
  void* memory = ::mmap(nullptr, slab->size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) {
    error = guard_error(errno);
    return nullptr;
  }
  slab->base = static_cast<char*>(memory);
  // A huge page would make one parked fiber cost 2 MiB.
  ::madvise(memory, slab->size, MADV_NOHUGEPAGE);
  if (guard != GuardMode::mprotect) {
    // EINVAL: an older kernel; EPERM or EINVAL under mlockall.
    slab->madvise_guard = ::madvise(memory, kGuard, MADV_GUARD_INSTALL) == 0;
    if (!slab->madvise_guard && guard == GuardMode::madvise) {
      error = guard_error(errno);
      ::munmap(memory, slab->size);
      return nullptr;
    }
  }
  for (std::uint32_t i = 0; i < slots; ++i) {
    slot[i].slab = slab.get();
    slot[i].index = i;
  }
  slab->slot = slot.release();
  Slab* head = all_slabs.load(std::memory_order_relaxed);
  do
    slab->next = head;
  while (!all_slabs.compare_exchange_weak(head, slab.get(), std::memory_order_release));
  return slab.release();
}

StackSlot* StackClass::carve(GuardMode guard, std::error_code& error) noexcept {
  const bool usable = current_ &&
                      current_->carved.load(std::memory_order_relaxed) < current_->slots &&
                      !(guard == GuardMode::mprotect && current_->madvise_guard);
  if (!usable) {
    Slab* slab = map_slab(guard, error);
    if (!slab) return nullptr;
    current_ = slab;
  }
  StackSlot& slot = current_->slot[current_->carved.load(std::memory_order_relaxed)];
  if (!current_->madvise_guard && !MapReserve::hold()) {
    error = make_error_code(Errc::map_limit);
    return nullptr;
  }
  char* below = slot.low() - kGuard;
  const int failed = current_->madvise_guard ? ::madvise(below, kGuard, MADV_GUARD_INSTALL)
                                             : ::mprotect(below, kGuard, PROT_NONE);
  if (failed) {
    error = guard_error(errno);
    return nullptr;
  }
  current_->carved.fetch_add(1, std::memory_order_release);
  carved_total.fetch_add(1, std::memory_order_relaxed);
  return &slot;
}

StackSlot* StackClass::take(std::uint32_t count, GuardMode guard, std::error_code& error) noexcept {
  std::lock_guard hold(lock_);
  StackSlot* chain = nullptr;
  std::uint32_t taken = 0;
  while (taken < count && free_) {
    StackSlot* slot = free_;
    free_ = slot->next;
    slot->next = chain;
    chain = slot;
    ++taken;
  }
  free_count_ -= taken;
  in_classes.fetch_sub(taken, std::memory_order_relaxed);
  if (chain) return chain;
  // Fresh ones are carved a few at a time: each costs a system call for its guard.
  for (std::uint32_t fresh = std::min(count, 4u); taken < fresh; ++taken) {
    StackSlot* slot = carve(guard, error);
    if (!slot) break;
    slot->next = chain;
    chain = slot;
  }
  if (chain) error.clear();
  return chain;
}

void StackClass::give(StackSlot* first, StackSlot* last, std::uint32_t count) noexcept {
  std::lock_guard hold(lock_);
  last->next = free_;
  free_ = first;
  free_count_ += count;
  in_classes.fetch_add(count, std::memory_order_relaxed);
}

std::uint64_t StackClass::trim() noexcept {
  // The chain is taken out while its pages are dropped, so that takers are not held up by the
  // system calls; they carve meanwhile.
  std::uint32_t count;
  StackSlot* chain;
  {
    std::lock_guard hold(lock_);
    chain = std::exchange(free_, nullptr);
    count = std::exchange(free_count_, 0);
    in_classes.fetch_sub(count, std::memory_order_relaxed);
  }
  if (!chain) return 0;
  std::uint64_t trimmed = 0;
  StackSlot* last = chain;
  for (StackSlot* slot = chain; slot; last = slot, slot = slot->next) {
    trimmed += slot->touched;
    drop_pages(*slot);
  }
  give(chain, last, count);
  return trimmed;
}

StackClass* stack_class(std::size_t bytes) noexcept {
  if (bytes < kMinStack || bytes > kMaxStack) return nullptr;
  const std::size_t size = (bytes + kPage - 1) / kPage * kPage;
  StackClass* head = all_classes.load(std::memory_order_acquire);
  for (StackClass* cls = head; cls; cls = cls->next)
    if (cls->stack_size() == size) return cls;
  std::lock_guard hold(classes_lock);
  for (StackClass* cls = all_classes.load(std::memory_order_acquire); cls; cls = cls->next)
    if (cls->stack_size() == size) return cls;
  auto* cls = new (std::nothrow) StackClass(size);  // lives as long as the process
  if (!cls) return nullptr;
  cls->next = all_classes.load(std::memory_order_relaxed);
  all_classes.store(cls, std::memory_order_release);
  return cls;
}

StackCache::Entry* StackCache::find(StackClass* cls) noexcept {
  for (Entry& entry : entries_) {
    if (entry.cls == cls) return &entry;
    if (!entry.cls) {
      entry.cls = cls;
      return &entry;
    }
  }
  // More sizes than entries: the last entry changes hands.
  Entry& last = entries_[kEntries - 1];
  spill(last, 0);
  last.cls = cls;
  return &last;
}

StackSlot* StackCache::take(StackClass& cls, GuardMode guard, std::error_code& error) noexcept {
  Entry* entry = find(&cls);
  if (!entry->head) {
    entry->head = cls.take(kBatch, guard, error);
    if (!entry->head) return nullptr;
    for (StackSlot* slot = entry->head; slot; slot = slot->next)
      ++entry->count;
  }
  StackSlot* slot = entry->head;
  entry->head = slot->next;
  --entry->count;
  return slot;
}

void StackCache::give(StackSlot* slot) noexcept {
  Entry* entry = find(class_of(slot));
  slot->next = entry->head;
  entry->head = slot;
  dirty_ = true;
  if (++entry->count > kMost) spill(*entry, kMost / 2);
}

void StackCache::spill(Entry& entry, std::uint32_t keep) noexcept {
  if (entry.count <= keep) return;
  StackSlot** link = &entry.head;
  for (std::uint32_t i = 0; i < keep; ++i)
    link = &(*link)->next;
  StackSlot* first = *link;
  *link = nullptr;
  StackSlot* last = first;
  while (last->next)
    last = last->next;
  entry.cls->give(first, last, entry.count - keep);
  entry.count = keep;
}

void StackCache::flush() noexcept {
  for (Entry& entry : entries_)
    if (entry.cls) spill(entry, 0);
}

void StackCache::trim() noexcept {
  constexpr std::uint32_t kHot = 16;
  for (Entry& entry : entries_) {
    if (!entry.cls) continue;
    spill(entry, kHot);
    entry.cls->trim();
    // The hot ones keep the page that the next fiber touches first and lose what grew away from it.
    for (StackSlot* slot = entry.head; slot; slot = slot->next) {
      if (!slot->touched) continue;
      char* top_page = slot->high() - kPage;
      ::madvise(slot->low(), static_cast<std::size_t>(top_page - slot->low()), MADV_DONTNEED);
      if (slot->slab->room) ::madvise(slot->high(), slot->slab->room, MADV_DONTNEED);
    }
  }
  dirty_ = false;
}

void StackClass::fork(ForkStage stage) noexcept {
  stage == ForkStage::prepare ? lock_.lock_for_fork() : lock_.unlock_for_fork();
}

void fork_stack_pool(ForkStage stage) noexcept {
  if (stage == ForkStage::prepare) classes_lock.lock_for_fork();
  for (StackClass* cls = all_classes.load(std::memory_order_acquire); cls; cls = cls->next)
    cls->fork(stage);
  if (stage != ForkStage::prepare) classes_lock.unlock_for_fork();
}

namespace {
template <class Match>
StackSlot* find_slot(const void* address, Match match) noexcept {
  const auto* where = static_cast<const char*>(address);
  for (Slab* slab = first_slab(); slab; slab = slab->next) {
    if (where < slab->base || where >= slab->base + slab->size) continue;
    const auto offset = static_cast<std::size_t>(where - slab->base);
    StackSlot& slot = slab->slot[offset / slab->stride];
    return match(offset % slab->stride) ? &slot : nullptr;
  }
  return nullptr;
}
}  // namespace

StackSlot* slot_of_guard(const void* address) noexcept {
  return find_slot(address, [](std::size_t offset) { return offset < kGuard; });
}
StackSlot* slot_of_stack(const void* address) noexcept {
  return find_slot(address, [](std::size_t offset) { return offset >= kGuard; });
}

StackCounts stack_counts() noexcept {
  return {carved_total.load(std::memory_order_relaxed), in_classes.load(std::memory_order_relaxed),
          trimmed_total.load(std::memory_order_relaxed)};
}

}  // namespace runloom::detail
