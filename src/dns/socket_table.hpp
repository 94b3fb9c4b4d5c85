// SocketTable: the numbers of sockets that are open now, readable at any moment, so that a forked
// child can close what its parent was using (I9) without looking at anything that another thread
// may have been changing. A number that finds no room stays open there.
#pragma once

#include <unistd.h>

#include <array>
#include <atomic>

namespace runloom::dns {

class SocketTable {
 public:
  void add(int fd) noexcept {
    for (auto& slot : slots_) {
      int free = 0;
      if (slot.compare_exchange_strong(free, fd + 1, std::memory_order_relaxed)) return;
    }
  }
  void remove(int fd) noexcept {
    for (auto& slot : slots_) {
      int taken = fd + 1;
      if (slot.compare_exchange_strong(taken, 0, std::memory_order_relaxed)) return;
    }
  }
  void close_all() noexcept {
    for (auto& slot : slots_)
      if (const int taken = slot.exchange(0, std::memory_order_relaxed); taken > 0)
        ::close(taken - 1);
  }

 private:
  std::array<std::atomic<int>, 64> slots_{};  // a number plus one; 0: free
};

}  // namespace runloom::dns
