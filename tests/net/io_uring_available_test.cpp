#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "runloom/net/file.hpp"

namespace runloom::test {
namespace {

TEST(IoUringAvailable, IsTrueWhereItIsNotForbidden) {
  // The test runner that installs a seccomp filter says so.
  if (std::getenv("RUNLOOM_TEST_NO_IO_URING")) {
    EXPECT_FALSE(net::io_uring_available());
    EXPECT_EQ(::syscall(SYS_io_uring_setup, 2, nullptr), -1);
    EXPECT_EQ(errno, EPERM);
  } else {
    char parameters[120] = {};
    const long fd = ::syscall(SYS_io_uring_setup, 2, parameters);
    EXPECT_EQ(net::io_uring_available(), fd >= 0);
    if (fd >= 0) ::close(static_cast<int>(fd));
  }
}

}  // namespace
}  // namespace runloom::test
