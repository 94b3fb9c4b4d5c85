#include <linux/io_uring.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runloom/net/file.hpp"

namespace runloom::net {

bool io_uring_available() noexcept {
  static const bool available = [] {
    io_uring_params parameters{};
    const long fd = ::syscall(SYS_io_uring_setup, 2, &parameters);
    if (fd < 0) return false;
    ::close(static_cast<int>(fd));
    return true;
  }();
  return available;
}

}  // namespace runloom::net
