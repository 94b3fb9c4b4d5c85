#include "runloom/net/pipe.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>

#include "poll_desc.hpp"
#include "reopen.hpp"

namespace runloom::net {
namespace {

Result<Fd> adopt_end(int fd, int access) {
  struct stat status;
  if (::fstat(fd, &status) != 0) return fail(last_errno());
  if (!S_ISFIFO(status.st_mode)) return fail_errno(EINVAL);
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0) return fail(last_errno());
  const int mode = flags & O_ACCMODE;
  if (mode != O_RDWR && mode != access) return fail_errno(EBADF);
  if (is_owned(fd)) return fail_errno(EBUSY);
  auto own = reopen(fd, access);
  if (!own) return Fd::adopt(fd);
  // First what can fail, then the number.
  auto owned = Fd::own(fd, FdKind::other);
  if (!owned) return owned;
  if (::dup3(own->number(), fd, O_CLOEXEC) < 0) {
    const auto error = last_errno();
    ::fcntl(fd, F_SETFL, flags | O_NONBLOCK);  // release() takes it away again
    if (owned->release() && (flags & O_NONBLOCK) != 0) ::fcntl(fd, F_SETFL, flags);
    return Unexpected{error};
  }
  return owned;
}

}  // namespace

Result<Pipe> Pipe::make() {
  std::array<int, 2> ends;
  if (::pipe2(ends.data(), O_NONBLOCK | O_CLOEXEC) != 0) return fail(last_errno());
  auto reader = Fd::own(ends[0], FdKind::other);
  auto writer = reader ? Fd::own(ends[1], FdKind::other) : Unexpected{reader.error()};
  if (!reader) ::close(ends[0]);
  if (!writer) {
    ::close(ends[1]);
    return Unexpected{writer.error()};
  }
  return Pipe{PipeReader(std::move(*reader)), PipeWriter(std::move(*writer))};
}

Result<PipeReader> PipeReader::adopt(int fd) {
  RUNLOOM_TRY(Fd owned, adopt_end(fd, O_RDONLY));
  return PipeReader(std::move(owned));
}

Result<PipeWriter> PipeWriter::adopt(int fd) {
  RUNLOOM_TRY(Fd owned, adopt_end(fd, O_WRONLY));
  return PipeWriter(std::move(owned));
}

Result<std::size_t> PipeReader::read_some(std::span<std::byte> buffer, Deadline deadline) {
  if (buffer.empty()) return std::size_t{0};
  return fd_.read(buffer, deadline);
}

Result<void> PipeReader::wait_readable(Deadline deadline) {
  const auto ready = fd_.wait_ready(kRead, deadline);
  if (!ready) return Unexpected{ready.error()};
  return {};
}

Result<std::size_t> PipeReader::write_some(std::span<const std::byte>, Deadline) {
  return fail_errno(EBADF);
}
Result<void> PipeReader::shutdown_write() {
  return fail_errno(EBADF);
}

Result<std::size_t> PipeWriter::write_some(std::span<const std::byte> data, Deadline deadline) {
  if (data.empty()) return std::size_t{0};
  return fd_.write(data, deadline);
}

Result<void> PipeWriter::wait_writable(Deadline deadline) {
  const auto ready = fd_.wait_ready(kWrite, deadline);
  if (!ready) return Unexpected{ready.error()};
  return {};
}

Result<void> PipeWriter::shutdown_write() {
  if (!fd_) return fail(Errc::closed);
  fd_.close();
  return {};
}

Result<std::size_t> PipeWriter::read_some(std::span<std::byte>, Deadline) {
  return fail_errno(EBADF);
}
Result<void> PipeWriter::wait_readable(Deadline) {
  return fail_errno(EBADF);
}

}  // namespace runloom::net
