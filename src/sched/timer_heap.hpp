// The timers of a hub: a 4-ary heap that knows where each node stands, so that cancelling frees
// the entry at once. Touched only on the hub's thread (I2). Equal times fire in insertion order.
#pragma once

#include <cstdint>
#include <vector>

namespace runloom::detail {

struct TimerNode {
  static constexpr std::uint32_t kUnarmed = ~std::uint32_t{0};
  void (*fire)(TimerNode& node) = nullptr;  // already removed from the heap; must not run user code
  std::uint32_t position = kUnarmed;
  bool armed() const noexcept { return position != kUnarmed; }
};

class TimerHeap {
 public:
  bool empty() const noexcept { return heap_.empty(); }
  std::size_t size() const noexcept { return heap_.size(); }
  // Time of the earliest timer; only when not empty.
  std::int64_t next_ns() const noexcept { return heap_[0].when; }
  TimerNode& front() noexcept { return *heap_[0].node; }
  std::int64_t when(const TimerNode& node) const noexcept { return heap_[node.position].when; }
  void insert(TimerNode& node, std::int64_t when_ns);
  void remove(TimerNode& node) noexcept;
  template <class Fn>
  void for_each(Fn&& fn) {  // must not insert or remove
    for (const Entry& entry : heap_)
      fn(*entry.node);
  }
  // Fires all timers due at `now_ns`, in (time, insertion) order.
  void expire(std::int64_t now_ns) {
    while (!heap_.empty() && heap_[0].when <= now_ns) {
      TimerNode& node = *heap_[0].node;
      remove(node);
      node.fire(node);
    }
  }

 private:
  struct Entry {
    std::int64_t when;
    std::uint64_t sequence;
    TimerNode* node;
    bool before(const Entry& other) const noexcept {
      return when != other.when ? when < other.when : sequence < other.sequence;
    }
  };
  void place(std::uint32_t position, const Entry& entry) noexcept {
    heap_[position] = entry;
    entry.node->position = position;
  }
  void sift_up(std::uint32_t position, Entry entry) noexcept;
  void sift_down(std::uint32_t position, Entry entry) noexcept;

  std::vector<Entry> heap_;
  std::uint64_t sequence_ = 0;
};

}  // namespace runloom::detail
