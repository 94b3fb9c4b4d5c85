// The stall watchdog of a scheduler: a thread that reports a fiber which has kept its hub for
// longer than Options::stall_threshold, once per stall, with the C++ stack it is on.
//
// It samples what each hub runs; a sample that did not change for the threshold is a stall. While
// every hub sleeps it sleeps too, on a futex, and the first hub to wake up wakes it.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "runloom/sched/scheduler.hpp"

namespace runloom::detail {

struct HubImpl;
struct Fiber;

class Watchdog {
 public:
  Watchdog(Scheduler::Impl& impl, std::chrono::milliseconds threshold);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // The calling thread runs `hub` from now on. Starts the watchdog's own thread; without one
  // (thread limit) nothing is watched.
  void watch_this_thread(const HubImpl& hub);
  // A hub has work. Any thread; cheap unless the watchdog sleeps.
  void wake() noexcept;
  // In a forked child: the thread is gone; the next watch_this_thread starts another.
  void after_fork() noexcept;

 private:
  enum State : std::uint32_t { kWatching, kAsleep, kStopped };
  // What a hub was seen doing, and since when.
  struct Seen {
    const Fiber* fiber = nullptr;
    std::uint64_t turns = 0;
    int budget = 0;
    std::int64_t since_ns = 0;
    bool reported = false;
    bool same_run(const Seen& other) const noexcept {
      return fiber == other.fiber && turns == other.turns && budget == other.budget;
    }
  };

  void loop();
  bool all_asleep() const noexcept;
  void look(HubImpl& hub, Seen& seen);
  void report(HubImpl& hub, const Seen& seen);
  void wait(State expected, const std::int64_t* timeout_ns) noexcept;

  Scheduler::Impl& impl_;
  const std::int64_t threshold_ns_;
  std::unique_ptr<std::atomic<pid_t>[]> threads_;  // of each hub
  std::vector<Seen> seen_;                         // of each hub
  std::atomic<std::uint32_t> state_{kWatching};    // futex
  std::thread thread_;
};

}  // namespace runloom::detail
