#include "io_loop.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <mutex>

#include "poll_home.hpp"
#include "runloom/sched/fiber.hpp"
#include "runloom/sched/scheduler.hpp"

namespace runloom::net {
namespace {

using detail::WakeCode;

// Successes in a row after which others run. A system call costs hundreds of times what a yield
// does, so a small number is cheap.
constexpr unsigned kEagerLimit = 16;

// An accept that fails with one of these tells of the connection it would have returned, which
// is gone; the listener is well.
bool is_own_trouble(int err) noexcept {
  switch (err) {
    case ECONNABORTED:
    case EPROTO:
    case ENETDOWN:
    case ENOPROTOOPT:
    case EHOSTDOWN:
    case ENONET:
    case EHOSTUNREACH:
    case EOPNOTSUPP:
    case ENETUNREACH:
    case EPERM:
      return true;
    default:
      return false;
  }
}

std::size_t total_size(const msghdr& message) noexcept {
  std::size_t size = 0;
  for (std::size_t i = 0; i < message.msg_iovlen; ++i)
    size += message.msg_iov[i].iov_len;
  return size;
}

// The number of bytes below which a transfer by `message` was short; 0: it never counts as such.
std::size_t short_below(const PollDesc& desc, const msghdr& message, int flags) noexcept {
  if (!desc.short_is_drained || flags != 0 || message.msg_control) return 0;
  return total_size(message);
}

// How a connection attempt stands. Reads SO_ERROR, which tells a failure once.
enum class Progress { pending, connected, failed };
Progress connect_state(int fd, int& err) noexcept {
  socklen_t size = sizeof err;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &size) != 0) err = errno;
  if (err != 0) return Progress::failed;
  sockaddr_storage peer;
  socklen_t peer_size = sizeof peer;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_size) == 0)
    return Progress::connected;
  const auto ready = poll_now(fd, kWrite);
  if (ready && *ready == 0) return Progress::pending;
  // It failed, and somebody else has read the reason.
  err = ECONNABORTED;
  return Progress::failed;
}

}  // namespace

// ---------------------------------------------------------------- helpers

short poll_events(unsigned directions) noexcept {
  int events = 0;
  if (directions & kRead) events |= POLLIN | POLLPRI | POLLRDHUP;
  if (directions & kWrite) events |= POLLOUT;
  return static_cast<short>(events);
}

unsigned poll_ready(short revents, unsigned directions) noexcept {
  unsigned ready = 0;
  if (revents & (POLLIN | POLLPRI | POLLRDHUP)) ready |= kRead;
  if (revents & POLLOUT) ready |= kWrite;
  if (revents & (POLLERR | POLLHUP)) ready |= kRead | kWrite;
  return ready & directions;
}

Result<unsigned> poll_now(int fd, unsigned directions) noexcept {
  if (fd < 0) return fail_errno(EBADF);  // poll(2) passes such over
  pollfd request{fd, poll_events(directions), 0};
  int count;
  do
    count = ::poll(&request, 1, 0);
  while (count < 0 && errno == EINTR);
  if (count < 0) return fail(last_errno());
  if (request.revents & POLLNVAL) return fail_errno(EBADF);
  return poll_ready(request.revents, directions);
}

Result<void> check_pollable(int fd) noexcept {
  struct stat status;
  if (::fstat(fd, &status) != 0) return fail(last_errno());
  if (S_ISREG(status.st_mode) || S_ISDIR(status.st_mode)) return fail_errno(EPERM);
  return {};
}

SigpipeGuard::SigpipeGuard() noexcept {
  sigset_t pipe, before, pending;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, &before);
  changed_ = sigismember(&before, SIGPIPE) == 0;
  was_pending_ = sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 1;
}

SigpipeGuard::~SigpipeGuard() {
  const int err = errno;
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  if (!was_pending_) {
    const timespec none{};
    while (sigtimedwait(&pipe, nullptr, &none) < 0 && errno == EINTR) {
    }
  }
  if (changed_) pthread_sigmask(SIG_UNBLOCK, &pipe, nullptr);
  errno = err;
}

// ---------------------------------------------------------------- the loop

void IoLoop::give_way() noexcept {
  this_fiber::yield();
}

void IoLoop::before_accept() noexcept {
  constexpr int kAcceptsPerTurn = 64;
  constexpr int kLongestTurn = 64;  // yields
  const Hub& hub = *detail::fiber_hub();
  if (accept_turn_ == hub.turn_ns() && accepted_ >= kAcceptsPerTurn)
    for (int i = 0; i < kLongestTurn && accept_turn_ == hub.turn_ns(); ++i)
      this_fiber::yield();
  if (accept_turn_ != hub.turn_ns()) {
    accept_turn_ = hub.turn_ns();
    accepted_ = 0;
  }
  ++accepted_;
}

