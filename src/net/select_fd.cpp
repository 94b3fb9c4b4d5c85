#include "runloom/net/select_fd.hpp"

#include <utility>

#include "hub_netpoll.hpp"
#include "io_loop.hpp"
#include "poll_desc.hpp"

namespace runloom::net {

using detail::Joined;

bool FdCase::enter_owner() noexcept {
  if (!fd_) {
    desc_ = find_desc(number_);
    return true;
  }
  number_ = fd_->number();
  if (number_ < 0) return false;
  desc_ = find_desc(number_);
  // The number may have been closed, and opened by others, in between.
  if (desc_ && fd_->number() == number_) return true;
  leave_owner();
  return false;
}

void FdCase::leave_owner() noexcept {
  if (desc_) leave(*std::exchange(desc_, nullptr));
}

Result<unsigned> FdCase::look() const noexcept {
  auto ready = poll_now(number_, watch_.directions);
  if (!ready || *ready == 0 || desc_) return ready;
  // poll(2) calls every file ready.
  if (const auto ok = check_pollable(number_); !ok) return Unexpected{ok.error()};
  return ready;
}

bool FdCase::try_take() {
  if (!enter_owner()) {
    result_ = fail(Errc::closed);
    return true;
  }
  result_ = look();
  leave_owner();
  return !result_ || *result_ != 0;
}

Result<void> FdCase::link(detail::WaitNode& node) {
  if (!detail::fiber_hub()) return fail(Errc::not_in_fiber);
  RUNLOOM_TRY(netpoll_, Netpoll::current());
  return desc_ ? netpoll_->link(*desc_, node) : netpoll_->link_foreign(number_, node);
}

void FdCase::unlink(detail::WaitNode& node) noexcept {
  desc_ ? netpoll_->unlink(*desc_, node) : netpoll_->unlink_foreign(number_, node);
  leave_owner();
}

// Completes the case, if nobody has completed the wait.
Joined FdCase::finish(detail::WaitNode& node, const Result<unsigned>& result) {
  if (!detail::claim(node.token, node.code)) return Joined::lost;
  result_ = result;
  return Joined::done;
}

Joined FdCase::enqueue(detail::WaitNode& node) {
  watch_.ready = 0;
  watch_.ended = detail::kWakePending;
  node.data = &watch_;
  if (!enter_owner()) return finish(node, fail(Errc::closed));
  if (const auto linked = link(node); !linked) {
    leave_owner();
    return finish(node, Unexpected{linked.error()});
  }
  // Linked first, then looked at: an event in between is not lost.
  const auto ready = look();
  if (ready && *ready == 0) return Joined::waiting;
  const Joined joined = finish(node, ready);
  unlink(node);
  // The event may have won, with the same code.
  if (joined == Joined::lost) result_ = ready;
  return joined;
}

void FdCase::dequeue(detail::WaitNode& node, bool fired) noexcept {
  unlink(node);
  if (!fired) return;
  if (watch_.ended != detail::kWakePending) {
    result_ = fail(detail::wake_error(watch_.ended));
  } else {
    result_ = watch_.ready;
  }
}

}  // namespace runloom::net
