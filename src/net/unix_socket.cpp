#include "runloom/net/unix_socket.hpp"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "accept_turn.hpp"
#include "fd_message.hpp"
#include "io_loop.hpp"
#include "runloom/net/select_fd.hpp"
#include "runloom/sched/fiber.hpp"
#include "runloom/sched/select.hpp"
#include "socket_option.hpp"

namespace runloom::net {
namespace {

using namespace std::chrono_literals;

class UnixCategory final : public std::error_category {
 public:
  const char* name() const noexcept override { return "runloom.unix"; }
  std::string message(int value) const override {
    switch (static_cast<UnixErrc>(value)) {
      case UnixErrc::too_many_fds:
        return "a message carries at most 253 descriptors";
      case UnixErrc::no_byte:
        return "descriptors travel with at least one byte of a stream";
    }
    return "unknown error of Unix sockets";
  }
  std::error_condition default_error_condition(int) const noexcept override {
    return std::make_error_condition(std::errc::invalid_argument);
  }
};
static_assert(kMostFds == 253, "the message above names the limit");

// Why the calling fiber may wait no longer, after an attempt that would have had to.
Result<void> may_go_on(Deadline deadline) noexcept {
  if (auto ok = this_fiber::check_cancelled(); !ok) return ok;
  if (deadline == Deadline::now() || deadline.passed()) return fail(Errc::timed_out);
  return {};
}

// Waits until `peer`, whose queue is full, takes datagrams again or is gone, or `socket` is closed.
//
// A socket that is connected to the peer is woken by the kernel when it has room, and that is the
// only wake there is: so a second socket connects and waits. Rejected: to try again after a pause
// (late, or a spin), and to connect the program's own socket (it would drop other peers' messages).
Result<void> await_room(const Fd& socket, const sockaddr* peer, socklen_t size, Deadline deadline) {
  RUNLOOM_TRY(const Fd watcher, open_socket(AF_UNIX, SOCK_DGRAM, 0, FdKind::datagram));
  // It is gone, or has connected to the sender, which then knows no limit. The next attempt tells.
  if (::connect(watcher.number(), peer, size) != 0)
    return this_fiber::sleep_until(Deadline::earlier(deadline, Deadline::after(1ms)));
  if (this_fiber::exists()) {
    FdCase room(watcher, kWrite);
    FdCase closed(socket, 0);  // no direction: ends with a close only
    const auto fired = select({&room, &closed}, deadline);
    if (!fired) return Unexpected{fired.error()};
    const auto& ready = *fired == 0 ? room.ready() : closed.ready();
    return ready ? Result<void>() : Unexpected{ready.error()};
  }
  // select() is for fibers. A thread looks now and then whether it is still needed.
  while (socket) {
    const auto ready =
        watcher.wait_ready(kWrite, Deadline::earlier(deadline, Deadline::after(50ms)));
    if (ready) return {};
    if (ready.error() != Errc::timed_out || deadline.passed()) return Unexpected{ready.error()};
  }
  return fail(Errc::closed);
}

}  // namespace

const std::error_category& unix_category() noexcept {
  static const UnixCategory category;
  return category;
}

Result<PeerCredentials> peer_credentials(const Fd& socket) {
  const Fd::Use use(socket);
  if (!use) return fail(Errc::closed);
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (::getsockopt(use.number(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0)
    return fail(last_errno());
  // What the kernel says of a socket that was never connected.
  if (credentials.uid == static_cast<uid_t>(-1) && credentials.gid == static_cast<gid_t>(-1))
    return fail_errno(ENOTCONN);
  return PeerCredentials{credentials.pid, credentials.uid, credentials.gid};
}

// ---------------------------------------------------------------- messages

Result<UnixMessage> receive_message(const Fd& socket, std::span<std::byte> buffer,
                                    std::size_t most_fds, bool datagram, Deadline deadline) {
  if (most_fds > kMostFds) return fail(make_error_code(UnixErrc::too_many_fds));
  UnixMessage result;
  result.fds.reserve(most_fds);  // first: what has come must not be lost for want of memory
  sockaddr_storage from;
  iovec memory{buffer.data(), buffer.size()};
  msghdr message{};
  message.msg_iov = &memory;
  message.msg_iovlen = 1;
  if (datagram) {
    message.msg_name = &from;
    message.msg_namelen = sizeof from;
  }
  FdControl control;
  control.expect(message, most_fds);
  // MSG_TRUNC as a flag: the answer is the datagram's whole length.
  const auto count = socket.recvmsg(message, datagram ? MSG_TRUNC : 0, deadline);
  if (!count) return Unexpected{count.error()};
  const bool closed = FdControl::take(message, result.fds);
  result.fds_lost = closed || (message.msg_flags & MSG_CTRUNC) != 0;
  result.full_size = *count;
  result.bytes = std::min(*count, buffer.size());
  if (datagram && message.msg_namelen != 0) {
    auto name =
        Address::from_sockaddr(reinterpret_cast<const sockaddr*>(&from), message.msg_namelen);
    if (name) result.from = *name;
  } else if (datagram) {
    result.from = Address::unix_unnamed();
  }
  return result;
}

Result<std::size_t> send_message(const Fd& socket, std::span<const std::byte> data,
                                 std::span<const int> fds, const Address* to, Deadline deadline) {
  if (fds.size() > kMostFds) return fail(make_error_code(UnixErrc::too_many_fds));
  iovec memory{const_cast<std::byte*>(data.data()), data.size()};
  msghdr message{};
  message.msg_iov = &memory;
  message.msg_iovlen = 1;
  FdControl control;
  control.attach(message, fds);
  if (!to) return socket.sendmsg(message, 0, deadline);
  message.msg_name = const_cast<sockaddr*>(to->data());
  message.msg_namelen = to->size();
  return sendmsg_to(socket, message, 0, deadline);
}

// ---------------------------------------------------------------- waits that have no event

Result<void> connect_unix(const Fd& socket, const sockaddr* peer, socklen_t size,
                          Deadline deadline) {
  for (auto pause = 1ms;; pause = std::min(2 * pause, std::chrono::milliseconds(20))) {
    {
      const Fd::Use use(socket);
      if (!use) return fail(Errc::closed);
      int result;
      do
        result = ::connect(use.number(), peer, size);
      while (result != 0 && errno == EINTR);
      if (result == 0) return {};
      if (errno != EAGAIN) return fail(last_errno());
    }
    if (auto ok = may_go_on(deadline); !ok) return ok;
    // The pause's own end is no error; that of an enclosing scope is.
    if (auto slept = this_fiber::sleep_until(Deadline::earlier(deadline, Deadline::after(pause)));
        !slept)
      return slept;
  }
}

namespace {

class Accept final : public Attempt {
 public:
  Accept(sockaddr* peer, socklen_t* size) noexcept
      : peer_(peer), size_(size), room_(size ? *size : 0) {}
  ssize_t make(int fd) noexcept override {
    if (size_) *size_ = room_;
    const int accepted = ::accept4(fd, peer_, size_, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (accepted >= 0 || !would_block(errno)) return accepted;
    pollfd shut{fd, POLLRDHUP, 0};
    const bool ended = ::poll(&shut, 1, 0) == 1 && (shut.revents & POLLRDHUP) != 0;
    errno = ended ? EINVAL : EAGAIN;
    return -1;
  }

 private:
  sockaddr* const peer_;
  socklen_t* const size_;
  const socklen_t room_;
};

}  // namespace

Result<int> accept_unix(const Fd& listener, sockaddr* peer, socklen_t* size, Deadline deadline) {
  if (!(deadline == Deadline::now())) take_accept_turn();
  Accept accept(peer, size);
  RUNLOOM_TRY(const std::size_t fd, listener.attempt(kRead, accept, 0, deadline));
  return static_cast<int>(fd);
}

Result<std::size_t> sendmsg_to(const Fd& socket, const msghdr& message, int flags,
                               Deadline deadline) {
  std::error_code ended;
  for (;;) {
    bool own_room;
    {
      // Not by way of the backend: it would wait for the socket to become writable, which it is.
      // A datagram goes whole or not at all, so senders need no order.
      const Fd::Use use(socket);
      if (!use) return fail(Errc::closed);
      const ssize_t sent = ::sendmsg(use.number(), &message, flags | MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent >= 0) return static_cast<std::size_t>(sent);
      if (errno == EINTR) continue;
      if (!would_block(errno) || (flags & MSG_DONTWAIT) != 0) return fail(last_errno());
      const auto ready = poll_now(use.number(), kWrite);
      own_room = ready && *ready != 0;
    }
    if (ended) return Unexpected{ended};
    if (auto ok = may_go_on(deadline); !ok) return Unexpected{ok.error()};
    Result<void> waited;
    if (own_room) {
      waited = await_room(socket, static_cast<const sockaddr*>(message.msg_name),
                          message.msg_namelen, deadline);
    } else if (const auto ready = socket.wait_ready(kWrite, deadline); !ready) {
      waited = Unexpected{ready.error()};  // our own buffer was full
    }
    if (waited) continue;
    ended = waited.error();  // one last attempt: what can be sent is
    if (ended != Errc::timed_out && ended != Errc::cancelled) return Unexpected{ended};
  }
}

}  // namespace runloom::net
