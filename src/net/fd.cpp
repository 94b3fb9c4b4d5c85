#include "runloom/net/fd.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <mutex>

#include "hub_netpoll.hpp"
#include "io_loop.hpp"
#include "poll_desc.hpp"
#include "runloom/net/netpoll.hpp"
#include "runloom/sched/fiber.hpp"

namespace runloom::net {
namespace {

// Runs `call` as an operation of one direction, on the calling hub's backend: holds the
// direction's lock and a reference meanwhile.
template <class R, class Call>
R operate(PollDesc* desc, std::uint32_t generation, Side side, Deadline deadline, Call&& call) {
  if (!desc) return fail(Errc::closed);
  if (!try_enter_side(*desc, generation, side)) [[unlikely]] {
    const auto entered = enter_queued(*desc, generation, side, deadline);
    if (!entered) return Unexpected{entered.error()};
  }
  struct Leave {
    PollDesc& desc;
    Side side;
    ~Leave() { leave_side(desc, side); }
  } leave{*desc, side};
  Netpoll* netpoll = hub_netpoll();
  if (!netpoll) [[unlikely]] {
    const auto current = Netpoll::current();
    if (!current) return Unexpected{current.error()};
    netpoll = *current;
  }
  return call(*netpoll, *desc);
}

FdKind kind_of_socket(int fd) noexcept {
  int domain = 0, type = 0, protocol = 0;
  socklen_t size = sizeof(int);
  ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size);
  ::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size);
  ::getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &size);
  const bool tcp =
      (domain == AF_INET || domain == AF_INET6) && type == SOCK_STREAM && protocol == IPPROTO_TCP;
  if (tcp) return FdKind::tcp;
  return type == SOCK_STREAM ? FdKind::stream : FdKind::datagram;
}

bool is_owned(int fd) noexcept {
  PollDesc* desc = find_desc(fd);
  if (desc) leave(*desc);
  return desc != nullptr;
}

}  // namespace

Result<Fd> Fd::own(int fd, FdKind kind) {
  PollDesc* desc = allocate_desc(fd, kind);
  if (!desc) return fail_errno(ENOMEM);
  return Fd(desc, desc->generation());
}

Result<Fd> Fd::adopt(int fd) {
  struct stat status;
  if (::fstat(fd, &status) != 0) return fail(last_errno());
  if (S_ISREG(status.st_mode) || S_ISDIR(status.st_mode)) return fail_errno(EPERM);
  if (is_owned(fd)) return fail_errno(EBUSY);
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0) return fail(last_errno());
  const bool blocking = (flags & O_NONBLOCK) == 0;
  if (blocking && ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) return fail(last_errno());
  auto owned = own(fd, S_ISSOCK(status.st_mode) ? kind_of_socket(fd) : FdKind::other);
  if (owned) {
    owned->desc_->restore_blocking = blocking;
  } else if (blocking) {
    ::fcntl(fd, F_SETFL, flags);
  }
  return owned;
}

int Fd::number() const noexcept {
  if (!desc_) return -1;
  const int fd = desc_->fd.load(std::memory_order_relaxed);
  const std::uint64_t word = desc_->word.load(std::memory_order_acquire);
  const bool live = PollDesc::generation_of(word) == generation_ && (word & PollDesc::kClosed) == 0;
  return live ? fd : -1;
}

Fd::Use::Use(const Fd& fd) noexcept {
  if (fd.desc_ && enter(*fd.desc_, fd.generation_)) desc_ = fd.desc_;
}
Fd::Use::~Use() {
  if (desc_) leave(*desc_);
}
int Fd::Use::number() const noexcept {
  return desc_ ? desc_->fd.load(std::memory_order_relaxed) : -1;
}

// ---------------------------------------------------------------- the end

bool Fd::begin_close() noexcept {
  if (!desc_ || !mark_closed(*desc_, generation_)) return false;
  end_waits(*desc_);
  return true;
}

void Fd::close() noexcept {
  if (begin_close()) leave(*desc_);
}

namespace {
// Drops the handle's reference and waits until the last one is gone. False: may not wait.
bool leave_and_wait(PollDesc& desc) noexcept {
  desc.lock.lock();
  const bool last = (desc.word.load(std::memory_order_acquire) & PollDesc::kReferences) == 1;
  if (last) {
    desc.lock.unlock();
    leave(desc);
    return true;
  }
  detail::WaitNode node(detail::begin_wait());
  desc.close_waiters.push_back(node);
  const void* shown = desc.shown();
  desc.lock.unlock();
  leave(desc);
  const auto code = detail::wait(
      node.token,
      {.reason = WaitReason::io_close, .object = shown, .cancellable = false, .external = true});
  if (code == detail::kWakeUser) return true;
  std::lock_guard hold(desc.lock);
  desc.close_waiters.remove_if_linked(node);
  return false;
}
}  // namespace