template <class Call>
Result<std::size_t> IoLoop::transfer(PollDesc& desc, Side side, WaitReason reason,
                                     Deadline deadline, bool may_wait, const std::size_t& wanted,
                                     Call&& call) {
  PollDesc::Direction& direction = desc.direction[side];
  WakeCode ended = detail::kWakePending;
  bool waited = false;
  for (;;) {
    const std::uint32_t seen = direction.seq.load(std::memory_order_acquire);
    if (direction.drained.load(std::memory_order_relaxed) != seen || !may_wait ||
        ended != detail::kWakePending) {
      if (side == kReadSide) detail::prefetch_ready();
      const ssize_t moved = call();
      if (moved >= 0) {
        const auto count = static_cast<std::size_t>(moved);
        // Nothing (the end of the stream) leaves the direction ready.
        if (count != 0 && count < wanted && desc.sticky.load(std::memory_order_relaxed) == 0)
          direction.drained.store(seen, std::memory_order_relaxed);
        if (waited) {
          eager_ = 0;
        } else if (++eager_ >= kEagerLimit && may_wait && !(deadline == Deadline::now())) {
          eager_ = 0;
          give_way();
        }
        return count;
      }
      const int err = errno;
      if (err == EINTR) continue;
      if (!would_block(err)) return fail_errno(err);
      direction.drained.store(seen, std::memory_order_relaxed);
      if (!may_wait) return fail_errno(EAGAIN);
      if (ended != detail::kWakePending) return fail(detail::wake_error(ended));
      if (deadline == Deadline::now()) {
        const auto allowed = this_fiber::check_cancelled();
        return allowed ? fail(Errc::timed_out) : Unexpected{allowed.error()};
      }
    }
    const auto code = await_event(desc, side, seen, reason, deadline);
    if (!code) return Unexpected{code.error()};
    waited = true;
    if (*code == kWakeEvent) continue;
    if (*code == detail::kWakeClosed) return fail(Errc::closed);
    ended = *code;  // one last attempt: what has arrived wins
  }
}

Result<std::size_t> IoLoop::recv(PollDesc& desc, std::span<std::byte> buffer, int flags,
                                 Deadline deadline) {
  const std::size_t wanted = desc.short_is_drained && flags == 0 ? buffer.size() : 0;
  return transfer(desc, kReadSide, WaitReason::io_read, deadline, (flags & MSG_DONTWAIT) == 0,
                  wanted, [&] { return ::recv(desc.fd, buffer.data(), buffer.size(), flags); });
}

Result<std::size_t> IoLoop::recv_late(PollDesc& desc, RecvBuffer& buffer, Deadline deadline) {
  std::size_t wanted = 0;
  return transfer(desc, kReadSide, WaitReason::io_read, deadline, true, wanted, [&]() -> ssize_t {
    const std::span<std::byte> memory = buffer.take();
    if (memory.empty()) {
      errno = ENOMEM;
      return -1;
    }
    if (desc.short_is_drained) wanted = memory.size();
    const ssize_t moved = ::recv(desc.fd, memory.data(), memory.size(), 0);
    buffer.give_back(moved);
    return moved;
  });
}

Result<std::size_t> IoLoop::send(PollDesc& desc, std::span<const std::byte> data, int flags,
                                 Deadline deadline) {
  const std::size_t wanted = desc.short_is_drained && flags == 0 ? data.size() : 0;
  return transfer(desc, kWriteSide, WaitReason::io_write, deadline, (flags & MSG_DONTWAIT) == 0,
                  wanted,
                  [&] { return ::send(desc.fd, data.data(), data.size(), flags | MSG_NOSIGNAL); });
}

Result<std::size_t> IoLoop::recvmsg(PollDesc& desc, msghdr& message, int flags, Deadline deadline) {
  const std::size_t wanted = short_below(desc, message, flags);
  return transfer(desc, kReadSide, WaitReason::io_read, deadline, (flags & MSG_DONTWAIT) == 0,
                  wanted, [&] { return ::recvmsg(desc.fd, &message, flags | MSG_CMSG_CLOEXEC); });
}

