// Timer and Ticker: points in time as values in a channel, for select() and recv().
//
//     Timer idle(30s);
//     RecvCase request(requests);
//     RecvCase expired(idle.channel());
//     auto fired = select({&request, &expired});
//
// A single wait needs neither: give it a Deadline.
//
// A timer belongs to a hub, the calling thread's or a given one, and fires while that scheduler
// runs; never early. Once the scheduler has ended it never fires. Any thread may stop and reset
// it. It does not keep Scheduler::run() from returning.
#pragma once

#include <chrono>
#include <cstdint>
#include <utility>

#include "runloom/sched/channel.hpp"
#include "runloom/sched/deadline.hpp"

namespace runloom {

class Hub;

namespace detail {
class TimerState;

// A handle of a timer; move-only.
class TimerHandle {
 public:
  // With capacity for one: the nanoseconds of monotonic_ns() at which the timer fired. Lives as
  // long as the timer; nobody may wait in it when that is destroyed.
  Channel<std::int64_t>& channel() noexcept;
  // True when it was going to fire; then it does not, and it brings nothing. False: it had fired,
  // and what it brought is, or was, in the channel; or it was stopped already.
  bool stop() noexcept;
  // Whether it is going to fire (again).
  bool armed() const noexcept;

 protected:
  // Null: the calling thread's hub, and there must be one.
  explicit TimerHandle(Hub* hub);
  TimerHandle(TimerHandle&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
  TimerHandle& operator=(TimerHandle&& other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }
  ~TimerHandle();
  // Starts afresh, as if just made: takes back what is unreceived.
  bool restart(Deadline first, std::int64_t period_ns) noexcept;

 private:
  TimerState* state_;
};
}  // namespace detail

// Fires once.
class Timer : public detail::TimerHandle {
 public:
  explicit Timer(Deadline when = {}, Hub* hub = nullptr) : TimerHandle(hub) { reset(when); }
  template <class Rep, class Period>
  explicit Timer(std::chrono::duration<Rep, Period> after, Hub* hub = nullptr)
      : Timer(Deadline::after(after), hub) {}

  // Fires at `when` (never: not at all), and for no earlier reason: a value that was not received
  // yet is taken back. True when it was going to fire.
  bool reset(Deadline when) noexcept { return restart(when, 0); }
};

// Fires every `period`, which is above zero. It keeps to multiples of the period and skips those
// that are past, and the value is dropped while an earlier one has not been received: a receiver
// that comes late finds one.
class Ticker : public detail::TimerHandle {
 public:
  explicit Ticker(std::chrono::nanoseconds period, Hub* hub = nullptr) : TimerHandle(hub) {
    reset(period);
  }
  // Fires one period from now, and so on; a value that was not received yet is taken back.
  void reset(std::chrono::nanoseconds period) noexcept;
};

}  // namespace runloom
