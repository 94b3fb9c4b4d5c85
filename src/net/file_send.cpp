// Between files, sockets and pipes.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "file_op.hpp"
#include "file_use.hpp"
#include "runloom/net/fd.hpp"
#include "runloom/net/file.hpp"

namespace runloom::net {
namespace {

constexpr std::size_t kPiece = 1024 * 1024;

struct Pipe {
  Pipe() noexcept {
    if (::pipe2(end, O_CLOEXEC | O_NONBLOCK) != 0) return;
    // More room saves system calls; what a user may have together is limited.
    ::fcntl(end[1], F_SETPIPE_SZ, static_cast<int>(kPiece));
  }
  ~Pipe() {
    for (const int fd : end)
      if (fd >= 0) ::close(fd);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  int end[2] = {-1, -1};
};

// What a socket has, into a pipe that is empty.
class ReceiveToPipe final : public Attempt {
 public:
  ReceiveToPipe(int pipe, std::size_t size) noexcept : pipe_(pipe), size_(size) {}
  ssize_t make(int fd) noexcept override {
    return ::splice(fd, nullptr, pipe_, nullptr, size_, SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
  }

 private:
  const int pipe_;
  const std::size_t size_;
};

// All of what the pipe has.
Result<void> write_pipe(int pipe, const FileUse& to, off_t offset, std::size_t size,
                        Deadline deadline, std::uint64_t& moved) {
  for (std::size_t done = 0; done < size;) {
    FileOp op(FileCall::splice);
    op.fd = pipe;
    op.other_fd = to.number();
    op.other_offset = offset + static_cast<off_t>(done);
    op.size = size - done;
    RUNLOOM_TRY(const long count, run_waiting(op, deadline));
    if (count == 0) return fail_errno(EIO);
    done += static_cast<std::size_t>(count);
    moved += static_cast<std::uint64_t>(count);
  }
  return {};
}

Result<void> copy_pieces(const FileUse& from, off_t from_offset, const FileUse& to, off_t to_offset,
                         std::uint64_t size, Deadline deadline, std::uint64_t& moved) {
  while (moved < size) {
    FileOp op(FileCall::copy);
    op.fd = from.number();
    op.offset = from_offset + static_cast<off_t>(moved);
    op.other_fd = to.number();
    op.other_offset = to_offset + static_cast<off_t>(moved);
    op.size = static_cast<std::size_t>(std::min<std::uint64_t>(size - moved, kPiece));
    RUNLOOM_TRY(const long count, run_waiting(op, deadline));
    if (count == 0) return {};
    moved += static_cast<std::uint64_t>(count);
  }
  return {};
}

// For file systems between which the kernel doesn't copy, and files that have no size (/proc).
Result<void> copy_through_memory(const File& from, off_t from_offset, const File& to,
                                 off_t to_offset, std::uint64_t size, Deadline deadline,
                                 std::uint64_t& moved) {
  constexpr std::size_t kBuffer = 256 * 1024;
  const AlignedMemory memory = allocate_aligned(kBuffer);
  if (!memory) return fail_errno(ENOMEM);
  while (moved < size) {
    const auto wanted = static_cast<std::size_t>(std::min<std::uint64_t>(size - moved, kBuffer));
    const auto at = static_cast<off_t>(moved);
    RUNLOOM_TRY(const std::size_t count,
                from.read_at({memory.get(), wanted}, from_offset + at, deadline));
    if (count == 0) return {};
    std::size_t written = 0;
    const auto done = to.write_all_at({memory.get(), count}, to_offset + at, deadline, &written);
    moved += written;
    if (!done) return done;
  }
  return {};
}

template <class T>
Result<T> with_count(const Result<void>& result, T moved, T* told) {
  if (told) *told = moved;
  if (!result) return Unexpected{result.error()};
  return moved;
}

bool is_unsupported(std::error_code error) noexcept {
  return error == errno_code(EXDEV) || error == errno_code(EINVAL) ||
         error == errno_code(EOPNOTSUPP) || error == errno_code(ENOSYS);
}

}  // namespace

Result<std::uint64_t> copy_range(const File& from, off_t from_offset, const File& to,
                                 off_t to_offset, std::uint64_t size, Deadline deadline,
                                 std::uint64_t* bytes_moved) {
  if (bytes_moved) *bytes_moved = 0;
  const FileUse source = use_of(from);
  const FileUse target = use_of(to);
  if (!source || !target) return fail(Errc::closed);
  if (from_offset < 0 || to_offset < 0) return fail_errno(EINVAL);
  std::uint64_t moved = 0;
  auto done = copy_pieces(source, from_offset, target, to_offset, size, deadline, moved);
  // copy_file_range says 0 for a file in /proc.
  if (moved == 0 && size != 0 && (done || is_unsupported(done.error())))
    done = copy_through_memory(from, from_offset, to, to_offset, size, deadline, moved);
  return with_count(done, moved, bytes_moved);
}

Result<std::size_t> send_file(const Fd& to, const File& from, off_t offset, std::size_t size,
                              Deadline deadline, std::size_t* bytes_moved) {
  if (bytes_moved) *bytes_moved = 0;
  const FileUse use = use_of(from);
  if (!use) return fail(Errc::closed);
  return to.send_file(use.number(), offset, size, deadline, bytes_moved);
}

Result<std::uint64_t> receive_file(const Fd& from, const File& to, off_t offset, std::uint64_t size,
                                   Deadline deadline, std::uint64_t* bytes_moved) {
  if (bytes_moved) *bytes_moved = 0;
  const FileUse use = use_of(to);
  if (!use) return fail(Errc::closed);
  if (offset < 0) return fail_errno(EINVAL);
  const Pipe pipe;
  if (pipe.end[1] < 0) return fail(last_errno());
  std::uint64_t moved = 0;
  Result<void> done;
  while (moved < size) {
    ReceiveToPipe receive(pipe.end[1],
                          static_cast<std::size_t>(std::min<std::uint64_t>(size - moved, kPiece)));
    const auto received = from.attempt(kRead, receive, 0, deadline);
    if (!received) done = Unexpected{received.error()};
    if (!received || *received == 0) break;
    done = write_pipe(pipe.end[0], use, offset + static_cast<off_t>(moved), *received, deadline,
                      moved);
    if (!done) break;
  }
  return with_count(done, moved, bytes_moved);
}

}  // namespace runloom::net
