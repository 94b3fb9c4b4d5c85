#include "net/foreign.hpp"

#include <Python.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "core/g.hpp"
#include "net/unlocked.hpp"
#include "runloom/net/fd_ops.hpp"
#include "runloom/net/netpoll.hpp"

namespace runloom::python {
namespace {

// Transfers in a row without a wait after which others run.
constexpr unsigned kEagerLimit = 16;
unsigned eager = 0;  // guarded by the GIL

void progressed(bool waited) noexcept {
  if (waited) {
    eager = 0;
  } else if (++eager >= kEagerLimit) {
    eager = 0;
    const G* g = current_g();
    if (g && !g->noyield && may_park(*tl_home)) this_fiber::yield();
  }
}

Result<void> wait_for(int fd, unsigned direction) {
  const auto ready = net::wait_fd(fd, direction);
  if (!ready) return Unexpected{ready.error()};
  return {};
}

bool would_block(int err) noexcept {
  return err == EAGAIN || err == EWOULDBLOCK;
}

// "Call, retry on EINTR, wait on EAGAIN, call again." The call returns as system calls do.
template <class Call>
Result<std::size_t> transfer(int fd, unsigned direction, int flags, Call&& call) {
  for (bool waited = false;;) {
    const ssize_t moved = call();
    if (moved >= 0) {
      progressed(waited);
      return static_cast<std::size_t>(moved);
    }
    if (errno == EINTR) continue;
    if (!would_block(errno) || (flags & MSG_DONTWAIT)) return fail(last_errno());
    if (auto ready = wait_for(fd, direction); !ready) return Unexpected{ready.error()};
    waited = true;
  }
}

// ---------------------------------------------------------------- what is no socket

enum class Way { nonblocking, poll_first, blocking };

// After a call with RWF_NOWAIT said `err`: how to go on.
Way way_after(int fd, int err, unsigned direction, Result<void>& ready) {
  if (would_block(err)) {
    ready = wait_for(fd, direction);
    if (ready) return Way::nonblocking;
  } else {
    ready = wait_for(fd, direction);
    if (ready) return Way::poll_first;
  }
  // Files and directories are always ready, and may be slow.
  if (ready.error() == errno_code(EPERM)) {
    ready = {};
    return Way::blocking;
  }
  return Way::poll_first;
}

bool is_unsupported(int err) noexcept {
  return err == EOPNOTSUPP || err == EINVAL || err == ENOSYS;
}

constexpr std::size_t kFilePiece = std::size_t{1} << 20;

// Appends what read(2) gives until `size` bytes, the end of the file or an error after some bytes.
// Returns the errno of an error before the first byte, else 0.
int read_up_to(int fd, std::vector<std::byte>& bytes, std::size_t size) noexcept {
  try {
    while (bytes.size() < size) {
      const std::size_t before = bytes.size();
      const std::size_t piece = std::min(size - before, kFilePiece);
      bytes.resize(before + piece);
      const ssize_t moved = ::read(fd, bytes.data() + before, piece);
      const int err = errno;
      bytes.resize(before + static_cast<std::size_t>(std::max<ssize_t>(moved, 0)));
      if (moved < 0) return before == 0 ? err : 0;
      if (static_cast<std::size_t>(moved) < piece) return 0;
    }
    return 0;
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  }
}

// On a thread of the pool, piece by piece: the buffer's memory may be shared by all fibers, so the
// bytes come into memory of this call's own first, which a read of any size must not exhaust.
Result<std::size_t> read_file(int fd, net::RecvBuffer& buffer, std::size_t size) {
  std::vector<std::byte> bytes;
  int err = 0;
  auto called = unlocked([&]() noexcept { err = read_up_to(fd, bytes, size); });
  if (!called) return Unexpected{called.error()};
  if (err != 0) return fail_errno(err);
  const auto memory = buffer.take();
  if (memory.empty()) return fail_errno(ENOMEM);
  std::copy(bytes.begin(), bytes.end(), memory.begin());
  buffer.give_back(static_cast<std::ptrdiff_t>(bytes.size()));
  return bytes.size();
}

// What can't be told not to block, FIFOs and terminals: several readers may be woken by one byte,
// so the call must not be made here. Into memory of this call's own, as above.
Result<std::size_t> read_in_turn(int fd, net::RecvBuffer& buffer, std::size_t size) {
  constexpr std::size_t kMost = std::size_t{64} * 1024;
  try {
    std::vector<std::byte> bytes(std::min(size, kMost));
    RUNLOOM_TRY(const std::size_t count, net::fd_read(fd, bytes));
    const auto memory = buffer.take();
    if (memory.empty()) return fail_errno(ENOMEM);
    std::copy_n(bytes.begin(), count, memory.begin());
    buffer.give_back(static_cast<std::ptrdiff_t>(count));
    return count;
  } catch (const std::bad_alloc&) {
    return fail_errno(ENOMEM);
  }
}

}  // namespace

Result<std::size_t> foreign_recv(int fd, net::RecvBuffer& buffer, int flags) {
  return transfer(fd, net::kRead, flags, [&]() -> ssize_t {
    const auto memory = buffer.take();
    if (memory.empty()) {
      errno = ENOMEM;
      return -1;
    }
    const ssize_t moved = ::recv(fd, memory.data(), memory.size(), flags | MSG_DONTWAIT);
    buffer.give_back(moved);
    return moved;
  });
}

Result<std::size_t> foreign_send(int fd, std::span<const std::byte> data, int flags) {
  return transfer(fd, net::kWrite, flags, [&] {
    return ::send(fd, data.data(), data.size(), flags | MSG_DONTWAIT | MSG_NOSIGNAL);
  });
}

Result<std::size_t> foreign_read(int fd, net::RecvBuffer& buffer) {
  auto received = foreign_recv(fd, buffer, 0);
  if (received || received.error() != errno_code(ENOTSOCK)) return received;
  for (Way way = Way::nonblocking;;) {
    const auto memory = buffer.take();
    if (memory.empty()) return fail_errno(ENOMEM);
    const iovec part{memory.data(), memory.size()};
    ssize_t moved = -1;
    int err = 0;
    if (way == Way::blocking) {
      buffer.give_back(-1);
      auto read = read_file(fd, buffer, part.iov_len);
      if (!read && read.error() == errno_code(EINTR)) continue;
      return read;
    }
    if (way == Way::poll_first) {
      buffer.give_back(-1);
      return read_in_turn(fd, buffer, part.iov_len);
    }
    moved = ::preadv2(fd, &part, 1, -1, RWF_NOWAIT);
    err = errno;
    buffer.give_back(moved);
    if (moved >= 0) return static_cast<std::size_t>(moved);
    if (err == EINTR) continue;
    if (!would_block(err) && !is_unsupported(err)) return fail_errno(err);
    Result<void> ready;
    way = way_after(fd, err, net::kRead, ready);
    if (!ready) return Unexpected{ready.error()};
  }
}

Result<std::size_t> foreign_write(int fd, std::span<const std::byte> data) {
  auto sent = foreign_send(fd, data, 0);
  if (sent || sent.error() != errno_code(ENOTSOCK)) return sent;
  const iovec part{const_cast<std::byte*>(data.data()), data.size()};
  for (Way way = Way::nonblocking;;) {
    ssize_t moved = -1;
    int err = 0;
    if (way == Way::blocking) {
      auto called = unlocked([&] {
        moved = ::write(fd, data.data(), data.size());
        err = errno;
      });
      if (!called) return Unexpected{called.error()};
    } else if (way == Way::poll_first) {
      return net::fd_write(fd, data);
    } else {
      moved = ::pwritev2(fd, &part, 1, -1, RWF_NOWAIT);
      err = errno;
    }
    if (moved >= 0) return static_cast<std::size_t>(moved);
    if (err == EINTR) continue;
    if (!would_block(err) && !is_unsupported(err)) return fail_errno(err);
    Result<void> ready;
    way = way_after(fd, err, net::kWrite, ready);
    if (!ready) return Unexpected{ready.error()};
  }
}

}  // namespace runloom::python
