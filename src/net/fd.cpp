#include "runloom/net/fd.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <mutex>

#include "operation.hpp"

namespace runloom::net {
namespace {

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

bool Fd::begin_close(bool only_if_unused) noexcept {
  if (!desc_ || !mark_closed(*desc_, generation_, only_if_unused)) return false;
  end_waits(*desc_);
  return true;
}

void Fd::close() noexcept {
  if (begin_close()) leave(*desc_);
}

namespace {
constexpr std::chrono::seconds kThreadWaits{1};  // of an OS thread, for fibers to leave

// Drops the handle's reference and waits until the last one is gone. False: may not wait, or not
// any longer.
bool leave_and_wait(PollDesc& desc, Deadline deadline = {}) noexcept {
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
  const auto limit =
      detail::on_fiber() ? deadline : Deadline::earlier(deadline, Deadline::after(kThreadWaits));
  const auto code = detail::wait(node.token, {.reason = WaitReason::io_close,
                                              .object = shown,
                                              .deadline = limit,
                                              .cancellable = false,
                                              .external = true});
  if (code == detail::kWakeUser) return true;
  std::lock_guard hold(desc.lock);
  desc.close_waiters.remove_if_linked(node);
  return false;
}
}  // namespace

void Fd::close_wait(Deadline deadline) noexcept {
  if (begin_close()) leave_and_wait(*desc_, deadline);
}

Result<int> Fd::release() noexcept {
  if (!desc_) return fail(Errc::closed);
  const int fd = number();
  const bool blocking = desc_->restore_blocking;
  if (!begin_close(!detail::may_park()))
    return number() < 0 ? fail(Errc::closed) : fail_errno(EBUSY);
  desc_->keep_open = true;  // before our reference goes
  leave_and_wait(*desc_);
  if (blocking) {
    const int flags = ::fcntl(fd, F_GETFL);
    if (flags >= 0) ::fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
  }
  return fd;
}

// ---------------------------------------------------------------- operations

Result<std::size_t> Fd::recv_late(RecvBuffer& buffer, Deadline deadline) const {
  return operate_read<Result<std::size_t>>(
      desc_, generation_, deadline,
      [&](Netpoll& netpoll, PollDesc& desc) { return netpoll.recv_late(desc, buffer, deadline); });
}

Result<std::size_t> Fd::send(std::span<const std::byte> data, int flags, Deadline deadline) const {
  return operate_write<Result<std::size_t>>(
      desc_, generation_, deadline,
      [&](Netpoll& netpoll, PollDesc& desc) { return netpoll.send(desc, data, flags, deadline); });
}

Result<std::size_t> Fd::recvmsg(msghdr& message, int flags, Deadline deadline) const {
  return operate_read<Result<std::size_t>>(desc_, generation_, deadline,
                                           [&](Netpoll& netpoll, PollDesc& desc) {
                                             return netpoll.recvmsg(desc, message, flags, deadline);
                                           });
}

Result<std::size_t> Fd::sendmsg(const msghdr& message, int flags, Deadline deadline) const {
  return operate_write<Result<std::size_t>>(
      desc_, generation_, deadline, [&](Netpoll& netpoll, PollDesc& desc) {
        return netpoll.sendmsg(desc, message, flags, deadline);
      });
}

Result<std::size_t> Fd::attempt(unsigned direction, Attempt& attempt, int flags,
                                Deadline deadline) const {
  const auto make = [&](Netpoll& netpoll, PollDesc& desc) {
    return netpoll.attempt(desc, direction, attempt, flags, deadline);
  };
  if (direction == kWrite)
    return operate_write<Result<std::size_t>>(desc_, generation_, deadline, make);
  return operate_read<Result<std::size_t>>(desc_, generation_, deadline, make);
}

Result<std::size_t> Fd::read(std::span<std::byte> buffer, Deadline deadline) const {
  return operate_read<Result<std::size_t>>(
      desc_, generation_, deadline,
      [&](Netpoll& netpoll, PollDesc& desc) { return netpoll.read(desc, buffer, deadline); });
}

Result<std::size_t> Fd::write(std::span<const std::byte> data, Deadline deadline) const {
  return operate_write<Result<std::size_t>>(
      desc_, generation_, deadline,
      [&](Netpoll& netpoll, PollDesc& desc) { return netpoll.write(desc, data, deadline); });
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
