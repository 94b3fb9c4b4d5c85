#include "reopen.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "support/child.hpp"
#include "support/syscall_faults.hpp"
#include "support/unix_test.hpp"

namespace runloom::test {
namespace {

using net::OwnedFd;
using net::reopen;

TEST(Reopen, GivesADescriptionOfItsOwn) {
  std::array<int, 2> ends;
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const OwnedFd read(ends[0]), write(ends[1]);
  const auto again = reopen(read.number(), O_RDONLY);
  ASSERT_TRUE(again);
  EXPECT_TRUE(same_file(again->number(), read.number()));
  EXPECT_TRUE(is_cloexec(again->number()));
  EXPECT_NE(::fcntl(again->number(), F_GETFL) & O_NONBLOCK, 0);
  EXPECT_EQ(::fcntl(read.number(), F_GETFL) & O_NONBLOCK, 0);
}

// What one may only read doesn't become writable by way of /proc.
TEST(Reopen, GivesNoMoreThanThereWas) {
  const OwnedFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(reopen(null.number(), O_WRONLY).error(), errno_code(EBADF));
  const OwnedFd both(::open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_TRUE(reopen(both.number(), O_WRONLY));
  EXPECT_EQ(reopen(-1, O_RDONLY).error(), errno_code(EBADF));
}

TEST(Reopen, FailsForSockets) {
  const OwnedFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(reopen(socket.number(), O_RDONLY).error(), errno_code(ENXIO));
}

// A new terminal session's leader would get the terminal as its own by opening it.
TEST(Reopen, TakesNoControllingTerminal) {
  const OwnedFd master(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_EQ(::grantpt(master.number()), 0);
  ASSERT_EQ(::unlockpt(master.number()), 0);
  std::array<char, 64> name;
  ASSERT_EQ(::ptsname_r(master.number(), name.data(), name.size()), 0);
  const auto end = run_child([&] {
    const OwnedFd slave(::open(name.data(), O_RDWR | O_NOCTTY | O_CLOEXEC));
    if (::setsid() < 0) return 1;
    if (!reopen(slave.number(), O_RDONLY)) return 2;
    return ::open("/dev/tty", O_RDWR | O_CLOEXEC) >= 0 ? 3 : 0;
  });
  EXPECT_EQ(end.code, 0);
}

TEST(Reopen, SurvivesFailingCalls) {
  const OwnedFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  const std::size_t before = open_descriptors();
  for (const int err : {EACCES, EMFILE, ENOENT, EINTR}) {
    const Fault fault(Call::open, err);
    EXPECT_EQ(reopen(null.number(), O_RDONLY).error(), errno_code(err));
  }
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
}  // namespace runloom::test
