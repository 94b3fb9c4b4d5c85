#include "runloom/sched/timer.hpp"

#include "hub_timer.hpp"
#include "runloom/sched/check.hpp"

namespace runloom {
namespace detail {

// The value is sent under the timer's lock, so that stop() and reset() know for certain on which
// side of it they are. The send never parks: the channel has room for one, and drops the rest.
class TimerState final : public HubTimer {
 public:
  explicit TimerState(Hub& hub) : HubTimer(hub) {}
  Channel<std::int64_t> channel{1};

 private:
  void fire(std::int64_t now_ns) noexcept override { (void)channel.try_send(now_ns); }
  void take_back() noexcept override { (void)channel.try_recv(); }
};

TimerHandle::TimerHandle(Hub* hub) {
  if (!hub) hub = Hub::current();
  RUNLOOM_CHECK(hub, "a timer made on a thread without a hub needs one given");
  state_ = new TimerState(*hub);
}

TimerHandle::~TimerHandle() {
  if (!state_) return;
  state_->stop();
  state_->release();
}

Channel<std::int64_t>& TimerHandle::channel() noexcept {
  return state_->channel;
}
bool TimerHandle::stop() noexcept {
  return state_->stop();
}
bool TimerHandle::armed() const noexcept {
  return state_->is_set();
}
bool TimerHandle::restart(Deadline first, std::int64_t period_ns) noexcept {
  return state_->start(first.ns(), period_ns);
}

}  // namespace detail

void Ticker::reset(std::chrono::nanoseconds period) noexcept {
  RUNLOOM_CHECK(period.count() > 0, "the period of a ticker must be above zero");
  restart(Deadline::after(period), period.count());
}

}  // namespace runloom
