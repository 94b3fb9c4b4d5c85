// The life of a File, and what concerns the file as a whole. Reads and writes: file_io.cpp.
#include "runloom/net/file.hpp"

#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <new>

#include "file_engine.hpp"
#include "file_op.hpp"
#include "file_state.hpp"
#include "file_use.hpp"

namespace runloom::net {
namespace {

// Neither waits for anything: what is read and written there has a position.
Result<void> check_type(int fd) noexcept {
  struct stat status;
  if (::fstat(fd, &status) != 0) return fail(last_errno());
  if (S_ISREG(status.st_mode) || S_ISDIR(status.st_mode) || S_ISBLK(status.st_mode)) return {};
  if (S_ISLNK(status.st_mode)) return {};                                   // O_PATH | O_NOFOLLOW
  if (S_ISCHR(status.st_mode) && ::lseek(fd, 0, SEEK_CUR) >= 0) return {};  // /dev/zero
  return fail_errno(ESPIPE);
}

// An open with one of these makes a file, or empties one.
constexpr int kChanges = O_CREAT | O_TRUNC | (O_TMPFILE & ~O_DIRECTORY);

// As openat(2), if the kernel has all it takes in memory: EAGAIN if not, or if it can't tell.
int open_now(int directory, const char* path, int flags) noexcept {
  static std::atomic<bool> is_missing{false};
  if ((flags & kChanges) == 0 && !pool_is_preferred() &&
      !is_missing.load(std::memory_order_relaxed)) {
    open_how how{};
    how.flags = static_cast<std::uint64_t>(flags);
    how.resolve = RESOLVE_CACHED;
    const long fd = ::syscall(SYS_openat2, directory, path, &how, sizeof how);
    if (fd >= 0) return static_cast<int>(fd);
    if (errno == ENOSYS) is_missing.store(true, std::memory_order_relaxed);
    // EPERM: a seccomp filter. EINVAL: flags that openat(2) does not mind.
    if (errno != ENOSYS && errno != EPERM && errno != EINVAL) return -1;
  }
  errno = EAGAIN;
  return -1;
}

Result<int> open_anywhere(int directory, FileUse use, std::string path, int flags, mode_t mode,
                          Deadline deadline) {
  const int opened = open_now(directory, path.c_str(), flags);
  if (opened >= 0) return opened;
  if (errno != EAGAIN) return fail(last_errno());
  auto op = std::unique_ptr<FileOp>(new (std::nothrow) FileOp(FileCall::open));
  if (!op) return fail_errno(ENOMEM);
  op->fd = directory;
  op->use = std::move(use);
  op->path = std::move(path);
  op->flags = flags;
  op->mode = mode;
  // Who gave up an open that makes a file, or empties one, must not find that done later.
  const bool changes = (flags & kChanges) != 0;
  RUNLOOM_TRY(const long fd, changes ? run_waiting(*op, deadline) : run_or_leave(op, deadline));
  return static_cast<int>(fd);
}

Result<long> run_simple(FileCall call, const FileUse& use, off_t offset, std::size_t size,
                        Deadline deadline) {
  if (!use) return fail(Errc::closed);
  FileOp op(call);
  op.fd = use.number();
  op.offset = offset;
  op.size = size;
  return run_waiting(op, deadline);
}

Result<void> run_sync(FileCall call, FileUse use, Deadline deadline) {
  if (!use) return fail(Errc::closed);
  FileState& state = use.state();
  auto op = std::unique_ptr<FileOp>(new (std::nothrow) FileOp(call));
  if (!op) return fail_errno(ENOMEM);
  op->fd = use.number();
  op->use = use.again();
  const auto synced = run_or_leave(op, deadline);
  if (!synced) return Unexpected{synced.error()};
  // The kernel has told the one that left, and this one that all is well.
  if (const int err = state.late_error.exchange(0)) return fail_errno(err);
  return {};
}

}  // namespace

FileUse use_of(const File& file) noexcept {
  return FileUse(file.state_);
}

// ---------------------------------------------------------------- open and close

Result<File> File::make(int fd, int flags) {
  try {
    return File(std::make_shared<FileState>(fd, flags));
  } catch (const std::bad_alloc&) {
    return fail_errno(ENOMEM);
  }
}

Result<File> File::open_below(int directory, FileUse use, std::string path, int flags, mode_t mode,
                              Deadline deadline) {
  if (path.find('\0') != std::string::npos) return fail_errno(EINVAL);
  // Without O_NONBLOCK the open of a FIFO would wait for its other end.
  const int harmless = flags & O_PATH ? O_CLOEXEC : O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  const auto opened =
      open_anywhere(directory, std::move(use), std::move(path), flags | harmless, mode, deadline);
  if (!opened) {
    // A FIFO that nobody reads.
    return opened.error() == errno_code(ENXIO) ? fail_errno(ESPIPE) : Unexpected{opened.error()};
  }
  const int fd = *opened;
  auto usable = check_type(fd);
  if (usable && (flags & (O_NONBLOCK | O_PATH)) == 0 && ::fcntl(fd, F_SETFL, flags) != 0)
    usable = fail(last_errno());
  auto file = usable ? make(fd, flags) : Result<File>(Unexpected{usable.error()});
  if (!file) ::close(fd);
  return file;
}

Result<File> File::open(std::string path, int flags, mode_t mode, Deadline deadline) {
  return open_below(AT_FDCWD, FileUse(), std::move(path), flags, mode, deadline);
}

Result<File> File::open_at(const File& directory, std::string path, int flags, mode_t mode,
                           Deadline deadline) {
  FileUse use = use_of(directory);
  if (!use) return fail(Errc::closed);
  const int number = use.number();
  return open_below(number, std::move(use), std::move(path), flags, mode, deadline);
}

Result<File> File::adopt(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0) return fail(last_errno());
  if (const auto usable = check_type(fd); !usable) return Unexpected{usable.error()};
  return make(fd, flags);
}

