#include <mutex>

#include "io_loop.hpp"
#include "runloom/net/netpoll.hpp"

namespace runloom::net {

std::size_t live_descriptors() noexcept {
  return live_descs();
}

Result<unsigned> wait_fd(int fd, unsigned events, Deadline deadline) {
  if ((events & (kRead | kWrite)) == 0 || (events & ~(kRead | kWrite)) != 0)
    return fail_errno(EINVAL);
  RUNLOOM_TRY(Netpoll* const netpoll, Netpoll::current());
  Result<unsigned> ready = 0u;
  if (PollDesc* desc = find_desc(fd)) {
    ready = netpoll->poll_desc(*desc, events, deadline);
    leave(*desc);
  } else {
    ready = poll_now(fd, events);
    if (!ready) return ready;
    if (*ready != 0) {
      // poll(2) calls every file ready; epoll refuses them.
      if (auto ok = check_pollable(fd); !ok) return Unexpected{ok.error()};
      return ready;
    }
    if (deadline == Deadline::now()) return 0u;
    ready = netpoll->poll_foreign(fd, events, deadline);
  }
  // The deadline of an enclosing scope is an error, the call's own is an answer.
  if (!ready && ready.error() == Errc::timed_out && deadline.passed()) return 0u;
  return ready;
}

}  // namespace runloom::net
