#include "foreign_epoll.hpp"

namespace runloom::net {

Result<void> epoll_arm_foreign(int epoll, ForeignFd& entry) {
  const unsigned wanted = entry.wanted();
  epoll_event event{};
  event.events = EPOLLONESHOT | (wanted & kRead ? EPOLLIN | EPOLLPRI | EPOLLRDHUP : 0u) |
                 (wanted & kWrite ? EPOLLOUT : 0u);
  event.data.u64 = static_cast<std::uint64_t>(static_cast<unsigned>(entry.fd)) << 23 |
                   std::uint64_t{entry.id} << 2 | static_cast<std::uint64_t>(EventTag::foreign);
  // The number may have been closed and opened again since the last time, or may carry an old
  // registration of ours that could not be removed.
  const int first = entry.registered ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
  const int second = entry.registered ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
  int rc = ::epoll_ctl(epoll, first, entry.fd, &event);
  if (rc != 0 && (errno == ENOENT || errno == EEXIST))
    rc = ::epoll_ctl(epoll, second, entry.fd, &event);
  if (rc != 0) return fail(last_errno());
  entry.registered = true;
  return {};
}

void epoll_disarm_foreign(int epoll, ForeignFd& entry) noexcept {
  if (entry.registered) ::epoll_ctl(epoll, EPOLL_CTL_DEL, entry.fd, nullptr);
}

void epoll_foreign_event(ForeignFds& waits, const epoll_event& event) noexcept {
  const std::uint64_t word = event.data.u64;
  waits.event(static_cast<int>(word >> 23), event_generation(word), ready_of(event.events));
}

}  // namespace runloom::net
