#include "runloom/sched/spin_lock.hpp"

#include <sched.h>

#include <cstdio>
#include <cstdlib>

namespace runloom::detail {
namespace {

// Ranks held by this thread, in the order taken.
constexpr int kMostHeld = 8;
thread_local std::uint8_t held[kMostHeld];
thread_local int held_count = 0;

}  // namespace

void spin_wait(const std::atomic<std::uint8_t>& state) noexcept {
  // The holder runs tens of instructions, unless its thread lost the processor.
  for (int i = 0; i < 200; ++i) {
    if (state.load(std::memory_order_relaxed) == 0) return;
    __builtin_ia32_pause();
  }
  ::sched_yield();
}

void lock_tried(LockRank rank) noexcept {
  if (held_count == kMostHeld) std::abort();
  held[held_count++] = static_cast<std::uint8_t>(rank);
}

void lock_acquired(LockRank rank) noexcept {
  const auto value = static_cast<std::uint8_t>(rank);
  if (held_count > 0 && held[held_count - 1] >= value) {
    std::fprintf(stderr, "runloom: lock of rank %d taken while rank %d is held\n", value,
                 held[held_count - 1]);
    std::abort();
  }
  lock_tried(rank);
}

void lock_released(LockRank rank) noexcept {
  const auto value = static_cast<std::uint8_t>(rank);
  for (int i = held_count - 1; i >= 0; --i) {
    if (held[i] != value) continue;
    for (int k = i + 1; k < held_count; ++k)
      held[k - 1] = held[k];
    --held_count;
    return;
  }
}

void check_no_lock_held(const char* where) noexcept {
  if (held_count == 0) return;
  std::fprintf(stderr, "runloom: %s with a spin lock of rank %d held\n", where,
               held[held_count - 1]);
  std::abort();
}

}  // namespace runloom::detail
