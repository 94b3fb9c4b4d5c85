// How a socket's file comes into being so that nobody reaches it too early, and two servers that
// start at once don't take it from each other.
//
// The mode. bind(2) makes the file with the mode of the socket's own inode, less the umask: so
// fchmod(2) of the socket comes first, and the file is never wider than asked for. What the umask
// took away is given back by chmod(2). Rejected: to change the umask, which belongs to the whole
// process; to bind under another name and rename, because getsockname(2) and the peers would see
// that name for ever.
//
// Is it stale? A datagram socket tries to connect. The kernel looks up who is bound to the file
// before it compares types: ECONNREFUSED means that nobody is; EPROTOTYPE that a stream socket is,
// success that a datagram socket is. So a live server is not disturbed by a connection that says
// nothing, and one that is bound but does not listen yet counts as alive, which it is.
//
// The race. Whoever finds a stale file unlinks it and binds. In between another one may have done
// the same, and its fresh file would be unlinked: so all of it happens under an exclusive flock(2)
// of "<path>.runloom-lock", which is removed again. A plain bind needs no lock: it never replaces
// anything.
#include "runloom/net/bound_path.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <climits>
#include <utility>

#include "runloom/net/owned_fd.hpp"
#include "runloom/sched/fiber.hpp"

namespace runloom::net {
namespace {

bool same_file(const struct stat& a, const struct stat& b) noexcept {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

// Later calls must mean the same file when the working directory is another one by then.
std::string absolute(std::string_view path) {
  std::array<char, PATH_MAX> directory;
  if (path.starts_with('/') || !::getcwd(directory.data(), directory.size()))
    return std::string(path);
  return std::string(directory.data()) + '/' + std::string(path);
}

// The exclusive right to replace the file of one path.
class ReplaceLock {
 public:
  explicit ReplaceLock(const std::string& path) : path_(path + ".runloom-lock") {}
  ~ReplaceLock() {
    if (held_) ::unlink(path_.c_str());  // while it is locked: others look whether it is theirs
  }
  ReplaceLock(const ReplaceLock&) = delete;
  ReplaceLock& operator=(const ReplaceLock&) = delete;

  Result<void> acquire(Deadline deadline) {
    for (;;) {
      RUNLOOM_TRY(held_, try_acquire());
      if (held_) return {};
      if (deadline.passed()) return fail(Errc::timed_out);
      // The other one holds it for some system calls only.
      if (auto slept = this_fiber::sleep_for(std::chrono::milliseconds(1)); !slept) return slept;
    }
  }

 private:
  Result<bool> try_acquire() {
    fd_.reset(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd_) return fail(last_errno());
    if (::flock(fd_.number(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK && errno != EINTR) return fail(last_errno());
      return false;
    }
    // The one before us has removed the file that we opened.
    struct stat ours, current;
    if (::fstat(fd_.number(), &ours) != 0) return fail(last_errno());
    return ::lstat(path_.c_str(), &current) == 0 && same_file(ours, current);
  }

  const std::string path_;
  OwnedFd fd_;
  bool held_ = false;
};

Result<void> bind_plain(int fd, const Address& address) noexcept {
  if (::bind(fd, address.data(), address.size()) != 0) return fail(last_errno());
  return {};
}

// Fails with EADDRINUSE unless the file is gone, or that of a socket that nobody has any more. A
// link is none of a socket either: bind(2) does not follow it.
Result<void> check_stale(const Address& address, const std::string& path) {
  struct stat status;
  if (::lstat(path.c_str(), &status) != 0) return {};
  if (!S_ISSOCK(status.st_mode)) return fail_errno(EADDRINUSE);
  const OwnedFd probe(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe) return fail(last_errno());
  const bool answered = ::connect(probe.number(), address.data(), address.size()) == 0;
  if (!answered && (errno == ECONNREFUSED || errno == ENOENT)) return {};
  return fail_errno(EADDRINUSE);
}

// After EADDRINUSE.
Result<void> bind_replacing(int fd, const Address& address, const std::string& path,
                            Deadline deadline) {
  // A live server is told apart without a lock, for which the directory must be writable.
  if (auto ok = check_stale(address, path); !ok) return ok;
  ReplaceLock lock(path);
  if (auto ok = lock.acquire(deadline); !ok) return ok;
  if (auto ok = check_stale(address, path); !ok) return ok;
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return fail(last_errno());
  return bind_plain(fd, address);
}

}  // namespace

Result<BoundPath> BoundPath::bind(int fd, const Address& address, const BindOptions& options,
                                  Deadline deadline) {
  if (!address.is_unix()) return fail_errno(EAFNOSUPPORT);
  const std::string_view name = address.unix_name();
  if (name.empty() || name.starts_with('\0')) {  // abstract, or for the kernel to choose
    if (auto bound = bind_plain(fd, address); !bound) return Unexpected{bound.error()};
    return BoundPath();
  }
  const mode_t mode = options.mode.value_or(0777) & 07777;
  if (options.mode && ::fchmod(fd, mode) != 0) return fail(last_errno());
  BoundPath result;
  result.file_ = std::make_unique<File>();
  result.file_->path = absolute(name);
  const std::string& path = result.file_->path;
  result.file_->done = true;  // nothing to remove yet
  auto bound = bind_plain(fd, address);
  if (!bound && bound.error() == errno_code(EADDRINUSE) && options.replace_stale)
    bound = bind_replacing(fd, address, path, deadline);
  if (!bound) return Unexpected{bound.error()};

  struct stat status;
  if (::lstat(path.c_str(), &status) != 0) return fail(last_errno());
  result.file_->device = status.st_dev;
  result.file_->inode = status.st_ino;
  result.file_->maker = ::getpid();
  result.file_->done = false;
  if (options.mode && (status.st_mode & 07777) != mode && ::chmod(path.c_str(), mode) != 0)
    return fail(last_errno());
  return result;
}

BoundPath BoundPath::adopt(const Address& address) {
  const std::string_view name = address.unix_name();
  BoundPath result;
  if (name.empty() || name.starts_with('\0')) return result;
  auto file = std::make_unique<File>();
  file->path = absolute(name);
  struct stat status;
  if (::lstat(file->path.c_str(), &status) != 0) return result;
  file->device = status.st_dev;
  file->inode = status.st_ino;
  file->maker = ::getpid();
  file->done = true;
  result.file_ = std::move(file);
  return result;
}

BoundPath& BoundPath::operator=(BoundPath&& other) noexcept {
  if (this != &other) {
    remove();
    file_ = std::move(other.file_);
  }
  return *this;
}

void BoundPath::remove() noexcept {
  if (!file_ || file_->done.exchange(true) || ::getpid() != file_->maker) return;
  const int err = errno;
  struct stat status;
  if (::lstat(file_->path.c_str(), &status) == 0 && S_ISSOCK(status.st_mode) &&
      status.st_dev == file_->device && status.st_ino == file_->inode)
    ::unlink(file_->path.c_str());
  errno = err;
}

void BoundPath::forget() noexcept {
  if (file_) file_->done = true;
}

void BoundPath::claim() noexcept {
  if (file_) file_->done = false;
}

}  // namespace runloom::net
