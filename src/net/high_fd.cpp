#include "high_fd.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>

namespace runloom::net {

int move_high(int fd) noexcept {
  constexpr rlim_t kBase = 1'000;
  constexpr unsigned kSpread = 128;
  static std::atomic<unsigned> counter{0};
  if (fd < 0) return fd;
  const int err = errno;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const auto base = static_cast<int>(std::min(kBase, limit.rlim_cur / 4 * 3));
  const auto step = static_cast<int>(counter.fetch_add(1, std::memory_order_relaxed) % kSpread);
  const int high = ::fcntl(fd, F_DUPFD_CLOEXEC, base + step);
  if (high >= 0) ::close(fd);
  errno = err;
  return high >= 0 ? high : fd;
}

void tell_lost() noexcept {
  static std::atomic<bool> told{false};
  if (!told.exchange(true, std::memory_order_relaxed))
    std::fputs("runloom: other code has closed the poller's descriptors; there are new ones\n",
               stderr);
}

}  // namespace runloom::net
