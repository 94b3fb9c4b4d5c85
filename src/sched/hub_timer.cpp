#include "hub_timer.hpp"

#include <algorithm>
#include <mutex>

#include "hub_impl.hpp"

namespace runloom::detail {

HubTimer::HubTimer(Hub& hub) noexcept : home_(static_cast<HubImpl&>(hub).timer_home) {
  TimerNode::fire = &expired;
  Message::fn = &posted;
}

void HubTimer::release() noexcept {
  if (refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

bool HubTimer::is_set() const noexcept {
  std::lock_guard hold(lock_);
  return when_ != kNever;
}

bool HubTimer::start(std::int64_t when_ns, std::int64_t period_ns) noexcept {
  // Deadline::now() lies before the clock's zero, from where no time-out can be computed.
  return change(std::max<std::int64_t>(when_ns, 0), period_ns, true);
}

bool HubTimer::stop() noexcept {
  return change(kNever, 0, false);
}

bool HubTimer::change(std::int64_t when_ns, std::int64_t period_ns, bool taking_back) noexcept {
  HubImpl* hub = home_->hub.load(std::memory_order_relaxed);
  const bool here = hub && hub == tl_hub;
  bool was_set = false;
  bool posting = false;
  {
    std::lock_guard hold(lock_);
    was_set = when_ != kNever;
    when_ = when_ns;
    period_ = period_ns;
    if (taking_back) take_back();
    posting = !here && !in_flight_ && (was_set || when_ns != kNever);
    in_flight_ |= posting;
  }
  if (here) {
    follow(*hub);
  } else if (posting) {
    post();
  }
  return was_set;
}

void HubTimer::post() noexcept {
  refs_.fetch_add(1, std::memory_order_relaxed);
  {
    std::lock_guard hold(home_->lock);
    if (HubImpl* hub = home_->hub.load(std::memory_order_relaxed)) {
      hub->push(*this);
      return;
    }
  }
  release();
}

void HubTimer::posted(Hub& hub, Hub::Message& message) {
  auto& timer = static_cast<HubTimer&>(message);
  {
    std::lock_guard hold(timer.lock_);
    timer.in_flight_ = false;
  }
  timer.follow(static_cast<HubImpl&>(hub));
  timer.release();
}

// Makes the heap entry agree with `when_`. A later change comes with a message of its own.
void HubTimer::follow(HubImpl& hub) {
  std::int64_t when = 0;
  {
    std::lock_guard hold(lock_);
    when = when_;
  }
  const bool entered = TimerNode::armed();
  if (entered) {
    if (hub.timers.when(*this) == when) return;
    hub.disarm(*this);
  }
  if (when != kNever) {
    hub.arm(*this, Deadline::at_ns(when));
    if (!entered) refs_.fetch_add(1, std::memory_order_relaxed);
  } else if (entered) {
    release();
  }
}

// The entry has just left the heap; its reference is ours.
void HubTimer::expired(TimerNode& node) {
  auto& timer = static_cast<HubTimer&>(node);
  HubImpl& hub = *tl_hub;
  const std::int64_t now = hub.turn_ns();
  std::int64_t when = 0;
  {
    std::lock_guard hold(timer.lock_);
    if (timer.when_ <= now) {
      timer.fire(now);
      // The next multiple of the period: what was missed is skipped.
      timer.when_ = timer.period_ == 0
                        ? kNever
                        : timer.when_ + timer.period_ * ((now - timer.when_) / timer.period_ + 1);
    }
    when = timer.when_;
  }
  if (when != kNever) {
    hub.arm(timer, Deadline::at_ns(when));
  } else {
    timer.release();
  }
}

void HubTimer::hub_ends(HubImpl& hub) noexcept {
  {
    std::lock_guard hold(hub.timer_home->lock);
    hub.timer_home->hub.store(nullptr, std::memory_order_relaxed);
  }
  // What is still in the inbox will not be delivered.
  for (Message* next = hub.inbox.exchange(nullptr, std::memory_order_acquire); next;) {
    Message& message = *next;
    next = message.next;
    if (message.fn == &posted) static_cast<HubTimer&>(message).release();
  }
  while (!hub.timers.empty()) {
    TimerNode& node = hub.timers.front();
    hub.timers.remove(node);
    if (node.fire == &expired) static_cast<HubTimer&>(node).release();
  }
}

// Locks may be held by threads that do not exist here.
void HubTimer::hub_forks(HubImpl& hub, bool has_thread) noexcept {
  hub.timer_home->lock.unlock_for_fork();
  if (!has_thread) {
    hub.timer_home->hub.store(nullptr, std::memory_order_relaxed);
    hub.timer_home = std::make_shared<TimerHome>(&hub);
    return;
  }
  hub.timers.for_each([](TimerNode& node) {
    if (node.fire != &expired) return;
    auto& timer = static_cast<HubTimer&>(node);
    timer.lock_.unlock_for_fork();
    timer.in_flight_ = false;
  });
  for (Message* next = hub.inbox.load(std::memory_order_relaxed); next;) {
    Message& message = *next;
    next = message.next;
    if (message.fn != &posted) continue;
    static_cast<HubTimer&>(message).lock_.unlock_for_fork();
    posted(hub, message);
  }
}

}  // namespace runloom::detail