void Fd::close_wait() noexcept {
  if (begin_close()) leave_and_wait(*desc_);
}

Result<int> Fd::release() noexcept {
  if (!desc_) return fail(Errc::closed);
  const int fd = number();
  const bool blocking = desc_->restore_blocking;
  if (!begin_close()) return fail(Errc::closed);
  desc_->keep_open = true;  // before our reference goes
  leave_and_wait(*desc_);
  if (blocking) {
    const int flags = ::fcntl(fd, F_GETFL);
    if (flags >= 0) ::fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
  }
  return fd;
}

// ---------------------------------------------------------------- operations

namespace {

// The kernel ignores MSG_WAITALL on a non-blocking socket. With MSG_PEEK it may return less.
bool must_fill(const PollDesc& desc, int flags) noexcept {
  return (flags & MSG_WAITALL) && (flags & (MSG_PEEK | MSG_DONTWAIT)) == 0 &&
         (desc.kind == FdKind::tcp || desc.kind == FdKind::stream);
}

Result<std::size_t> recv_full(Netpoll& netpoll, PollDesc& desc, std::span<std::byte> buffer,
                              int flags, Deadline deadline) {
  std::size_t filled = 0;
  while (filled < buffer.size()) {
    const auto count = netpoll.recv(desc, buffer.subspan(filled), flags, deadline);
    if (!count && filled == 0) return count;
    if (!count || *count == 0) break;
    filled += *count;
  }
  return filled;
}

}  // namespace

Result<std::size_t> Fd::recv(std::span<std::byte> buffer, int flags, Deadline deadline) const {
  return operate<Result<std::size_t>>(
      desc_, generation_, kReadSide, deadline, [&](Netpoll& netpoll, PollDesc& desc) {
        if (must_fill(desc, flags)) [[unlikely]]
          return recv_full(netpoll, desc, buffer, flags & ~MSG_WAITALL, deadline);
        return netpoll.recv(desc, buffer, flags, deadline);
      });
}

Result<std::size_t> Fd::recv_late(RecvBuffer& buffer, Deadline deadline) const {
  return operate<Result<std::size_t>>(
      desc_, generation_, kReadSide, deadline,
      [&](Netpoll& netpoll, PollDesc& desc) { return netpoll.recv_late(desc, buffer, deadline); });
}

Result<std::size_t> Fd::send(std::span<const std::byte> data, int flags, Deadline deadline) const {
  return operate<Result<std::size_t>>(
      desc_, generation_, kWriteSide, deadline,
      [&](Netpoll& netpoll, PollDesc& desc) { return netpoll.send(desc, data, flags, deadline); });
}

Result<std::size_t> Fd::recvmsg(msghdr& message, int flags, Deadline deadline) const {
  return operate<Result<std::size_t>>(desc_, generation_, kReadSide, deadline,
                                      [&](Netpoll& netpoll, PollDesc& desc) {
                                        return netpoll.recvmsg(desc, message, flags, deadline);
                                      });
}

Result<std::size_t> Fd::sendmsg(const msghdr& message, int flags, Deadline deadline) const {
  return operate<Result<std::size_t>>(desc_, generation_, kWriteSide, deadline,
                                      [&](Netpoll& netpoll, PollDesc& desc) {
                                        return netpoll.sendmsg(desc, message, flags, deadline);
                                      });
}

Result<std::size_t> Fd::read(std::span<std::byte> buffer, Deadline deadline) const {
  return operate<Result<std::size_t>>(
      desc_, generation_, kReadSide, deadline,
      [&](Netpoll& netpoll, PollDesc& desc) { return netpoll.read(desc, buffer, deadline); });
}

Result<std::size_t> Fd::write(std::span<const std::byte> data, Deadline deadline) const {
  return operate<Result<std::size_t>>(
      desc_, generation_, kWriteSide, deadline,
      [&](Netpoll& netpoll, PollDesc& desc) { return netpoll.write(desc, data, deadline); });
}

