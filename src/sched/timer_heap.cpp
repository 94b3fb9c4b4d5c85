#include "timer_heap.hpp"

namespace runloom::detail {

void TimerHeap::insert(TimerNode& node, std::int64_t when_ns) {
  heap_.push_back({});
  sift_up(static_cast<std::uint32_t>(heap_.size() - 1), {when_ns, ++sequence_, &node});
}

void TimerHeap::remove(TimerNode& node) noexcept {
  const std::uint32_t position = node.position;
  node.position = TimerNode::kUnarmed;
  const Entry last = heap_.back();
  heap_.pop_back();
  if (last.node == &node) return;
  if (position > 0 && last.before(heap_[(position - 1) / 4])) {
    sift_up(position, last);
  } else {
    sift_down(position, last);
  }
  // Many cancelled timers must not keep the memory of their peak.
  if (heap_.capacity() > 4096 && heap_.size() < heap_.capacity() / 8) heap_.shrink_to_fit();
}

void TimerHeap::sift_up(std::uint32_t position, Entry entry) noexcept {
  while (position > 0) {
    const std::uint32_t parent = (position - 1) / 4;
    if (!entry.before(heap_[parent])) break;
    place(position, heap_[parent]);
    position = parent;
  }
  place(position, entry);
}

void TimerHeap::sift_down(std::uint32_t position, Entry entry) noexcept {
  const auto size = static_cast<std::uint32_t>(heap_.size());
  for (;;) {
    const std::uint32_t first = position * 4 + 1;
    if (first >= size) break;
    std::uint32_t best = first;
    const std::uint32_t end = first + 4 < size ? first + 4 : size;
    for (std::uint32_t child = first + 1; child < end; ++child)
      if (heap_[child].before(heap_[best])) best = child;
    if (!heap_[best].before(entry)) break;
    place(position, heap_[best]);
    position = best;
  }
  place(position, entry);
}

}  // namespace runloom::detail
