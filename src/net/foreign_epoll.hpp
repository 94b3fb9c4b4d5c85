// What epoll does for descriptors that are not ours: registered one-shot while somebody waits.
#pragma once

#include <sys/epoll.h>

#include "foreign_fds.hpp"

namespace runloom::net {

inline constexpr std::uint32_t kReadEvents = EPOLLIN | EPOLLPRI | EPOLLRDHUP | EPOLLHUP | EPOLLERR;
inline constexpr std::uint32_t kWriteEvents = EPOLLOUT | EPOLLHUP | EPOLLERR;

constexpr unsigned ready_of(std::uint32_t events) noexcept {
  return (events & kReadEvents ? kRead : 0) | (events & kWriteEvents ? kWrite : 0);
}

// As ForeignKernel's, with the epoll instance `epoll`.
Result<void> epoll_arm_foreign(int epoll, ForeignFd& entry);
void epoll_disarm_foreign(int epoll, ForeignFd& entry) noexcept;
// An event whose tag is EventTag::foreign.
void epoll_foreign_event(ForeignFds& waits, const epoll_event& event) noexcept;

}  // namespace runloom::net
