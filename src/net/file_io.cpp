// Reads and writes of a File.
#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <new>

#include "file_transfer.hpp"
#include "file_use.hpp"
#include "runloom/net/buffered.hpp"
#include "runloom/net/file.hpp"

namespace runloom::net {
namespace {

using Transfer = Result<std::size_t>(const FileTarget& target, std::span<const iovec> buffers,
                                     off_t offset, Deadline deadline);

iovec vector_of(std::span<std::byte> buffer) noexcept {
  return {buffer.data(), buffer.size()};
}
iovec vector_of(std::span<const std::byte> data) noexcept {
  return {const_cast<std::byte*>(data.data()), data.size()};
}

Result<std::size_t> transfer_at(Transfer* transfer, const FileUse& use,
                                std::span<const iovec> buffers, off_t offset, Deadline deadline) {
  if (!use) return fail(Errc::closed);
  if (offset < 0) return fail_errno(EINVAL);
  return transfer({use.number(), use.state().ways, &use}, buffers, offset, deadline);
}

// One after the other: a transfer of several pieces must find the position where it left it.
Result<std::size_t> transfer_here(Transfer* transfer, const FileUse& use,
                                  std::span<const iovec> buffers, Deadline deadline) {
  if (!use) return fail(Errc::closed);
  Mutex& position = use.state().position;
  if (const auto locked = position.lock(deadline); !locked) return Unexpected{locked.error()};
  auto moved = transfer({use.number(), use.state().ways, &use}, buffers, -1, deadline);
  position.unlock();
  return moved;
}

// Calls `some(done)`, which transfers what comes next, until `size` bytes are done.
template <class Some>
Result<void> whole(std::size_t size, std::error_code at_end, Deadline deadline, std::size_t* count,
                   Some&& some) {
  std::size_t done = 0;
  Result<void> result;
  do {
    const auto moved = some(done);
    if (moved) done += *moved;
    if (!moved)
      result = Unexpected{moved.error()};
    else if (*moved == 0 && done < size)
      result = fail(at_end);
    else if (done < size && deadline.passed())
      result = fail(Errc::timed_out);
  } while (result && done < size);
  if (count) *count = done;
  return result;
}

std::error_code no_more() noexcept {
  return make_error_code(ReadErrc::end_of_stream);
}

}  // namespace

// ---------------------------------------------------------------- from and to an offset

Result<std::size_t> File::readv_at(std::span<const iovec> buffers, off_t offset,
                                   Deadline deadline) const {
  return transfer_at(&read_file, use_of(*this), buffers, offset, deadline);
}

Result<std::size_t> File::writev_at(std::span<const iovec> buffers, off_t offset,
                                    Deadline deadline) const {
  return transfer_at(&write_file, use_of(*this), buffers, offset, deadline);
}

Result<std::size_t> File::read_at(std::span<std::byte> buffer, off_t offset,
                                  Deadline deadline) const {
  const iovec vector = vector_of(buffer);
  // Most reads are small and find all in memory: for them the object itself keeps the state, which
  // saves four atomic operations, a twentieth of such a read.
  if (offset >= 0 && buffer.size() <= kWholeHere && state_ && state_->enter()) {
    const ssize_t moved = transfer_now(false, {state_->fd, state_->ways}, {&vector, 1}, offset);
    state_->leave();
    if (moved >= 0 && static_cast<std::size_t>(moved) == buffer.size()) {
      take_turns(buffer.size());
      return buffer.size();
    }
  }
  return transfer_at(&read_file, use_of(*this), {&vector, 1}, offset, deadline);
}

Result<std::size_t> File::write_at(std::span<const std::byte> data, off_t offset,
                                   Deadline deadline) const {
  const iovec vector = vector_of(data);
  return transfer_at(&write_file, use_of(*this), {&vector, 1}, offset, deadline);
}

Result<void> File::read_exact_at(std::span<std::byte> buffer, off_t offset, Deadline deadline,
                                 std::size_t* bytes_read) const {
  return whole(buffer.size(), no_more(), deadline, bytes_read, [&](std::size_t done) {
    return read_at(buffer.subspan(done), offset + static_cast<off_t>(done), deadline);
  });
}

Result<void> File::write_all_at(std::span<const std::byte> data, off_t offset, Deadline deadline,
                                std::size_t* bytes_written) const {
  return whole(data.size(), errno_code(ENOSPC), deadline, bytes_written, [&](std::size_t done) {
    return write_at(data.subspan(done), offset + static_cast<off_t>(done), deadline);
  });
}

// ---------------------------------------------------------------- at the position

Result<std::size_t> File::readv(std::span<const iovec> buffers, Deadline deadline) const {
  return transfer_here(&read_file, use_of(*this), buffers, deadline);
}

Result<std::size_t> File::writev(std::span<const iovec> buffers, Deadline deadline) const {
  return transfer_here(&write_file, use_of(*this), buffers, deadline);
}

Result<std::size_t> File::read(std::span<std::byte> buffer, Deadline deadline) const {
  const iovec vector = vector_of(buffer);
  return readv({&vector, 1}, deadline);
}

Result<std::size_t> File::write(std::span<const std::byte> data, Deadline deadline) const {
  const iovec vector = vector_of(data);
  return writev({&vector, 1}, deadline);
}

Result<void> File::read_exact(std::span<std::byte> buffer, Deadline deadline,
                              std::size_t* bytes_read) const {
  return whole(buffer.size(), no_more(), deadline, bytes_read,
               [&](std::size_t done) { return read(buffer.subspan(done), deadline); });
}

Result<void> File::write_all(std::span<const std::byte> data, Deadline deadline,
                             std::size_t* bytes_written) const {
  return whole(data.size(), errno_code(ENOSPC), deadline, bytes_written,
               [&](std::size_t done) { return write(data.subspan(done), deadline); });
}

Result<std::string> File::read_all(std::size_t limit, Deadline deadline) const {
  constexpr std::size_t kFirst = 16 * 1024;
  try {
    RUNLOOM_TRY(const FileStatus known, status(deadline));
    std::string text;
    // One byte more than the size: a read of 0 bytes tells the end, and costs no second room.
    std::size_t room = std::min<std::uint64_t>(known.size, limit) + 1;
    if (known.size == 0) room = kFirst;
    for (std::size_t filled = 0;;) {
      text.resize(filled + room);
      RUNLOOM_TRY(const std::size_t count,
                  read(std::as_writable_bytes(std::span(text)).subspan(filled), deadline));
      filled += count;
      if (filled > limit) return fail(make_error_code(ReadErrc::limit_exceeded));
      if (count == 0) {
        text.resize(filled);
        return text;
      }
      room = std::max(text.size() - filled, std::max(filled / 2, kFirst));
    }
  } catch (const std::bad_alloc&) {
    return fail_errno(ENOMEM);
  }
}

}  // namespace runloom::net
