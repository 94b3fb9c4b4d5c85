#include "runloom/net/fd_ops.hpp"

#include <fcntl.h>
#include <limits.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>

#include "file_transfer.hpp"
#include "io_loop.hpp"
#include "operation.hpp"
#include "reopen.hpp"
#include "runloom/net/fd.hpp"
#include "runloom/net/netpoll.hpp"
#include "runloom/sched/blocking.hpp"
#include "runloom/sched/fiber.hpp"

namespace runloom::net {
namespace {

// A reference to the live PollDesc of a number that is ours.
class Owner {
 public:
  explicit Owner(int fd) noexcept : desc_(find_desc(fd)) {}
  ~Owner() {
    if (desc_) leave(*desc_);
  }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;
  explicit operator bool() const noexcept { return desc_ != nullptr; }
  PollDesc* operator->() const noexcept { return desc_; }
  PollDesc* desc() const noexcept { return desc_; }

 private:
  PollDesc* const desc_;
};

// Calls, and waits for the direction while that would block. `call` returns bytes or -1 with errno.
template <class Call>
Result<std::size_t> transfer(int fd, unsigned direction, bool may_wait, Deadline deadline,
                             Call&& call) {
  std::error_code ended;
  for (;;) {
    const ssize_t moved = call();
    if (moved >= 0) return static_cast<std::size_t>(moved);
    if (errno == EINTR) continue;
    if (!would_block(errno)) return fail(last_errno());
    if (!may_wait) return fail_errno(EAGAIN);
    if (ended) return Unexpected{ended};
    if (deadline == Deadline::now()) return fail(Errc::timed_out);
    if (const auto ok = check_pollable(fd); !ok) return Unexpected{ok.error()};
    RUNLOOM_TRY(Netpoll* const netpoll, Netpoll::current());
    const auto ready = netpoll->poll_foreign(fd, direction, deadline);
    if (ready) continue;
    ended = ready.error();  // one last attempt: what has arrived wins
    if (ended != Errc::timed_out && ended != Errc::cancelled) return Unexpected{ended};
  }
}

bool is_type(int fd, mode_t type) noexcept {
  struct stat status;
  return ::fstat(fd, &status) == 0 && (status.st_mode & S_IFMT) == type;
}

// Files and devices of blocks: they make nobody wait for anybody, but may be slow.
bool is_file(int fd) noexcept {
  return is_type(fd, S_IFREG) || is_type(fd, S_IFBLK);
}

Result<void> wait_ready(int fd, unsigned direction, Deadline deadline) {
  if (!check_pollable(fd)) return {};
  RUNLOOM_TRY(Netpoll* const netpoll, Netpoll::current());
  RUNLOOM_TRY(const unsigned ready, poll_now(fd, direction));
  if (ready != 0) return {};
  const auto waited = netpoll->poll_foreign(fd, direction, deadline);
  if (!waited) return Unexpected{waited.error()};
  return {};
}

// For what the kernel can't be kept from blocking on. A FIFO is opened again for the one call, so
// that ten thousand readers who are woken by one byte block no thread (F18). Anything else, a
// terminal, is left to the pool once it is ready: somebody who comes first stops a thread and not
// the hub. `call(fd)` returns as system calls do.
template <class Call>
Result<std::size_t> transfer_blocking(int fd, unsigned direction, Deadline deadline, Call&& call) {
  for (;;) {
    if (const auto ready = wait_ready(fd, direction, deadline); !ready)
      return Unexpected{ready.error()};
    const auto fifo = is_type(fd, S_IFIFO) ? reopen(fd, direction == kRead ? O_RDONLY : O_WRONLY)
                                           : Result<OwnedFd>(fail_errno(ENXIO));
    if (!fifo) break;
    const ssize_t moved = call(fifo->number());
    if (moved >= 0) return static_cast<std::size_t>(moved);
    if (!would_block(errno) && errno != EINTR) return fail(last_errno());
    if (deadline == Deadline::now()) return fail(Errc::timed_out);
  }
  return blocking(
      [&]() -> Result<std::size_t> {
        for (;;) {
          const ssize_t moved = call(fd);
          if (moved >= 0) return static_cast<std::size_t>(moved);
          if (errno != EINTR) return fail(last_errno());
        }
      },
      deadline);
}

// What can be learned of a file is forgotten with the call: the number may name another one next.
Result<std::size_t> read_number(int fd, const iovec& buffer, off_t offset, Deadline deadline) {
  FileWays ways;
  ways.learn_flags(::fcntl(fd, F_GETFL));
  return read_file({fd, ways}, {&buffer, 1}, offset, deadline);
}
Result<std::size_t> write_number(int fd, const iovec& data, off_t offset, Deadline deadline) {
  FileWays ways;
  ways.learn_flags(::fcntl(fd, F_GETFL));
  return write_file({fd, ways}, {&data, 1}, offset, deadline);
}

bool needs_pool(const Result<std::size_t>& result, int fd) noexcept {
  if (result) return false;
  if (result.error() == errno_code(EOPNOTSUPP)) return true;
  // A directory: poll calls it ready, epoll refuses it.
  return result.error() == errno_code(EPERM) && !check_pollable(fd);
}

}  // namespace

// ---------------------------------------------------------------- read and write

Result<std::size_t> fd_read(int fd, std::span<std::byte> buffer, Deadline deadline) {
  if (const Owner owner(fd); owner)
    return operate<Result<std::size_t>>(owner.desc(), owner->generation(), kReadSide, deadline,
                                        [&](Netpoll& netpoll, PollDesc& desc) {
                                          return desc.kind == FdKind::other
                                                     ? netpoll.read(desc, buffer, deadline)
                                                     : netpoll.recv(desc, buffer, 0, deadline);
                                        });
  const iovec vector{buffer.data(), buffer.size()};
  if (is_file(fd)) return read_number(fd, vector, -1, deadline);
  auto moved = transfer(fd, kRead, true, deadline,
                        [&] { return ::preadv2(fd, &vector, 1, -1, RWF_NOWAIT); });
  if (!needs_pool(moved, fd)) return moved;
  return transfer_blocking(fd, kRead, deadline, [&](int number) {
    return ::read(number, buffer.data(), buffer.size());
  });
}

Result<std::size_t> fd_write(int fd, std::span<const std::byte> data, Deadline deadline) {
  if (const Owner owner(fd); owner)
    return operate_write<Result<std::size_t>>(
        owner.desc(), owner->generation(), deadline, [&](Netpoll& netpoll, PollDesc& desc) {
          return desc.kind == FdKind::other ? netpoll.write(desc, data, deadline)
                                            : netpoll.send(desc, data, 0, deadline);
        });
  const iovec vector{const_cast<std::byte*>(data.data()), data.size()};
  if (is_file(fd)) return write_number(fd, vector, -1, deadline);
  auto moved = transfer(fd, kWrite, true, deadline, [&] {
    SigpipeGuard guard;
    return ::pwritev2(fd, &vector, 1, -1, RWF_NOWAIT);
  });
  if (!needs_pool(moved, fd)) return moved;
  // A blocking write waits until all is taken; so much fits for certain once poll says ready.
  const std::size_t size = std::min<std::size_t>(data.size(), PIPE_BUF);
  return transfer_blocking(fd, kWrite, deadline, [&](int number) {
    SigpipeGuard guard;
    return ::write(number, data.data(), size);
  });
}

Result<std::size_t> fd_read_at(int fd, std::span<std::byte> buffer, off_t offset,
                               Deadline deadline) {
  if (offset < 0) return fail_errno(EINVAL);
  return read_number(fd, {buffer.data(), buffer.size()}, offset, deadline);
}

Result<std::size_t> fd_write_at(int fd, std::span<const std::byte> data, off_t offset,
                                Deadline deadline) {
  if (offset < 0) return fail_errno(EINVAL);
  return write_number(fd, {const_cast<std::byte*>(data.data()), data.size()}, offset, deadline);
}

Result<void> fd_write_all(int fd, std::span<const std::byte> data, Deadline deadline,
                          std::size_t* bytes_written) {
  std::size_t written = 0;
  Result<void> result;
  while (written < data.size()) {
    const auto count = fd_write(fd, data.subspan(written), deadline);
    if (count) written += *count;
    if (!count)
      result = Unexpected{count.error()};
    else if (written < data.size() && deadline.passed())
      result = fail(Errc::timed_out);
    if (!result) break;
  }
  if (bytes_written) *bytes_written = written;
  return result;
}

// ---------------------------------------------------------------- recv and send

Result<std::size_t> fd_recv(int fd, std::span<std::byte> buffer, int flags, Deadline deadline) {
  if (const Owner owner(fd); owner)
    return operate<Result<std::size_t>>(owner.desc(), owner->generation(), kReadSide, deadline,
                                        [&](Netpoll& netpoll, PollDesc& desc) {
                                          return netpoll.recv(desc, buffer, flags, deadline);
                                        });
  return transfer(fd, kRead, (flags & MSG_DONTWAIT) == 0, deadline,
                  [&] { return ::recv(fd, buffer.data(), buffer.size(), flags | MSG_DONTWAIT); });
}

Result<std::size_t> fd_send(int fd, std::span<const std::byte> data, int flags, Deadline deadline) {
  if (const Owner owner(fd); owner)
    return operate_write<Result<std::size_t>>(owner.desc(), owner->generation(), deadline,
                                              [&](Netpoll& netpoll, PollDesc& desc) {
                                                return netpoll.send(desc, data, flags, deadline);
                                              });
  return transfer(fd, kWrite, (flags & MSG_DONTWAIT) == 0, deadline, [&] {
    return ::send(fd, data.data(), data.size(), flags | MSG_DONTWAIT | MSG_NOSIGNAL);
  });
}

Result<void> fd_send_all(int fd, std::span<const std::byte> data, int flags, Deadline deadline,
                         std::size_t* bytes_sent) {
  std::size_t sent = 0;
  Result<void> result;
  while (sent < data.size()) {
    const auto count = fd_send(fd, data.subspan(sent), flags, deadline);
    if (count) sent += *count;
    if (!count)
      result = Unexpected{count.error()};
    else if (sent < data.size() && deadline.passed())
      result = fail(Errc::timed_out);
    if (!result) break;
  }
  if (bytes_sent) *bytes_sent = sent;
  return result;
}

}  // namespace runloom::net
