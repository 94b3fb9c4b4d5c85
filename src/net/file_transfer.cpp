// A read of cached bytes costs less than any way to have it made elsewhere, so each transfer is
// tried here first, with RWF_NOWAIT. Where the kernel can't promise that (tmpfs, ext4's writes,
// /proc), that is learned once a file and not asked again.
//
// Whatever goes to the engine is cut into pieces. It bounds what a fiber that was cancelled still
// waits for, and the private memory of a read.
#include "file_transfer.hpp"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>

#include "file_op.hpp"
#include "runloom/sched/fiber.hpp"

namespace runloom::net {
namespace {

constexpr std::size_t kPieceAway = 1024 * 1024;    // by the engine, into the caller's memory
constexpr std::size_t kPiecePrivate = 256 * 1024;  // by the engine, into memory of its own

// Buffers of which the first bytes are done.
class Cursor {
 public:
  explicit Cursor(std::span<const iovec> buffers) noexcept : buffers_(buffers) { skip(0); }
  bool at_end() const noexcept { return buffers_.empty(); }

  // The next ones, `most` bytes together at most. Valid until the next call.
  std::span<const iovec> next(std::size_t most) noexcept {
    std::size_t count = 0;
    size_ = 0;
    std::size_t offset = offset_;
    for (const iovec& buffer : buffers_) {
      if (count == batch_.size() || size_ == most) break;
      const std::size_t length = std::min(buffer.iov_len - offset, most - size_);
      batch_[count++] = {static_cast<std::byte*>(buffer.iov_base) + offset, length};
      size_ += length;
      offset = 0;
    }
    return {batch_.data(), count};
  }
  // Of what next() returned last.
  std::size_t size() const noexcept { return size_; }

  void skip(std::size_t count) noexcept {
    offset_ += count;
    while (!buffers_.empty() && offset_ >= buffers_.front().iov_len) {
      offset_ -= buffers_.front().iov_len;
      buffers_ = buffers_.subspan(1);
    }
  }
  // Copies into the buffers and skips that.
  void fill(const std::byte* bytes, std::size_t count) noexcept {
    while (count != 0) {
      const std::size_t length = std::min(buffers_.front().iov_len - offset_, count);
      std::memcpy(static_cast<std::byte*>(buffers_.front().iov_base) + offset_, bytes, length);
      bytes += length;
      count -= length;
      skip(length);
    }
  }

