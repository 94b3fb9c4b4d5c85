// FileRing: an io_uring for operations on files, of a hub whose network is not on one. It signals
// the hub's own wake-up, also when it only has work for the hub's thread that leads to completions
// (DEFER_TASKRUN), see io_uring_register_eventfd(3).
//
// Everything belongs to the hub's thread (I2), but where it says otherwise.
#pragma once

#include <cstdint>
#include <memory>

#include "uring.hpp"

namespace runloom::net {

class FileRing {
 public:
  // Made when first asked for, to signal the eventfd `wake`. Null: there is none, as when the
  // kernel refuses one; stderr says so once, and it is not asked again.
  Uring* get(int wake) noexcept;

  // Hands over what was started and cancelled since, and delivers what has come; how many
  // completions that were. Once a loop turn, before the hub may sleep.
  int submit() noexcept { return ring_ && ring_->has_work() ? turn() : 0; }
  // Delivers what has come, of which the eventfd may have told.
  int turn() noexcept;
  // Whether a turn has something to do, so that the hub must not sleep.
  bool has_work() const noexcept { return ring_ && ring_->has_work(); }
  // Whether something is in flight, so that the poller must be asked now and then.
  bool busy() const noexcept { return ring_ && ring_->in_flight() != 0; }
  // True when the poller can't hear of the ring any more (its eventfd is lost): it calls turn()
  // itself then, and sleeps no longer than this.
  bool is_blind() const noexcept { return blind_; }
  std::int64_t most_sleep(std::int64_t timeout_ns) const noexcept;

  // The hub leaves its thread, see Driver::leave_thread().
  void leave_thread() noexcept;
  // In a forked child: what is in flight is the parent's.
  void abandon() noexcept;
  // Other code has closed our descriptors. What is in flight goes on, the rest gets a new ring.
  void lost() noexcept;

 private:
  std::unique_ptr<Uring> ring_;
  bool refused_ = false;
  bool blind_ = false;  // the eventfd that it signals is lost
};

}  // namespace runloom::net
