#include "map_reserve.hpp"

#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "stack_pool.hpp"

namespace runloom::detail {
namespace {

constexpr std::size_t kSize = MapReserve::kMaps * kPage;

enum class State : std::uint8_t { gone, changing, held };
std::atomic<State> state{State::gone};
void* memory = nullptr;  // of who has made it `changing`

// Neighbours that differ in protection are maps of their own.
bool make() noexcept {
  memory = ::mmap(nullptr, kSize, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return false;
  for (std::size_t at = 0; at < kSize; at += 2 * kPage) {
    if (::mprotect(static_cast<char*>(memory) + at, kPage, PROT_READ) == 0) continue;
    ::munmap(memory, kSize);
    return false;
  }
  return true;
}

}  // namespace

bool MapReserve::hold() noexcept {
  State seen = State::gone;
  if (!state.compare_exchange_strong(seen, State::changing, std::memory_order_acquire))
    return true;  // it is there, or somebody sees to it
  const bool made = make();
  state.store(made ? State::held : State::gone, std::memory_order_release);
  return made;
}

void MapReserve::release() noexcept {
  State seen = State::held;
  if (!state.compare_exchange_strong(seen, State::changing, std::memory_order_acquire)) return;
  ::munmap(memory, kSize);
  state.store(State::gone, std::memory_order_release);
}

}  // namespace runloom::detail
