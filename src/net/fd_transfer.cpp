// The operations of Fd that are more than one transfer. They hold their direction all the while,
// so nobody else's bytes come in between.
#include <sys/sendfile.h>

#include <algorithm>
#include <array>

#include "file_cache.hpp"
#include "io_loop.hpp"
#include "operation.hpp"
#include "runloom/sched/blocking.hpp"
#include "runloom/sched/fiber.hpp"

namespace runloom::net {
namespace {

// ---------------------------------------------------------------- receive

// The kernel ignores MSG_WAITALL on a non-blocking socket. With MSG_PEEK it may return less.
bool must_fill(const PollDesc& desc, int flags) noexcept {
  return (flags & MSG_WAITALL) && (flags & (MSG_PEEK | MSG_DONTWAIT)) == 0 &&
         (desc.kind == FdKind::tcp || desc.kind == FdKind::stream);
}

Result<std::size_t> recv_full(Netpoll& netpoll, PollDesc& desc, std::span<std::byte> buffer,
                              int flags, Deadline deadline) {
  std::size_t filled = 0;
  while (filled < buffer.size()) {
    auto count = netpoll.recv(desc, buffer.subspan(filled), flags, deadline);
    if (!count && filled == 0) return count;
    if (!count || *count == 0) break;
    filled += *count;
  }
  return filled;
}

// ---------------------------------------------------------------- send

Result<std::size_t> send_one(Netpoll& netpoll, PollDesc& desc, std::span<const std::byte> data,
                             Deadline deadline) {
  if (desc.kind == FdKind::other) [[unlikely]]
    return netpoll.write(desc, data, deadline);
  return netpoll.send(desc, data, 0, deadline);
}

Result<std::size_t> send_batch(Netpoll& netpoll, PollDesc& desc, std::span<iovec> batch,
                               Deadline deadline) {
  if (batch.size() == 1 || desc.kind == FdKind::other)
    return send_one(netpoll, desc,
                    {static_cast<const std::byte*>(batch[0].iov_base), batch[0].iov_len}, deadline);
  msghdr message{};
  message.msg_iov = batch.data();
  message.msg_iovlen = batch.size();
  return netpoll.sendmsg(desc, message, 0, deadline);
}

// Each transfer makes an attempt even past the deadline; from the second on that would let a call
// go on for ever.
Result<void> send_data(Netpoll& netpoll, PollDesc& desc, std::span<const std::byte> data,
                       Deadline deadline, std::size_t& sent) {
  for (;;) {
    RUNLOOM_TRY(const std::size_t moved, send_one(netpoll, desc, data, deadline));
    sent += moved;
    if (moved == data.size()) return {};
    data = data.subspan(moved);
    if (deadline.passed()) return fail(Errc::timed_out);
  }
}

Result<void> send_buffers(Netpoll& netpoll, PollDesc& desc, std::span<const iovec> buffers,
                          Deadline deadline, std::size_t& sent) {
  std::size_t offset = 0;  // in the first of `buffers`
  const auto skip_sent = [&] {
    while (!buffers.empty() && offset >= buffers.front().iov_len) {
      offset -= buffers.front().iov_len;
      buffers = buffers.subspan(1);
    }
  };
  for (skip_sent(); !buffers.empty();) {
    std::array<iovec, 16> batch;
    const std::size_t count = std::min(batch.size(), buffers.size());
    std::copy_n(buffers.begin(), count, batch.begin());
    batch[0].iov_base = static_cast<std::byte*>(batch[0].iov_base) + offset;
    batch[0].iov_len -= offset;
    RUNLOOM_TRY(const std::size_t moved,
                send_batch(netpoll, desc, std::span(batch).first(count), deadline));
    sent += moved;
    offset += moved;
    skip_sent();
    if (!buffers.empty() && deadline.passed()) return fail(Errc::timed_out);
  }
  return {};
}

ssize_t send_piece(int out, int in, off_t& offset, std::size_t size) noexcept {
  SigpipeGuard guard;
  return ::sendfile(out, in, &offset, size);
}

// sendfile can't be told not to wait for the device. So what is not in memory is sent by a thread
// of the pool, which costs 4 us of processor time a piece; the socket makes nobody wait.
Result<ssize_t> send_piece_anywhere(int out, int in, off_t& offset, std::size_t size,
                                    Deadline deadline) {
  if (is_cached(in, offset, size)) return send_piece(out, in, offset, size);
  int err = 0;
  auto sent = blocking(
      [&] {
        const ssize_t moved = send_piece(out, in, offset, size);
        err = errno;
        return moved;
      },
      deadline);
  errno = err;
  return sent;
}

Result<void> send_pieces(Netpoll& netpoll, PollDesc& desc, int in, off_t offset, std::size_t count,
                         Deadline deadline, std::size_t& sent) {
  constexpr std::size_t kPiece = 1 << 18;  // others run in between
  while (sent < count) {
    RUNLOOM_TRY(const ssize_t moved,
                send_piece_anywhere(desc.fd, in, offset, std::min(kPiece, count - sent), deadline));
    if (moved == 0) return {};
    if (moved > 0) {
      sent += static_cast<std::size_t>(moved);
      if (sent == count) return {};
      if (deadline.passed()) return fail(Errc::timed_out);
      this_fiber::yield();
      if (desc.closed()) return fail(Errc::closed);
    } else if (would_block(errno)) {
      const auto ready = netpoll.poll_desc(desc, kWrite, deadline);
      if (!ready) return Unexpected{ready.error()};
    } else if (errno != EINTR) {
      return fail(last_errno());
    }
  }
  return {};
}

// A message that the caller gave up on in the middle: unless he knows how far it got, whatever is
// written next would land inside of it.
Result<void> note_cut(PollDesc& desc, Result<void> result, const std::size_t& sent,
                      bool caller_knows) {
  if (!result && sent != 0 && !caller_knows &&
      (result.error() == Errc::cancelled || result.error() == Errc::timed_out))
    desc.write_broken = true;
  return result;
}

}  // namespace

Result<std::size_t> Fd::recv(std::span<std::byte> buffer, int flags, Deadline deadline) const {
  return operate_read<Result<std::size_t>>(
      desc_, generation_, deadline, [&](Netpoll& netpoll, PollDesc& desc) {
        if (must_fill(desc, flags)) [[unlikely]]
          return recv_full(netpoll, desc, buffer, flags & ~MSG_WAITALL, deadline);
        return netpoll.recv(desc, buffer, flags, deadline);
      });
}

Result<void> Fd::send_all(std::span<const std::byte> data, Deadline deadline,
                          std::size_t* bytes_sent) const {
  std::size_t sent = 0;
  if (bytes_sent) *bytes_sent = 0;
  if (data.empty()) return {};
  auto result = operate_write<Result<void>>(
      desc_, generation_, deadline, [&](Netpoll& netpoll, PollDesc& desc) {
        return note_cut(desc, send_data(netpoll, desc, data, deadline, sent), sent, bytes_sent);
      });
  if (bytes_sent) *bytes_sent = sent;
  return result;
}

Result<void> Fd::send_all(std::span<const iovec> buffers, Deadline deadline,
                          std::size_t* bytes_sent) const {
  std::size_t sent = 0;
  auto result = operate_write<Result<void>>(
      desc_, generation_, deadline, [&](Netpoll& netpoll, PollDesc& desc) {
        return note_cut(desc, send_buffers(netpoll, desc, buffers, deadline, sent), sent,
                        bytes_sent);
      });
  if (bytes_sent) *bytes_sent = sent;
  return result;
}

Result<std::size_t> Fd::send_file(int in, off_t offset, std::size_t count, Deadline deadline,
                                  std::size_t* bytes_sent) const {
  std::size_t sent = 0;
  const auto result = operate_write<Result<void>>(
      desc_, generation_, deadline, [&](Netpoll& netpoll, PollDesc& desc) {
        return note_cut(desc, send_pieces(netpoll, desc, in, offset, count, deadline, sent), sent,
                        bytes_sent);
      });
  if (bytes_sent) *bytes_sent = sent;
  if (!result) return Unexpected{result.error()};
  return sent;
}

}  // namespace runloom::net
