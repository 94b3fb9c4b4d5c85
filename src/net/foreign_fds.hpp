// ForeignFds: the waits of one hub on descriptors that are not ours. One entry a descriptor while
// somebody waits on it, registered one-shot for the directions of all its waiters together.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "poll_desc.hpp"

namespace runloom::net {

struct ForeignFd {
  int fd = -1;
  std::uint32_t id = 0;      // tells an event of this entry from one of an earlier entry
  unsigned armed = 0;        // the directions that the kernel watches for now
  bool registered = false;   // the kernel knows it, armed or not
  detail::WaitList waiters;  // each with a Watch
  unsigned wanted() const noexcept { return watched_directions(waiters); }
};

// What a backend does for foreign descriptors. On the hub's thread.
class ForeignKernel {
 public:
  // Watches for the entry's wanted() directions until one event has come.
  virtual Result<void> arm_foreign(ForeignFd& entry) = 0;
  virtual void disarm_foreign(ForeignFd& entry) noexcept = 0;

 protected:
  ~ForeignKernel() = default;
};

class ForeignFds {
 public:
  explicit ForeignFds(ForeignKernel& kernel) noexcept : kernel_(kernel) {}
  ForeignFds(const ForeignFds&) = delete;
  ForeignFds& operator=(const ForeignFds&) = delete;

  // --- on the hub's thread ---
  // Adds a node with a Watch. Fails with what the kernel says (EBADF, EPERM for what can't be
  // watched), EBUSY when a live Fd owns the number.
  Result<void> link(int fd, detail::WaitNode& node);
  // Parks until the descriptor is ready; returns the ready ones of `directions`.
  Result<unsigned> wait(int fd, unsigned directions, Deadline deadline);
  // When the wait is over, however it ended: removes the node, and the entry with the last one.
  void settle(int fd, detail::WaitNode& node) noexcept;
  // An event. Dropped when the entry is another one by now.
  void event(int fd, std::uint32_t id, unsigned ready) noexcept;
  // The kernel has forgotten all of them: they are armed anew.
  void rearm_all() noexcept;
  // Calls fn(entry) for each that is armed.
  template <class Fn>
  void for_each_armed(Fn&& fn) {
    std::lock_guard hold(mutex_);
    for (const auto& [fd, entry] : entries_)
      if (entry.armed != 0) fn(entry);
  }

  // --- any thread ---
  // Claims the waiters of `fd` with `code`, to be scheduled by the caller.
  void claim(int fd, detail::WakeCode code, std::vector<detail::Waiter*>& claimed);
  bool empty() const noexcept { return count_.load(std::memory_order_relaxed) == 0; }

 private:
  using Entries = std::unordered_map<int, ForeignFd>;
  void drop(Entries::iterator entry) noexcept;
  bool rearm(ForeignFd& entry) noexcept;

  ForeignKernel& kernel_;
  std::mutex mutex_;  // guards what follows
  Entries entries_;
  std::uint32_t next_id_ = 0;
  std::atomic<std::size_t> count_{0};
};

}  // namespace runloom::net
