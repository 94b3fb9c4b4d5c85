// The handlers of a server that run: counted, so that the server can wait for their end, and
// listed, so that it can bring the end about.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "runloom/net/fd.hpp"
#include "runloom/sched/deadline.hpp"
#include "runloom/sched/event.hpp"
#include "runloom/sched/fiber.hpp"
#include "runloom/sched/mutex.hpp"
#include "runloom/sched/wait_group.hpp"

namespace runloom::net {

class ConnectionSet {
  struct List;

 public:
  // A handler that runs, on its fiber's stack. Made and destroyed on that fiber.
  class Entry {
   public:
    Entry(ConnectionSet& set, const Fd& socket);
    ~Entry();
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    friend class ConnectionSet;
    void cancel();

    ConnectionSet& set_;
    Entry* prev_ = nullptr;
    Entry* next_ = nullptr;
    List& list_;
    const FiberHandle fiber_;
    const Fd::Weak socket_;
  };

  ConnectionSet() = default;
  ConnectionSet(const ConnectionSet&) = delete;
  ConnectionSet& operator=(const ConnectionSet&) = delete;
  // Before the first begin().
  void open(int hubs);

  // Around the life of a handler's fiber, from before its spawn to the last thing it does with the
  // server: the set may be gone when end() returns.
  void begin() noexcept;
  void end() noexcept;
  std::uint64_t active() const noexcept { return active_.load(std::memory_order_relaxed); }

  // Parks until no handler is left, or `deadline()` has passed: then false. Not a cancel point
  // under a Shield. look() makes it ask for the deadline again.
  template <class F>
  bool wait(F&& deadline) {
    waited_for_.store(true);
    while (active_.load() > 0) {
      changed_.clear();
      if (active_.load() == 0) break;
      const Deadline until = deadline();
      if (!changed_.wait(until) && until.passed()) return active_.load() == 0;
    }
    return true;
  }
  void look() noexcept { changed_.set(); }

  // Cancels the handlers there are, and those that begin later.
  void cancel();
  std::uint64_t cancelled() const noexcept { return cancelled_.load(std::memory_order_relaxed); }
  // Closes their sockets.
  void close();
  // Parks until each end() is done with the set.
  void join();

 private:
  // Each hub lists its own, so that connections meet a lock that only a stop contends for.
  struct List {
    Mutex mutex;
    Entry* head = nullptr;
    bool cancelled = false;
  };

  std::vector<List> lists_;
  std::atomic<std::uint64_t> active_{0};
  std::atomic<std::uint64_t> cancelled_{0};
  std::atomic<bool> waited_for_{false};
  Event changed_;
  WaitGroup fibers_;
};

}  // namespace runloom::net
