#include "runloom/net/stdio.hpp"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <array>

#include "runloom/net/buffered.hpp"
#include "runloom/net/owned_fd.hpp"
#include "support/net_test.hpp"
#include "support/syscall_faults.hpp"
#include "support/unix_test.hpp"

namespace runloom::test {
namespace {

using namespace std::chrono_literals;
using net::OwnedFd;
using net::stderr_stream;
using net::stdin_stream;
using net::StdioErrc;
using net::stdout_stream;

// Puts another descriptor, or none (-1), in the place of a standard one while it lives.
class Standard {
 public:
  Standard(int number, int fd) : number_(number), saved_(::fcntl(number, F_DUPFD_CLOEXEC, 100)) {
    if (fd < 0) {
      ::close(number);
    } else {
      EXPECT_EQ(::dup2(fd, number), number);
    }
  }
  ~Standard() { ::dup2(saved_.number(), number_); }
  Standard(const Standard&) = delete;
  Standard& operator=(const Standard&) = delete;

 private:
  int number_;
  OwnedFd saved_;
};

struct Ends {
  OwnedFd one, two;
};
Ends plain_pipe() {
  std::array<int, 2> ends;
  EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  return {OwnedFd(ends[0]), OwnedFd(ends[1])};
}
Ends plain_pair() {
  std::array<int, 2> ends;
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  return {OwnedFd(ends[0]), OwnedFd(ends[1])};
}
// The master and the slave of a terminal that does not change what is written.
Ends plain_tty() {
  OwnedFd master(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  EXPECT_EQ(::grantpt(master.number()), 0);
  EXPECT_EQ(::unlockpt(master.number()), 0);
  std::array<char, 64> name;
  EXPECT_EQ(::ptsname_r(master.number(), name.data(), name.size()), 0);
  OwnedFd slave(::open(name.data(), O_RDWR | O_NOCTTY | O_CLOEXEC));
  termios settings;
  EXPECT_EQ(::tcgetattr(slave.number(), &settings), 0);
  settings.c_oflag &= ~static_cast<tcflag_t>(OPOST);
  settings.c_lflag &= ~static_cast<tcflag_t>(ECHO);
  EXPECT_EQ(::tcsetattr(slave.number(), TCSANOW, &settings), 0);
  return {std::move(master), std::move(slave)};
}
bool is_nonblocking(int fd) {
  return (::fcntl(fd, F_GETFL) & O_NONBLOCK) != 0;
}

bool is_socket(int fd) {
  struct stat status;
  return ::fstat(fd, &status) == 0 && S_ISSOCK(status.st_mode);
}

// What waits: parks, is ended by deadline, cancel and close, and reads what comes.
void expect_reads(int peer, int shared) {
  const Standard standard(0, shared);
  auto in = stdin_stream().value();
  EXPECT_EQ(read_text(in, 9, Deadline::now()).error(), Errc::timed_out);
  EXPECT_EQ(read_text(in, 9, Deadline::after(2ms)).error(), Errc::timed_out);
  EXPECT_EQ(in.wait_readable(Deadline::after(2ms)).error(), Errc::timed_out);
  auto cancelled = spawn([&] { return read_text(in); });
  const auto reason =
      in.reopened() || is_socket(shared) ? WaitReason::io_read : WaitReason::io_poll;
  until_parked(cancelled.handle(), reason);
  cancelled.cancel();
  EXPECT_EQ(cancelled.join().error(), Errc::cancelled);
  auto reader = spawn([&] { return read_text(in); });
  until_parked(reader.handle(), reason);
  ASSERT_EQ(::write(peer, "line\n", 5), 5);
  EXPECT_EQ(reader.join().value(), "line\n");
  EXPECT_FALSE(is_nonblocking(shared));
  auto closed = spawn([&] { return read_text(in); });
  until_parked(closed.handle(), reason);
  in.close();
  EXPECT_EQ(closed.join().error(), Errc::closed);
  EXPECT_EQ(read_text(in).error(), Errc::closed);
  EXPECT_EQ(::fcntl(0, F_GETFD) & FD_CLOEXEC, 0);  // still there, for children too
  EXPECT_FALSE(is_nonblocking(shared));
}

// Fills what stands behind standard output, and parks; `peer` reads it all.
void expect_writes(int peer, int shared) {
  const std::string text = pattern(1 << 20);
  std::string got;
  {
    const Standard standard(1, shared);
    auto out = stdout_stream().value();
    auto writer = spawn([&] { return out.write_all(net::bytes(text)); });
    // Else it may wait on the pool as well.
    if (out.reopened() || is_socket(shared)) until_parked(writer.handle(), WaitReason::io_write);
    EXPECT_FALSE(is_nonblocking(shared));
    std::array<char, 65536> buffer;
    while (got.size() < text.size()) {
      const auto ready = net::wait_fd(peer, net::kRead, Deadline::after(5s));
      if (!ready || *ready == 0) break;
      const ssize_t count = ::read(peer, buffer.data(), buffer.size());
      if (count <= 0) break;
      got.append(buffer.data(), static_cast<std::size_t>(count));
    }
    EXPECT_TRUE(writer.join());
  }
  EXPECT_TRUE(got == text);
}

NET_TEST(Stdio, PipesAreReopened) {
  auto in = plain_pipe();
  expect_reads(in.two.number(), in.one.number());
  auto out = plain_pipe();
  expect_writes(out.one.number(), out.two.number());
  const Standard standard(0, in.one.number());
  auto stream = stdin_stream().value();
  EXPECT_TRUE(stream.reopened());
  in.two.reset();
  EXPECT_EQ(read_to_end(stream).value(), "");
}

NET_TEST(Stdio, TerminalsAreReopened) {
  auto tty = plain_tty();
  expect_reads(tty.one.number(), tty.two.number());
  {
    const Standard standard(1, tty.two.number());
    EXPECT_TRUE(stdout_stream().value().reopened());
  }
  expect_writes(tty.one.number(), tty.two.number());
}

NET_TEST(Stdio, SocketsAreUsedWithoutWaitingInTheKernel) {
  auto pair = plain_pair();
  expect_reads(pair.two.number(), pair.one.number());
  expect_writes(pair.two.number(), pair.one.number());
  const Standard standard(0, pair.one.number());
  auto in = stdin_stream().value();
  EXPECT_FALSE(in.reopened());
  pair.two.reset();
  EXPECT_EQ(read_text(in).value(), "");
}

// The pipe or the terminal of another user, or no /proc.
NET_TEST(Stdio, WhatCanNotBeReopenedIsLeftAsItIs) {
  const Fault fault(Call::open, EACCES, 1, 1000);
  auto in = plain_pipe();
  expect_reads(in.two.number(), in.one.number());
  auto out = plain_pipe();
  expect_writes(out.one.number(), out.two.number());
  const Standard standard(0, in.one.number());
  EXPECT_FALSE(stdin_stream().value().reopened());
  EXPECT_GT(fault.failed(), 0);
}

NET_TEST(Stdio, ATerminalThatCanNotBeReopened) {
  auto tty = plain_tty();
  const Fault fault(Call::open, EACCES, 1, 1000);
  expect_reads(tty.one.number(), tty.two.number());
  expect_writes(tty.one.number(), tty.two.number());
  EXPECT_GT(fault.failed(), 0);
}

NET_TEST(Stdio, AWriterWithoutReaderGetsAnErrorAndNoSignal) {
  auto pipe = plain_pipe();
  auto pair = plain_pair();
  pipe.one.reset();
  pair.one.reset();
  for (const int fd : {pipe.two.number(), pair.two.number()}) {
    std::error_code error;
    {
      const Standard standard(1, fd);
      error = stdout_stream().value().write_all(net::bytes("x")).error();
    }
    EXPECT_EQ(error, errno_code(EPIPE));
  }
}

// A file has one position, which everybody who shares the descriptor moves.
NET_TEST(Stdio, FilesKeepTheirPosition) {
  SocketDir dir;
  const std::string text = pattern(300'000);
  const OwnedFd file(::open(dir.path("file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  {
    const Standard standard(1, file.number());
    auto out = stdout_stream().value();
    EXPECT_FALSE(out.reopened());
    ASSERT_EQ(::write(file.number(), "head ", 5), 5);
    EXPECT_TRUE(out.write_all(net::bytes(text)));
    ASSERT_EQ(::write(file.number(), " tail", 5), 5);
  }
  ASSERT_EQ(::lseek(file.number(), 5, SEEK_SET), 5);
  const Standard standard(0, file.number());
  auto in = stdin_stream().value();
  EXPECT_TRUE(in.wait_readable());
  EXPECT_EQ(read_text(in, 10).value(), text.substr(0, 10));
  EXPECT_EQ(::lseek(file.number(), 0, SEEK_CUR), 15);
  EXPECT_TRUE(read_to_end(in).value() == text.substr(10) + " tail");
  in.close();
  EXPECT_EQ(read_text(in).error(), Errc::closed);
}

NET_TEST(Stdio, LinesOfAFile) {
  SocketDir dir;
  const OwnedFd file(::open(dir.path("file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(::write(file.number(), "one\ntwo\n", 8), 8);
  ASSERT_EQ(::lseek(file.number(), 0, SEEK_SET), 0);
  const Standard standard(0, file.number());
  auto in = stdin_stream().value();
  net::BufferedReader lines(in);
  EXPECT_EQ(lines.read_line(100).value(), "one");
  EXPECT_EQ(lines.read_line(100).value(), "two");
}

NET_TEST(Stdio, DevicesThatNeverWait) {
  const OwnedFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  {
    const Standard standard(0, null.number());
    auto in = stdin_stream().value();
    EXPECT_TRUE(in.wait_readable());
    EXPECT_EQ(read_text(in).value(), "");
  }
  Result<void> written;
  {
    const Standard standard(1, null.number());
    written = stdout_stream().value().write_all(net::bytes(pattern(1 << 20)));
  }
  EXPECT_TRUE(written);
  const OwnedFd full(::open("/dev/full", O_RDWR | O_CLOEXEC));
  {
    const Standard standard(1, full.number());
    written = stdout_stream().value().write_all(net::bytes("x"));
  }
  EXPECT_EQ(written.error(), errno_code(ENOSPC));
}

NET_TEST(Stdio, SaysWhatIsMissing) {
  std::error_code in, out, other, wrong;
  auto pipe = plain_pipe();
  {
    const Standard standard(0, -1);
    in = stdin_stream().error();
  }
  {
    const Standard standard(1, -1);
    out = stdout_stream().error();
  }
  {
    const Standard standard(2, -1);
    other = stderr_stream().error();
  }
  {
    const Standard standard(0, pipe.two.number());
    wrong = stdin_stream().error();
  }
  for (const auto& error : {in, out, other}) {
    EXPECT_EQ(error, StdioErrc::closed);
    EXPECT_EQ(error, std::errc::bad_file_descriptor);
    EXPECT_NE(error.message().find("closed"), std::string::npos);
  }
  EXPECT_EQ(wrong, StdioErrc::wrong_direction);
  const Standard standard(0, pipe.one.number());
  auto stream = stdin_stream().value();
  EXPECT_EQ(stream.write_some(net::bytes("x")).error(), errno_code(EBADF));
  EXPECT_EQ(stream.write_all(net::bytes("x")).error(), errno_code(EBADF));
  EXPECT_EQ(stream.shutdown_write().error(), errno_code(EBADF));
}

NET_TEST(Stdio, StderrWritesAndKeepsMessagesWhole) {
  auto pipe = plain_pipe();
  constexpr std::size_t kSize = 200'000;
  std::string all;
  {
    const Standard standard(2, pipe.two.number());
    auto err = stderr_stream().value();
    std::vector<JoinHandle<Result<void>>> writers;
    for (const char c : {'a', 'b', 'c'})
      writers.push_back(spawn([&, c] { return err.write_all(net::bytes(std::string(kSize, c))); }));
    std::array<char, 65536> buffer;
    while (all.size() < 3 * kSize) {
      const auto ready = net::wait_fd(pipe.one.number(), net::kRead, Deadline::after(5s));
      if (!ready || *ready == 0) break;
      const ssize_t count = ::read(pipe.one.number(), buffer.data(), buffer.size());
      all.append(buffer.data(), static_cast<std::size_t>(count));
    }
    for (auto& writer : writers)
      EXPECT_TRUE(writer.join());
    // Cut off in the middle: no more.
    EXPECT_EQ(err.write_all(net::bytes(pattern(1 << 20)), Deadline::after(2ms)).error(),
              Errc::timed_out);
    EXPECT_EQ(err.write_some(net::bytes("x")).error(), errno_code(EPIPE));
    EXPECT_TRUE(err.shutdown_write());
  }
  ASSERT_EQ(all.size(), 3 * kSize);
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_EQ(all.substr(i * kSize, kSize), std::string(kSize, all[i * kSize]));
}

}  // namespace
}  // namespace runloom::test