File& File::operator=(File&& other) noexcept {
  if (this != &other) {
    if (state_ && state_->mark_closed()) state_->orphan();
    state_ = std::move(other.state_);
  }
  return *this;
}

File::~File() {
  if (state_ && state_->mark_closed()) state_->orphan();
}

int File::number() const noexcept {
  return state_ && !state_->closed() ? state_->fd : -1;
}

Result<void> File::close(Deadline deadline) {
  if (!state_ || !state_->mark_closed()) return fail(Errc::closed);
  if (const auto drained = state_->drain(deadline); !drained) return drained;
  FileOp op(FileCall::close);
  op.fd = state_->fd;
  // Only of what was written can a close have much to tell, or to wait for.
  const bool reads_only = (state_->flags & O_ACCMODE) == O_RDONLY;
  const long closed = reads_only ? op.perform() : run_always(op);
  const int late = state_->late_error.exchange(0);
  if (closed < 0) return fail_errno(static_cast<int>(-closed));
  if (late != 0) return fail_errno(late);
  return {};
}

Result<int> File::detach(Deadline deadline) {
  if (!state_ || !state_->mark_closed()) return fail(Errc::closed);
  if (const auto drained = state_->drain(deadline); !drained) return Unexpected{drained.error()};
  return state_->fd;
}

// ---------------------------------------------------------------- the file itself

Result<off_t> File::seek(off_t offset, int whence, Deadline deadline) const {
  const FileUse use = use_of(*this);
  if (!use) return fail(Errc::closed);
  if (const auto locked = use.state().position.lock(deadline); !locked)
    return Unexpected{locked.error()};
  const off_t position = ::lseek(use.number(), offset, whence);
  const int err = errno;
  use.state().position.unlock();
  if (position < 0) return fail_errno(err);
  return position;
}

Result<void> File::truncate(std::uint64_t size, Deadline deadline) const {
  const auto done = run_simple(FileCall::truncate, use_of(*this), 0, size, deadline);
  if (!done) return Unexpected{done.error()};
  return {};
}

Result<void> File::allocate(off_t offset, std::uint64_t size, Deadline deadline) const {
  const auto done = run_simple(FileCall::allocate, use_of(*this), offset, size, deadline);
  if (!done) return Unexpected{done.error()};
  return {};
}

Result<void> File::sync(Deadline deadline) const {
  return run_sync(FileCall::sync, use_of(*this), deadline);
}

Result<void> File::sync_data(Deadline deadline) const {
  return run_sync(FileCall::data_sync, use_of(*this), deadline);
}

}  // namespace runloom::net
