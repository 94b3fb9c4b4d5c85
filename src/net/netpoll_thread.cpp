#include "netpoll_thread.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>

#include "high_fd.hpp"
#include "runloom/sched/fiber.hpp"

namespace runloom::net {

using detail::WakeCode;

// ---------------------------------------------------------------- ThreadWake

ThreadWake& ThreadWake::mine() noexcept {
  thread_local ThreadWake wake;
  const unsigned now = fork_generation.load(std::memory_order_relaxed);
  if (wake.fd_ >= 0 && wake.fork_generation_ != now) {
    ::close(wake.fd_);  // shared with the parent
    wake.fd_ = -1;
  }
  if (wake.fd_ < 0) {
    wake.fd_ = move_high(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    wake.fork_generation_ = now;
  }
  return wake;
}

ThreadWake::~ThreadWake() {
  if (const int fd = fd_.exchange(-1); fd >= 0) ::close(fd);
}

void ThreadWake::signal() noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(fd_, &one, sizeof one);
}

void ThreadWake::forget() noexcept {
  fd_ = -1;
}

void ThreadWake::clear() noexcept {
  std::uint64_t count;
  [[maybe_unused]] const auto read = ::read(fd_, &count, sizeof count);
}

// ---------------------------------------------------------------- ThreadPoll

ThreadPoll& thread_netpoll() noexcept {
  thread_local ThreadPoll netpoll;
  return netpoll;
}

namespace {

struct Polled {
  unsigned ready = 0;
  bool signalled = false;
  bool lost = false;
  std::error_code error;  // EBADF, timed_out, cancelled
};

// Waits for `fd` or `wake_fd` (-1: none), through signals.
Polled block(int fd, int wake_fd, unsigned directions, Deadline deadline) {
  deadline = Deadline::earlier(deadline, detail::enclosing_deadline());
  Polled result;
  pollfd requests[2] = {{fd, poll_events(directions), 0}, {wake_fd, POLLIN, 0}};
  for (;;) {
    if (const auto ok = this_fiber::check_cancelled(); !ok) result.error = ok.error();
    timespec limit{};
    const timespec* timeout = nullptr;
    if (result.error) {
      timeout = &limit;  // one last look
    } else if (!deadline.is_never()) {
      const std::int64_t left =
          deadline.passed() ? 0 : std::max<std::int64_t>(0, deadline.ns() - monotonic_ns());
      limit.tv_sec = left / 1'000'000'000;
      limit.tv_nsec = left % 1'000'000'000;
      timeout = &limit;
    }
    const auto hooks = detail::thread_wait_hooks();
    void* state = hooks.before ? hooks.before() : nullptr;
    const int count = ::ppoll(requests, 2, timeout, nullptr);
    const int err = errno;
    const bool interrupted =
        count < 0 && err == EINTR && hooks.interrupted && hooks.interrupted(state);
    if (hooks.after) hooks.after(state);
    if (interrupted) {
      result.error = make_error_code(Errc::cancelled);
      return result;
    }
    if (count < 0) {
      if (err == EINTR) continue;
      result.error = errno_code(err);
      return result;
    }
    result.lost = (requests[1].revents & POLLNVAL) != 0;
    result.signalled = !result.lost && requests[1].revents != 0;
    if (requests[0].revents & POLLNVAL) {
      result.error = errno_code(EBADF);
      return result;
    }
    result.ready = poll_ready(requests[0].revents, directions);
    if (result.ready != 0) result.error = {};
    if (result.ready != 0 || result.signalled || result.lost || result.error) return result;
    if (!deadline.is_never() && deadline.passed()) {
      result.error = make_error_code(Errc::timed_out);
      return result;
    }
  }
}

}  // namespace

Result<WakeCode> ThreadPoll::await_watch(PollDesc& desc, Watch& watch, Deadline deadline) {
  watch.thread = &ThreadWake::mine();
  if (watch.thread->number() < 0) return fail(last_errno());
  detail::WaitNode node(detail::begin_wait(), kWakeEvent);
  node.data = &watch;
  {
    std::lock_guard hold(desc.lock);
    if (desc.closed()) {
      detail::try_abandon(node.token);
      return WakeCode{detail::kWakeClosed};
    }
    desc.watchers.push_back(node);
  }
  Polled polled = block(desc.fd, watch.thread->number(), watch.directions, deadline);
  if (polled.lost) {  // other code has closed our eventfd: try again, with a new one
    watch.thread->forget();
    polled.ready = watch.directions;
  }
  WakeCode code = detail::kWakePending;
  if (!detail::try_abandon(node.token)) {
    // Claimed by an event or a close; the signal has come or is about to.
    code = detail::wait(node.token, {.reason = WaitReason::io_poll, .cancellable = false});
    watch.thread->clear();
  }
  {
    std::lock_guard hold(desc.lock);
    desc.watchers.remove_if_linked(node);
  }
  if (code == kWakeEvent && watch.ended != detail::kWakePending) return watch.ended;
  watch.ready |= polled.ready;
  if (watch.ready != 0) return WakeCode{kWakeEvent};
  if (polled.error == Errc::timed_out) return WakeCode{detail::kWakeTimedOut};
  if (polled.error == Errc::cancelled) return WakeCode{detail::kWakeCancelled};
  return Unexpected{polled.error};
}

Result<WakeCode> ThreadPoll::await_event(PollDesc& desc, Side side, std::uint32_t seen, WaitReason,
                                         Deadline deadline) {
  Watch watch{direction_of(side)};
  auto code = await_watch(desc, watch, deadline);
  // Nobody may be polling for events, so seq can't tell that there was one.
  if (code && *code == kWakeEvent)
    desc.direction[side].drained.store(seen - 1, std::memory_order_relaxed);
  return code;
}

Result<unsigned> ThreadPoll::poll_foreign(int fd, unsigned directions, Deadline deadline) {
  const Polled polled = block(fd, -1, directions, deadline);
  if (polled.ready != 0) return polled.ready;
  return Unexpected{polled.error};
}

}  // namespace runloom::net
