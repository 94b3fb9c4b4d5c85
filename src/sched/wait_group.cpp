#include "runloom/sched/wait_group.hpp"

#include <mutex>

#include "runloom/sched/check.hpp"
#include "wait_list.hpp"

namespace runloom {

WaitGroup::~WaitGroup() {
  RUNLOOM_CHECK(waiters_.empty(), "a wait group was destroyed while somebody waits for it");
}

Result<void> WaitGroup::try_add(std::int64_t delta) noexcept {
  detail::WakeBatch woken;
  {
    std::lock_guard hold(lock_);
    std::int64_t sum = 0;
    if (__builtin_add_overflow(count_, delta, &sum) || sum < 0) return fail(Errc::over_release);
    count_ = sum;
    if (sum == 0) woken.claim_all(waiters_);
  }
  woken.schedule();
  return {};
}

void WaitGroup::add(std::uint32_t count) noexcept {
  const bool fitted = try_add(count).has_value();
  RUNLOOM_CHECK(fitted, "the counter of a wait group overflowed");
}

void WaitGroup::done(std::uint32_t count) noexcept {
  const bool fitted = try_add(-std::int64_t{count}).has_value();
  RUNLOOM_CHECK(fitted, "the counter of a wait group fell below zero");
}

Result<void> WaitGroup::wait(Deadline deadline) {
  lock_.lock();
  if (count_ == 0) {
    lock_.unlock();
    return {};
  }
  return detail::wait_result(detail::park_in(
      waiters_, lock_, {.reason = WaitReason::wait_group, .object = this, .deadline = deadline}));
}

std::int64_t WaitGroup::count() const noexcept {
  std::lock_guard hold(lock_);
  return count_;
}

}  // namespace runloom