Result<std::size_t> IoLoop::sendmsg(PollDesc& desc, const msghdr& message, int flags,
                                    Deadline deadline) {
  const std::size_t wanted = short_below(desc, message, flags);
  return transfer(desc, kWriteSide, WaitReason::io_write, deadline, (flags & MSG_DONTWAIT) == 0,
                  wanted, [&] { return ::sendmsg(desc.fd, &message, flags | MSG_NOSIGNAL); });
}

Result<std::size_t> IoLoop::read(PollDesc& desc, std::span<std::byte> buffer, Deadline deadline) {
  return transfer(desc, kReadSide, WaitReason::io_read, deadline, true, 0,
                  [&] { return ::read(desc.fd, buffer.data(), buffer.size()); });
}

Result<std::size_t> IoLoop::write(PollDesc& desc, std::span<const std::byte> data,
                                  Deadline deadline) {
  return transfer(desc, kWriteSide, WaitReason::io_write, deadline, true, 0, [&] {
    SigpipeGuard guard;
    return ::write(desc.fd, data.data(), data.size());
  });
}

Result<std::size_t> IoLoop::attempt(PollDesc& desc, unsigned direction, Attempt& attempt, int flags,
                                    Deadline deadline) {
  const bool reads = direction == kRead;
  return transfer(desc, reads ? kReadSide : kWriteSide,
                  reads ? WaitReason::io_read : WaitReason::io_write, deadline,
                  (flags & MSG_DONTWAIT) == 0, attempt.wanted(),
                  [&] { return attempt.make(desc.fd); });
}

Result<int> IoLoop::accept(PollDesc& desc, sockaddr* peer, socklen_t* peer_size,
                           Deadline deadline) {
  if (!(deadline == Deadline::now())) before_accept();
  const socklen_t room = peer_size ? *peer_size : 0;
  int strikes = 0;
  auto accepted =
      transfer(desc, kReadSide, WaitReason::io_accept, deadline, true, 0, [&]() -> ssize_t {
        for (;;) {
          if (peer_size) *peer_size = room;
          const int fd = ::accept4(desc.fd, peer, peer_size, SOCK_NONBLOCK | SOCK_CLOEXEC);
          // Each such failure takes a connection off the queue; a number of them without end
          // would be the listener's trouble after all.
          if (fd >= 0 || !is_own_trouble(errno) || ++strikes == 64) return fd;
        }
      });
  if (!accepted) return Unexpected{accepted.error()};
  return static_cast<int>(*accepted);
}

Result<void> IoLoop::connect(PollDesc& desc, const sockaddr* peer, socklen_t peer_size,
                             Deadline deadline) {
  PollDesc::Direction& direction = desc.direction[kWriteSide];
  // A socket that is not connected reports a hang-up; that is over now.
  desc.sticky.store(0, std::memory_order_relaxed);
  std::uint32_t seen = direction.seq.load(std::memory_order_acquire);
  if (::connect(desc.fd, peer, peer_size) == 0) return {};
  if (errno != EINPROGRESS && errno != EINTR) return fail(last_errno());
  for (;;) {
    direction.drained.store(seen, std::memory_order_relaxed);
    const auto code = await_event(desc, kWriteSide, seen, WaitReason::io_connect, deadline);
    if (!code) return Unexpected{code.error()};
    if (*code == detail::kWakeClosed) return fail(Errc::closed);
    seen = direction.seq.load(std::memory_order_acquire);
    int err = 0;
    switch (connect_state(desc.fd, err)) {
      case Progress::connected:
        direction.drained.store(seen - 1, std::memory_order_relaxed);
        return {};
      case Progress::failed:
        return fail_errno(err);
      case Progress::pending:
        if (*code != kWakeEvent) return fail(detail::wake_error(*code));
    }
  }
}

Result<void> IoLoop::shutdown(PollDesc& desc, int how) {
  if (::shutdown(desc.fd, how) != 0) return fail(last_errno());
  return {};
}

Result<unsigned> IoLoop::poll_desc(PollDesc& desc, unsigned directions, Deadline deadline) {
  WakeCode code = detail::kWakeTimedOut;
  if (!(deadline == Deadline::now())) {
    Watch watch{directions};
    const auto ended = await_watch(desc, watch, deadline);
    if (!ended) return Unexpected{ended.error()};
    if (*ended == kWakeEvent) return watch.ready;
    if (*ended == detail::kWakeClosed) return fail(Errc::closed);
    code = *ended;
  }
  RUNLOOM_TRY(const unsigned ready, poll_now(desc.fd, directions));
  if (ready != 0) return ready;
  return fail(detail::wake_error(code));
}

}  // namespace runloom::net