 private:
  std::span<const iovec> buffers_;
  std::size_t offset_ = 0;  // in the first one
  std::size_t size_ = 0;
  std::array<iovec, 16> batch_;
};

// Whether the file is in a tmpfs: its pages may have been swapped out, as those of any program.
// Only such files have seals. statfs(2) would ask a network file system's server.
bool in_memory(int fd) noexcept {
  return ::fcntl(fd, F_GET_SEALS) >= 0;
}

// Reads into memory of the operation, which a cancelled fiber leaves behind.
Result<std::size_t> read_privately(const FileTarget& target, Cursor& cursor, off_t offset,
                                   Deadline deadline) {
  (void)cursor.next(kPiecePrivate);
  auto op = std::unique_ptr<FileOp>(new (std::nothrow) FileOp(FileCall::read));
  if (!op) return fail_errno(ENOMEM);
  op->memory = allocate_aligned(cursor.size());
  if (!op->memory) return fail_errno(ENOMEM);
  op->fd = target.fd;
  op->offset = offset;
  op->own_vector = {op->memory.get(), cursor.size()};
  op->vectors = &op->own_vector;
  op->vector_count = 1;
  if (target.use) op->use = target.use->again();
  RUNLOOM_TRY(const long moved, run_or_leave(op, deadline));
  cursor.fill(op->memory.get(), static_cast<std::size_t>(moved));
  return static_cast<std::size_t>(moved);
}

// Transfers the caller's memory itself, and stays until that has ended.
Result<std::size_t> transfer_waiting(FileCall call, const FileTarget& target, Cursor& cursor,
                                     off_t offset, Deadline deadline) {
  const auto vectors = cursor.next(kPieceAway);
  FileOp op(call);
  op.fd = target.fd;
  op.offset = offset;
  op.vectors = vectors.data();
  op.vector_count = static_cast<unsigned>(vectors.size());
  RUNLOOM_TRY(const long moved, run_waiting(op, deadline));
  cursor.skip(static_cast<std::size_t>(moved));
  return static_cast<std::size_t>(moved);
}

Result<std::size_t> transfer_away(bool write, const FileTarget& target, Cursor& cursor,
                                  off_t offset, Deadline deadline) {
  if (write) return transfer_waiting(FileCall::write, target, cursor, offset, deadline);
  // What a read at the position took would be lost with a fiber that left. Off a fiber nobody
  // leaves.
  if (offset < 0 || !detail::on_fiber())
    return transfer_waiting(FileCall::read, target, cursor, offset, deadline);
  return read_privately(target, cursor, offset, deadline);
}

Result<std::size_t> transfer(bool write, const FileTarget& target, std::span<const iovec> buffers,
                             off_t offset, Deadline deadline) {
  Cursor cursor(buffers);
  std::size_t done = 0;
  for (;;) {
    const off_t at = offset < 0 ? -1 : offset + static_cast<off_t>(done);
    const auto vectors = cursor.next(kWholeHere);
    const std::size_t wanted = cursor.size();
    const ssize_t moved = transfer_now(write, target, vectors, at);
    if (moved >= 0) {
      const auto count = static_cast<std::size_t>(moved);
      done += count;
      cursor.skip(count);
      take_turns(count);
      // Fewer than wanted may mean that the rest is not in memory: the next call tells.
      if (cursor.at_end() || count == 0) return done;
      if (count == wanted && (deadline.passed() || !this_fiber::check_cancelled())) return done;
      continue;
    }
    const int err = errno;
    if (err != EAGAIN) {
      if (done != 0) return done;
      return fail_errno(err);
    }
    auto away = transfer_away(write, target, cursor, at, deadline);
    if (!away) {
      if (done != 0) return done;
      return away;
    }
    done += *away;
    if (cursor.at_end()) return done;
    if (*away < cursor.size()) return done;
  }
}

}  // namespace

ssize_t transfer_now(bool write, const FileTarget& target, std::span<const iovec> buffers,
                     off_t offset) noexcept {
  std::atomic<Instant>& way = write ? target.ways.write : target.ways.read;
  const auto count = static_cast<int>(buffers.size());
  for (;;) {
    const Instant now = way.load(std::memory_order_relaxed);
    if (now == Instant::never) {
      errno = EAGAIN;
      return -1;
    }
    const int flags = now == Instant::try_it ? RWF_NOWAIT : 0;
    const ssize_t moved = write ? ::pwritev2(target.fd, buffers.data(), count, offset, flags)
                                : ::preadv2(target.fd, buffers.data(), count, offset, flags);
    if (moved >= 0) return moved;
    if (errno == EINTR) continue;
    if (errno != EOPNOTSUPP || flags == 0) return -1;
    way.store(in_memory(target.fd) ? Instant::always : Instant::never, std::memory_order_relaxed);
  }
}

void take_turns(std::size_t bytes) noexcept {
  constexpr std::size_t kCall = 16 * 1024;  // that much costs as much as the rest of the call
  thread_local std::size_t eager = 0;
  eager += bytes + kCall;
  if (eager < kWholeHere) return;
  eager = 0;
  if (detail::may_park()) this_fiber::yield();
}

Result<std::size_t> read_file(const FileTarget& target, std::span<const iovec> buffers,
                              off_t offset, Deadline deadline) {
  return transfer(false, target, buffers, offset, deadline);
}

Result<std::size_t> write_file(const FileTarget& target, std::span<const iovec> buffers,
                               off_t offset, Deadline deadline) {
  return transfer(true, target, buffers, offset, deadline);
}

}  // namespace runloom::net
