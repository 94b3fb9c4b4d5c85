// ThreadWake: how a wait of an OS thread in poll(2) is broken off. One eventfd a thread, made when
// the thread first waits, closed when it ends.
#pragma once

#include <atomic>

#include "poll_home.hpp"

namespace runloom::net {

class ThreadWake {
 public:
  // The calling thread's; its number is -1 when no eventfd can be had.
  static ThreadWake& mine() noexcept;
  int number() const noexcept { return fd_; }
  // Makes the thread's poll(2) return. Any thread, while the wait is claimed and not scheduled.
  void signal() noexcept;
  void clear() noexcept;
  // Its descriptor was closed by other code; the next wait makes a new one.
  void forget() noexcept;

  ThreadWake() = default;
  ~ThreadWake();
  ThreadWake(const ThreadWake&) = delete;
  ThreadWake& operator=(const ThreadWake&) = delete;

 private:
  // Atomic only so that the destructor's last word is kept: thread-local objects that are destroyed
  // later may wait still, and would use a number that is somebody else's by then.
  std::atomic<int> fd_{-1};
  unsigned fork_generation_ = 0;
};

}  // namespace runloom::net
