// The frames of a suspended stack, by its frame pointers. What was compiled without them ends the
// walk: the library has them, most of a language's runtime below it has not.
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "context.hpp"
#include "runloom/sched/scheduler.hpp"
#include "scheduler_impl.hpp"
#include "symbolize.hpp"

namespace runloom {
namespace {

constexpr std::size_t kMostFrames = 64;

bool is_code(std::uintptr_t address) noexcept {
  Dl_info info{};
  return ::dladdr(reinterpret_cast<void*>(address), &info) != 0;
}

// A stack that nobody runs on; words of it that the sanitizer keeps apart are read as well.
class Stack {
 public:
  Stack(const void* pointer, const char* end) noexcept
      : low_(reinterpret_cast<std::uintptr_t>(pointer)),
        high_(reinterpret_cast<std::uintptr_t>(end)) {}

  // A place for a frame: the caller's frame pointer, and the return address.
  bool holds(std::uintptr_t frame) const noexcept {
    return frame >= low_ && frame % sizeof(void*) == 0 && frame <= high_ - 2 * sizeof(void*);
  }
#if defined(__GNUC__)
  __attribute__((no_sanitize("address", "thread")))
#endif
  static std::uintptr_t
  word(std::uintptr_t at) noexcept {
    return *reinterpret_cast<const volatile std::uintptr_t*>(at);
  }
  static std::uintptr_t return_address(std::uintptr_t frame) noexcept {
    return word(frame + sizeof(void*));
  }

  // The frame pointer of the function that made the switch is among the registers that
  // jump_fcontext has saved at the stack pointer; where, depends on Boost's version. Another
  // register may point to a frame, too, but to one further up, or to what is none.
  static constexpr std::size_t kSaved = 12;
  std::uintptr_t saved(std::size_t index) const noexcept {
    const std::uintptr_t at = low_ + index * sizeof(void*);
    return holds(at) ? word(at) : 0;
  }

 private:
  std::uintptr_t low_, high_;
};

std::vector<void*> walk_from(const Stack& stack, std::uintptr_t frame) {
  std::vector<void*> out;
  while (stack.holds(frame) && out.size() < kMostFrames) {
    const std::uintptr_t code = Stack::return_address(frame);
    if (!is_code(code)) break;
    out.push_back(reinterpret_cast<void*>(code));
    const std::uintptr_t above = Stack::word(frame);
    if (above <= frame) break;
    frame = above;
  }
  return out;
}

// The longest walk begins at the innermost frame.
std::vector<void*> walk(const Stack& stack) {
  std::vector<void*> longest;
  for (std::size_t i = 0; i < Stack::kSaved; ++i) {
    auto frames = walk_from(stack, stack.saved(i));
    if (frames.size() > longest.size()) longest = std::move(frames);
  }
  return longest;
}

// A program's fibers wait in few places, and to name one is to read the object's symbols. Whoever
// finds another at it reads for himself: that one may be a thread that a fork has left behind.
class Names {
 public:
  std::string of(void* frame) {
    const std::unique_lock hold(mutex_, std::try_to_lock);
    if (!hold) return detail::describe_frame(frame, true);
    if (const auto at = known_.find(frame); at != known_.end()) return at->second;
    if (known_.size() >= kMost) known_.clear();
    return known_.emplace(frame, detail::describe_frame(frame, true)).first->second;
  }

 private:
  static constexpr std::size_t kMost = 4096;
  std::mutex mutex_;
  std::unordered_map<void*, std::string> known_;
};

Names& names() {
  static auto* const all = new Names;  // used until the process ends
  return *all;
}

}  // namespace

std::vector<std::string> Scheduler::parked_stack(FiberId id) const {
  const void* pointer = nullptr;
  const char* end = nullptr;
  detail::for_each_slot([&](detail::StackSlot& slot) {
    if (slot.id.load(std::memory_order_relaxed) != id) return;
    detail::with_fiber(slot, this, [&](const detail::Fiber& fiber) {
      const auto state = fiber.state.load(std::memory_order_relaxed);
      if (state != detail::FiberState::parked && state != detail::FiberState::runnable) return;
      pointer = fiber.context.stack_pointer();
      end = static_cast<const char*>(fiber.frame);
    });
  });
  std::vector<std::string> out;
  if (!pointer) return out;
  const std::vector<void*> frames = walk(Stack(pointer, end));
  out.reserve(frames.size());
  for (void* frame : frames)
    out.push_back(names().of(frame));
  return out;
}

}  // namespace runloom
