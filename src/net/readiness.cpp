#include "readiness.hpp"

#include <mutex>
#include <utility>

#include "runloom/sched/fiber.hpp"
#include "runloom/sched/scheduler.hpp"

namespace runloom::net {

using detail::WaitNode;
using detail::WakeCode;

// ---------------------------------------------------------------- registration

ReadinessPoll::ReadinessPoll(bool follows_waiters)
    : home_(new PollHome(*this, Scheduler::current(), follows_waiters)),
      foreign_(std::make_unique<ForeignFds>(*this)) {
  enlist();
}

ReadinessPoll::~ReadinessPoll() = default;

void ReadinessPoll::retire() noexcept {
  delist();
  std::exchange(home_, nullptr)->retire();
}

void ReadinessPoll::renew() noexcept {
  if (!inherited()) return;
  auto* fresh = new PollHome(*this, home_->scheduler, home_->follows_waiters);
  std::exchange(home_, fresh)->retire();
  registered_.store(0, std::memory_order_relaxed);
  // Another thread may have been changing the old ones, and the waiters are gone.
  [[maybe_unused]] ForeignFds* abandoned = foreign_.release();
  foreign_ = std::make_unique<ForeignFds>(*this);
  reopen();
}

void ReadinessPoll::recover() noexcept {
  auto* fresh = new PollHome(*this, home_->scheduler, home_->follows_waiters);
  {
    std::lock_guard hold(list_mutex());  // whoever looks at all backends looks at their homes
    std::exchange(home_, fresh)->retire();
  }
  registered_.store(0, std::memory_order_relaxed);
  nudge_all();  // also those of other schedulers: they may have been watched here as guests
  foreign_->rearm_all();
}

// A PollDesc stays where it is if fibers of this scheduler can be woken from there. Else it moves:
// nothing is lost, because a fresh registration reports what is ready. But not while somebody waits
// on it there: then it is watched here as well, see is_guest().
Result<void> ReadinessPoll::adopt_slow(PollDesc& desc) {
  renew();
  PollHome* old;
  {
    std::lock_guard hold(desc.lock);
    if (desc.closed()) return fail(Errc::closed);
    old = desc.home.load(std::memory_order_relaxed);
    if (old == home_) return {};
    if (old && old->alive()) {
      const bool waited_on = desc.direction[kReadSide].waiter ||
                             desc.direction[kWriteSide].waiter || !desc.watchers.empty();
      if (waited_on || old->scheduler == home_->scheduler) return {};
    } else {
      desc.poll_index = 0;  // in the list of a backend that is gone
    }
    home_->add_reference();
    desc.reads_only.store(begins_reads_only(desc), std::memory_order_relaxed);
    desc.home.store(home_, std::memory_order_release);
  }
  if (old) {
    old->forget(desc);
    old->drop_reference();
    nudge(desc);  // a fiber of the old home's may have come there as a guest in between
  }
  registered_.fetch_add(1, std::memory_order_relaxed);
  auto armed = arm(desc);
  bool taken;  // closed, or moved on, while it was being registered
  {
    std::lock_guard hold(desc.lock);
    taken = desc.home.load(std::memory_order_relaxed) != home_;
    if (!armed && !taken) desc.home.store(nullptr, std::memory_order_relaxed);
  }
  if (armed) {
    if (taken) disarm(desc);
    return {};
  }
  if (!taken) {
    registered_.fetch_sub(1, std::memory_order_relaxed);
    home_->drop_reference();
    nudge(desc);  // who relied on this registration must make one of his own
  }
  if (revive_after(armed.error())) return adopt_slow(desc);
  return armed;
}

// The home belongs to another scheduler, which may stop running, or end, before the wait does. So
// the waiter sees to it that its own one watches, too. Asked under the PollDesc's lock by one who
// waits on it from then on: while somebody does, the home stays.
bool ReadinessPoll::is_guest(const PollHome& home) const noexcept {
  return &home != home_ && home.scheduler != home_->scheduler;
}

// Whether the home has to hear of a waiter for these directions.
bool ReadinessPoll::must_announce(const PollHome& home, const PollDesc& desc,
                                  unsigned directions) noexcept {
  return home.follows_waiters ||
         ((directions & kWrite) != 0 && desc.reads_only.load(std::memory_order_relaxed));
}

Result<void> ReadinessPoll::come_as_guest(PollDesc& desc) {
  guests_ = true;
  auto armed = arm_guest(desc);
  if (!armed && revive_after(armed.error())) armed = arm_guest(desc);
  return armed;
}

// ---------------------------------------------------------------- waits

Result<WakeCode> ReadinessPoll::await_event(PollDesc& desc, Side side, std::uint32_t seen,
                                            WaitReason reason, Deadline deadline) {
  if (auto adopted = adopt(desc); !adopted) return Unexpected{adopted.error()};
  PollDesc::Direction& direction = desc.direction[side];
  PollHome* follower = nullptr;
  desc.lock.lock();
  if (desc.closed()) {
    desc.lock.unlock();
    return WakeCode{detail::kWakeClosed};
  }
  PollHome* home = desc.home.load(std::memory_order_relaxed);
  if (direction.seq.load(std::memory_order_relaxed) != seen || !home) {
    desc.lock.unlock();
    return WakeCode{kWakeEvent};
  }
  WaitNode node(detail::begin_wait(), kWakeEvent);
  direction.waiter = &node;
  if (side == kReadSide && desc.reader_node.load(std::memory_order_relaxed) != &node) {
    desc.reader.store(node.token.waiter, std::memory_order_relaxed);
    desc.reader_node.store(&node, std::memory_order_relaxed);
  }
  const bool guest = is_guest(*home);
  if (must_announce(*home, desc, direction_of(side))) {
    follower = home;
    follower->add_reference();
  }
  desc.lock.unlock();
  if (follower) {
    follower->announce(desc);
    follower->drop_reference();
  }
  if (guest) {
    const auto armed = come_as_guest(desc);
    if (!armed && detail::try_abandon(node.token)) {
      std::lock_guard hold(desc.lock);
      if (direction.waiter == &node) direction.waiter = nullptr;
      return Unexpected{armed.error()};
    }
  }
  const WakeCode code = detail::wait(
      node.token,
      {.reason = reason, .object = desc.shown(), .deadline = deadline, .external = true});
  if (code < kWakeEvent) {
    std::lock_guard hold(desc.lock);
    if (direction.waiter == &node) direction.waiter = nullptr;
  }
  return code;
}

Result<void> ReadinessPoll::link(PollDesc& desc, WaitNode& node) {
  for (;;) {
    if (auto adopted = adopt(desc); !adopted) return adopted;
    PollHome* follower = nullptr;
    bool guest;
    {
      std::lock_guard hold(desc.lock);
      if (desc.closed()) return fail(Errc::closed);
      PollHome* home = desc.home.load(std::memory_order_relaxed);
      if (!home || !home->alive()) continue;  // the registration has just failed, or got lost
      desc.watchers.push_back(node);
      guest = is_guest(*home);
      if (must_announce(*home, desc, watch_of(node).directions)) {
        follower = home;
        follower->add_reference();
      }
    }
    if (follower) {
      follower->announce(desc);
      follower->drop_reference();
    }
    // Where the kernel refuses, the home has to do: the node may have been claimed already.
    if (guest) (void)come_as_guest(desc);
    return {};
  }
}

void ReadinessPoll::unlink(PollDesc& desc, WaitNode& node) noexcept {
  std::lock_guard hold(desc.lock);
  desc.watchers.remove_if_linked(node);
}

// True when the last attempt of each direction found it drained and no event has come since.
bool ReadinessPoll::known_drained(const PollDesc& desc, unsigned directions) noexcept {
  for (const Side side : {kReadSide, kWriteSide}) {
    const PollDesc::Direction& direction = desc.direction[side];
    if ((directions & direction_of(side)) && direction.seq.load(std::memory_order_acquire) !=
                                                 direction.drained.load(std::memory_order_relaxed))
      return false;
  }
  return true;
}

Result<WakeCode> ReadinessPoll::await_watch(PollDesc& desc, Watch& watch, Deadline deadline) {
  WaitNode node(detail::begin_wait(), kWakeEvent);
  node.data = &watch;
  if (auto linked = link(desc, node); !linked) {
    detail::try_abandon(node.token);
    return Unexpected{linked.error()};
  }
  // Linked first, then looked at: an event in between is not lost.
  std::error_code error;
  unsigned ready = 0;
  if (!known_drained(desc, watch.directions)) {
    const auto polled = poll_now(desc.fd, watch.directions);
    if (polled) {
      ready = *polled;
    } else {
      error = polled.error();
    }
  }
  WakeCode code = kWakeEvent;
  const bool decided = (ready != 0 || error) && detail::try_abandon(node.token);
  if (!decided)
    code = detail::wait(node.token, {.reason = WaitReason::io_poll,
                                     .object = desc.shown(),
                                     .deadline = deadline,
                                     .external = true});
  unlink(desc, node);
  if (decided && error) return Unexpected{error};
  if (decided) watch.ready = ready;
  return watch.ended != detail::kWakePending ? watch.ended : code;
}

// ---------------------------------------------------------------- descriptors that are not ours

Result<unsigned> ReadinessPoll::poll_foreign(int fd, unsigned directions, Deadline deadline) {
  auto ready = foreign().wait(fd, directions, deadline);
  if (!ready && revive_after(ready.error())) ready = foreign().wait(fd, directions, deadline);
  return ready;
}

}  // namespace runloom::net