namespace {

Result<std::size_t> send_batch(Netpoll& netpoll, PollDesc& desc, std::span<iovec> batch,
                               Deadline deadline) {
  if (batch.size() == 1)
    return netpoll.send(desc, {static_cast<const std::byte*>(batch[0].iov_base), batch[0].iov_len},
                        0, deadline);
  msghdr message{};
  message.msg_iov = batch.data();
  message.msg_iovlen = batch.size();
  return netpoll.sendmsg(desc, message, 0, deadline);
}

Result<void> send_buffers(Netpoll& netpoll, PollDesc& desc, std::span<const iovec> buffers,
                          Deadline deadline, std::size_t& sent) {
  std::size_t first = 0;   // the buffer to go on with
  std::size_t offset = 0;  // and where in it
  for (bool again = false;; again = true) {
    while (first < buffers.size() && buffers[first].iov_len == offset) {
      ++first;
      offset = 0;
    }
    if (first == buffers.size()) return {};
    if (again && deadline.passed()) return fail(Errc::timed_out);
    std::array<iovec, 16> batch;
    const std::size_t count = std::min(batch.size(), buffers.size() - first);
    std::copy_n(buffers.begin() + static_cast<std::ptrdiff_t>(first), count, batch.begin());
    batch[0].iov_base = static_cast<std::byte*>(batch[0].iov_base) + offset;
    batch[0].iov_len -= offset;
    RUNLOOM_TRY(const std::size_t moved,
                send_batch(netpoll, desc, std::span(batch).first(count), deadline));
    sent += moved;
    offset += moved;
    while (first < buffers.size() && offset >= buffers[first].iov_len) {
      offset -= buffers[first].iov_len;
      ++first;
    }
  }
}

}  // namespace

Result<void> Fd::send_all(std::span<const std::byte> data, Deadline deadline,
                          std::size_t* bytes_sent) const {
  if (bytes_sent) *bytes_sent = 0;
  if (data.empty()) return {};
  return operate<Result<void>>(desc_, generation_, kWriteSide, deadline,
                               [&](Netpoll& netpoll, PollDesc& desc) -> Result<void> {
                                 for (;;) {
                                   const auto moved = netpoll.send(desc, data, 0, deadline);
                                   if (!moved) return Unexpected{moved.error()};
                                   if (bytes_sent) *bytes_sent += *moved;
                                   if (*moved == data.size()) return {};
                                   data = data.subspan(*moved);
                                   // Each transfer makes an attempt even past the deadline; the
                                   // whole must end.
                                   if (deadline.passed()) return fail(Errc::timed_out);
                                 }
                               });
}

Result<void> Fd::send_all(std::span<const iovec> buffers, Deadline deadline,
                          std::size_t* bytes_sent) const {
  std::size_t sent = 0;
  auto result = operate<Result<void>>(desc_, generation_, kWriteSide, deadline,
                                      [&](Netpoll& netpoll, PollDesc& desc) {
                                        return send_buffers(netpoll, desc, buffers, deadline, sent);
                                      });
  if (bytes_sent) *bytes_sent = sent;
  return result;
}

Result<std::size_t> Fd::send_file(int in, off_t offset, std::size_t count, Deadline deadline,
                                  std::size_t* bytes_sent) const {
  constexpr std::size_t kPiece = 1 << 20;  // others run in between
  std::size_t sent = 0;
  auto result = operate<Result<void>>(
      desc_, generation_, kWriteSide, deadline,
      [&](Netpoll& netpoll, PollDesc& desc) -> Result<void> {
        while (sent < count) {
          ssize_t moved;
          {
            SigpipeGuard guard;
            moved = ::sendfile(desc.fd, in, &offset, std::min(kPiece, count - sent));
          }
          if (moved == 0) return {};
          if (moved > 0) {
            sent += static_cast<std::size_t>(moved);
            if (sent < count && deadline.passed()) return fail(Errc::timed_out);
            this_fiber::yield();
            if (desc.closed()) return fail(Errc::closed);
          } else if (would_block(errno)) {
            if (auto ready = netpoll.poll_desc(desc, kWrite, deadline); !ready)
              return Unexpected{ready.error()};
          } else if (errno != EINTR) {
            return fail(last_errno());
          }
        }
        return {};
      });
  if (bytes_sent) *bytes_sent = sent;
  if (!result) return Unexpected{result.error()};
  return sent;
}

Result<int> Fd::accept(sockaddr* peer, socklen_t* peer_size, Deadline deadline) const {
  return operate<Result<int>>(desc_, generation_, kReadSide, deadline,
                              [&](Netpoll& netpoll, PollDesc& desc) {
                                return netpoll.accept(desc, peer, peer_size, deadline);
                              });
}

Result<void> Fd::connect(const sockaddr* peer, socklen_t peer_size, Deadline deadline) const {
  return operate<Result<void>>(desc_, generation_, kWriteSide, deadline,
                               [&](Netpoll& netpoll, PollDesc& desc) {
                                 return netpoll.connect(desc, peer, peer_size, deadline);
                               });
}

Result<unsigned> Fd::wait_ready(unsigned directions, Deadline deadline) const {
  const Use use(*this);
  if (!use) return fail(Errc::closed);
  RUNLOOM_TRY(Netpoll* const netpoll, Netpoll::current());
  return netpoll->poll_desc(use.desc(), directions, deadline);
}

Result<void> Fd::shutdown(int how) const {
  const Use use(*this);
  if (!use) return fail(Errc::closed);
  RUNLOOM_TRY(Netpoll* const netpoll, Netpoll::current());
  return netpoll->shutdown(use.desc(), how);
}

}  // namespace runloom::net
