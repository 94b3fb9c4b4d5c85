#include "runloom/sched/mutex.hpp"

#include <mutex>
#include <system_error>

#include "fiber_impl.hpp"
#include "runloom/sched/check.hpp"
#include "wait_list.hpp"

namespace runloom {

using detail::kWakeUser;
using detail::WakeCode;

// ---------------------------------------------------------------- Mutex

Mutex::~Mutex() {
  RUNLOOM_CHECK(waiters_.empty(), "a mutex was destroyed while somebody waits for it");
}

namespace {

// Whose wakes the deadlock detection of the caller's scheduler knows about.
const void* calling_party() noexcept {
  const detail::Fiber* fiber = detail::current_fiber();
  return fiber ? fiber->scheduler : nullptr;
}

}  // namespace

void Mutex::take() noexcept {
  locked_ = true;
  mixed_ = false;
  party_ = calling_party();
}

WakeCode Mutex::acquire(Deadline deadline, bool cancellable) {
  lock_.lock();
  if (!locked_) {
    take();
    lock_.unlock();
    return kWakeUser;
  }
  mixed_ |= calling_party() != party_;
  // kWakeUser: unlock() handed it over; `locked_` was never false meanwhile.
  return detail::park_in(waiters_, lock_,
                         {.reason = WaitReason::mutex,
                          .object = this,
                          .deadline = deadline,
                          .cancellable = cancellable,
                          .external = mixed_});
}

void Mutex::lock() {
  const WakeCode code = acquire(Deadline::never(), false);
  if (code != kWakeUser) [[unlikely]]
    throw std::system_error(detail::wake_error(code), "Mutex::lock");
}

Result<void> Mutex::lock(Deadline deadline) {
  return detail::wait_result(acquire(deadline, true));
}

bool Mutex::try_lock() noexcept {
  std::lock_guard hold(lock_);
  if (locked_) return false;
  take();
  return true;
}

bool Mutex::try_unlock() noexcept {
  lock_.lock();
  if (!locked_) [[unlikely]] {
    lock_.unlock();
    return false;
  }
  detail::WaitNode* next = waiters_.claim_front();
  locked_ = next != nullptr;
  lock_.unlock();
  if (next) detail::schedule(next->token.waiter);
  return true;
}

void Mutex::unlock() noexcept {
  const bool was_locked = try_unlock();
  RUNLOOM_CHECK(was_locked, "unlock of a mutex that is not locked");
}

bool Mutex::locked() const noexcept {
  std::lock_guard hold(lock_);
  return locked_;
}

// ---------------------------------------------------------------- RecursiveMutex

namespace {

// Never reused, unlike the thread's waiter.
std::uint64_t thread_life() noexcept {
  static std::atomic<std::uint64_t> threads{0};
  thread_local const std::uint64_t life = threads.fetch_add(1, std::memory_order_relaxed) + 1;
  return life;
}

}  // namespace

RecursiveMutex::Owner RecursiveMutex::caller() noexcept {
  if (const detail::Fiber* fiber = detail::current_fiber()) return {fiber, detail::fiber_id(fiber)};
  return {&detail::thread_waiter(), thread_life()};
}

bool RecursiveMutex::owned_by(const Owner& who) const noexcept {
  return owner_.load(std::memory_order_relaxed) == who.waiter &&
         owner_life_.load(std::memory_order_relaxed) == who.life;
}

void RecursiveMutex::own(const Owner& who, std::uint32_t depth) noexcept {
  owner_life_.store(who.life, std::memory_order_relaxed);
  owner_.store(who.waiter, std::memory_order_relaxed);
  depth_ = depth;
}

bool RecursiveMutex::owned() const noexcept {
  return owned_by(caller());
}

void RecursiveMutex::lock() {
  const Owner me = caller();
  if (owned_by(me)) {
    ++depth_;
    return;
  }
  mutex_.lock();
  own(me, 1);
}

Result<void> RecursiveMutex::lock(Deadline deadline) {
  const Owner me = caller();
  if (owned_by(me)) {
    ++depth_;
    return {};
  }
  Result<void> locked = mutex_.lock(deadline);
  if (locked) own(me, 1);
  return locked;
}

bool RecursiveMutex::try_lock() noexcept {
  const Owner me = caller();
  if (owned_by(me)) {
    ++depth_;
    return true;
  }
  if (!mutex_.try_lock()) return false;
  own(me, 1);
  return true;
}

bool RecursiveMutex::try_unlock() noexcept {
  if (!owned()) return false;
  if (--depth_ == 0) {
    owner_.store(nullptr, std::memory_order_relaxed);
    mutex_.unlock();
  }
  return true;
}

void RecursiveMutex::unlock() noexcept {
  const bool was_owner = try_unlock();
  RUNLOOM_CHECK(was_owner, "unlock of a recursive mutex that the caller does not own");
}

std::uint32_t RecursiveMutex::unlock_all() noexcept {
  RUNLOOM_CHECK(owned(), "unlock of a recursive mutex that the caller does not own");
  const std::uint32_t depth = depth_;
  depth_ = 0;
  owner_.store(nullptr, std::memory_order_relaxed);
  mutex_.unlock();
  return depth;
}

void RecursiveMutex::lock_to(std::uint32_t depth) {
  mutex_.lock();
  own(caller(), depth);
}

}  // namespace runloom
