#include "reopen.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <array>
#include <cstdio>

#include "io_loop.hpp"

namespace runloom::net {

Result<OwnedFd> reopen(int fd, int access) {
  struct stat status;
  if (::fstat(fd, &status) != 0) return fail(last_errno());
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0) return fail(last_errno());
  // Through /proc one could get more than one was given.
  const int mode = flags & O_ACCMODE;
  if (mode != O_RDWR && mode != access) return fail_errno(EBADF);
  std::array<char, 32> path;
  std::snprintf(path.data(), path.size(), "/proc/self/fd/%d", fd);
  OwnedFd own(::open(path.data(), access | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
  if (!own) return fail(last_errno());
  // Somebody may have put another file under the number, or mounted something else on /proc.
  struct stat again;
  if (::fstat(own.number(), &again) != 0) return fail(last_errno());
  if (status.st_dev != again.st_dev || status.st_ino != again.st_ino) return fail_errno(ENXIO);
  if (access == O_RDONLY && S_ISFIFO(status.st_mode)) {
    // A reader of a FIFO whose writers were gone before it came hears of no end.
    const auto before = poll_now(fd, kRead);
    const auto after = poll_now(own.number(), kRead);
    if (before && after && *before != 0 && *after == 0) return fail_errno(ENXIO);
  }
  return own;
}

}  // namespace runloom::net
