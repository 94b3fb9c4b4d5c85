#include "foreign_fds.hpp"

namespace runloom::net {
namespace {

void schedule(detail::WaitNode& node) noexcept {
  detail::schedule(node.token.waiter);
}

}  // namespace

Result<void> ForeignFds::link(int fd, detail::WaitNode& node) {
  if (is_owned(fd)) return fail_errno(EBUSY);
  std::lock_guard hold(mutex_);
  const auto [it, fresh] = entries_.try_emplace(fd);
  ForeignFd& entry = it->second;
  if (fresh) {
    entry.fd = fd;
    entry.id = ++next_id_ & kGenerationMask;
    count_.fetch_add(1, std::memory_order_relaxed);
  }
  entry.waiters.push_back(node);
  // Also when the direction is armed already: the number may be another descriptor's by now.
  auto armed = kernel_.arm_foreign(entry);
  if (armed) {
    entry.armed = entry.wanted();
  } else {
    entry.waiters.remove(node);
    if (entry.waiters.empty()) drop(it);
  }
  return armed;
}

Result<unsigned> ForeignFds::wait(int fd, unsigned directions, Deadline deadline) {
  Watch watch{directions};
  detail::WaitNode node(detail::begin_wait(), kWakeEvent);
  node.data = &watch;
  if (auto linked = link(fd, node); !linked) {
    detail::try_abandon(node.token);
    return Unexpected{linked.error()};
  }
  const detail::WakeCode code =
      detail::wait(node.token, {.reason = WaitReason::io_poll,
                                .object = reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)),
                                .deadline = deadline,
                                .external = true});
  settle(fd, node);
  if (code == kWakeEvent && watch.ended == detail::kWakePending) return watch.ready;
  return fail(detail::wake_error(code == kWakeEvent ? watch.ended : code));
}

void ForeignFds::settle(int fd, detail::WaitNode& node) noexcept {
  std::lock_guard hold(mutex_);
  const auto it = entries_.find(fd);
  if (it == entries_.end()) return;
  it->second.waiters.remove_if_linked(node);
  if (it->second.waiters.empty()) drop(it);
}

void ForeignFds::event(int fd, std::uint32_t id, unsigned ready) noexcept {
  std::lock_guard hold(mutex_);
  const auto it = entries_.find(fd);
  if (it == entries_.end() || it->second.id != id) return;
  ForeignFd& entry = it->second;
  entry.armed = 0;
  claim_watchers(entry.waiters, ready, schedule);
  if (entry.waiters.empty()) {
    drop(it);
    return;
  }
  if (!rearm(entry)) drop(it);
}

void ForeignFds::rearm_all() noexcept {
  std::lock_guard hold(mutex_);
  for (auto it = entries_.begin(); it != entries_.end();) {
    const auto entry = it++;
    entry->second.registered = false;
    if (!rearm(entry->second)) drop(entry);
  }
}

// False: it can't be watched any longer (closed meanwhile), and the waiters were woken to find out
// themselves.
bool ForeignFds::rearm(ForeignFd& entry) noexcept {
  // The number may have been closed behind our back and be one of our own now, whose registration
  // with the same kernel object must not be touched.
  if (!is_owned(entry.fd) && kernel_.arm_foreign(entry)) {
    entry.armed = entry.wanted();
    return true;
  }
  claim_watchers(entry.waiters, kRead | kWrite, schedule);
  return false;
}

void ForeignFds::claim(int fd, detail::WakeCode code, std::vector<detail::Waiter*>& claimed) {
  std::lock_guard hold(mutex_);
  const auto it = entries_.find(fd);
  if (it == entries_.end()) return;
  end_watchers(it->second.waiters, code,
               [&](detail::WaitNode& node) { claimed.push_back(node.token.waiter); });
  // The entry goes when one of them settles, on the hub's thread.
}

void ForeignFds::drop(Entries::iterator entry) noexcept {
  if (!is_owned(entry->first)) kernel_.disarm_foreign(entry->second);
  entries_.erase(entry);
  count_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace runloom::net
