#include "runloom/sched/semaphore.hpp"

#include <mutex>

#include "runloom/sched/check.hpp"
#include "wait_list.hpp"

namespace runloom {
namespace {

void* to_data(std::uint32_t count) noexcept {
  return reinterpret_cast<void*>(std::uintptr_t{count});
}
std::uint32_t wanted(const detail::WaitNode& node) noexcept {
  return static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(node.data));
}

// Gives permits to the waiters at the front for as long as they suffice. Under the lock. A waiter
// whose wait has ended otherwise is dropped and takes nothing.
void grant(detail::WaitList& waiters, std::uint32_t& permits, detail::WakeBatch& woken) noexcept {
  while (detail::WaitNode* first = waiters.front()) {
    if (wanted(*first) > permits) return;
    waiters.remove(*first);
    if (!detail::claim(first->token, first->code)) continue;
    permits -= wanted(*first);
    woken.add(*first);
  }
}

}  // namespace

Semaphore::Semaphore(std::uint32_t permits, std::uint32_t capacity) noexcept
    : capacity_(capacity), permits_(permits) {
  RUNLOOM_CHECK(permits <= capacity, "a semaphore with more permits than its capacity");
}

Semaphore::~Semaphore() {
  RUNLOOM_CHECK(waiters_.empty(), "a semaphore was destroyed while somebody waits for it");
}

Result<void> Semaphore::acquire(std::uint32_t count, Deadline deadline) {
  if (count > capacity_) return fail(std::make_error_code(std::errc::invalid_argument));
  lock_.lock();
  if (waiters_.empty() && count <= permits_) {
    permits_ -= count;
    lock_.unlock();
    return {};
  }
  detail::WaitNode node(detail::begin_wait());
  node.data = to_data(count);
  waiters_.push_back(node);
  lock_.unlock();
  const auto code = detail::wait(
      node.token, {.reason = WaitReason::semaphore, .object = this, .deadline = deadline});
  if (code != detail::kWakeUser) {
    // Those behind may have waited for this one only.
    detail::WakeBatch woken;
    lock_.lock();
    waiters_.remove_if_linked(node);
    grant(waiters_, permits_, woken);
    lock_.unlock();
    woken.schedule();
  }
  return detail::wait_result(code);
}

bool Semaphore::try_acquire(std::uint32_t count) noexcept {
  std::lock_guard hold(lock_);
  if (!waiters_.empty() || count > permits_) return false;
  permits_ -= count;
  return true;
}

Result<void> Semaphore::try_release(std::uint32_t count) noexcept {
  detail::WakeBatch woken;
  lock_.lock();
  if (count > capacity_ - permits_) {
    lock_.unlock();
    return fail(Errc::over_release);
  }
  permits_ += count;
  grant(waiters_, permits_, woken);
  lock_.unlock();
  woken.schedule();
  return {};
}

void Semaphore::release(std::uint32_t count) noexcept {
  const bool fitted = try_release(count).has_value();
  RUNLOOM_CHECK(fitted, "a semaphore got more permits than its capacity");
}

std::uint32_t Semaphore::available() const noexcept {
  std::lock_guard hold(lock_);
  return permits_;
}

}  // namespace runloom
