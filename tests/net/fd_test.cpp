#include "runloom/net/fd.hpp"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "net/poll_desc.hpp"
#include "support/net_test.hpp"

namespace runloom::test {
namespace {

using namespace std::chrono_literals;
using net::bytes;
using net::Fd;

struct Pipe {
  Pipe() { EXPECT_EQ(::pipe2(end, O_CLOEXEC), 0); }
  Fd reader() const { return Fd::adopt(end[0]).value(); }
  Fd writer() const { return Fd::adopt(end[1]).value(); }
  int end[2];
};

// ---------------------------------------------------------------- ownership

NET_TEST(Fd, AdoptMakesItNonBlockingAndReleaseRestoresIt) {
  Pipe pipe;
  Fd reader = pipe.reader();
  Fd writer = pipe.writer();
  EXPECT_EQ(reader.number(), pipe.end[0]);
  EXPECT_NE(::fcntl(pipe.end[0], F_GETFL) & O_NONBLOCK, 0);
  EXPECT_EQ(reader.release().value(), pipe.end[0]);
  EXPECT_EQ(::fcntl(pipe.end[0], F_GETFL) & O_NONBLOCK, 0);
  EXPECT_FALSE(reader);
  ASSERT_EQ(::fcntl(pipe.end[0], F_SETFL, O_NONBLOCK), 0);
  Fd again = pipe.reader();
  EXPECT_EQ(again.release().value(), pipe.end[0]);
  EXPECT_NE(::fcntl(pipe.end[0], F_GETFL) & O_NONBLOCK, 0);
  ::close(pipe.end[0]);
}

NET_TEST(Fd, AdoptRefuses) {
  EXPECT_EQ(Fd::adopt(-1).error(), errno_code(EBADF));
  const int file = ::open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(Fd::adopt(file).error(), errno_code(EPERM));
  const int directory = ::open("/", O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(Fd::adopt(directory).error(), errno_code(EPERM));
  ::close(file);
  ::close(directory);
  Pipe pipe;
  Fd reader = pipe.reader();
  EXPECT_EQ(Fd::adopt(pipe.end[0]).error(), errno_code(EBUSY));
  EXPECT_TRUE(reader);
  ::close(pipe.end[1]);
}

NET_TEST(Fd, MovedAndClosedOnesAreEmpty) {
  Pipe pipe;
  Fd reader = pipe.reader();
  Fd other = std::move(reader);
  EXPECT_EQ(other.number(), pipe.end[0]);
  EXPECT_EQ(reader.number(), -1);  // NOLINT(bugprone-use-after-move): what is left is empty
  std::byte byte;
  EXPECT_EQ(reader.read({&byte, 1}, {}).error(), Errc::closed);
  EXPECT_EQ(reader.release().error(), Errc::closed);
  reader.close();
  other = pipe.writer();  // closes what it had
  EXPECT_EQ(::fcntl(pipe.end[0], F_GETFL), -1);
  other.close();
  other.close();
  EXPECT_EQ(other.number(), -1);
  EXPECT_FALSE(Fd::Use(other));
}

NET_TEST(Fd, AUseKeepsTheNumber) {
  Pipe pipe;
  Fd reader = pipe.reader();
  {
    const Fd::Use use(reader);
    reader.close();
    EXPECT_EQ(reader.number(), -1);
    EXPECT_EQ(use.number(), pipe.end[0]);
    EXPECT_NE(::fcntl(pipe.end[0], F_GETFL), -1);
  }
  EXPECT_EQ(::fcntl(pipe.end[0], F_GETFL), -1);
  ::close(pipe.end[1]);
}

// A handle of an earlier life of the same PollDesc, and of the same number, does nothing.
NET_TEST(Fd, StaleHandlesMiss) {
  Pipe pipe;
  Fd old = pipe.reader();
  const Fd::Weak weak(old);
  old.close();
  ASSERT_EQ(::dup2(pipe.end[1], pipe.end[0]), pipe.end[0]);
  Fd fresh = Fd::adopt(pipe.end[0]).value();
  EXPECT_EQ(old.number(), -1);
  EXPECT_FALSE(Fd::Use(old));
  old.close();
  weak.close();
  std::byte byte{};
  EXPECT_EQ(old.write({&byte, 1}, {}).error(), Errc::closed);
  EXPECT_EQ(old.wait_ready(net::kWrite, {}).error(), Errc::closed);
  EXPECT_EQ(fresh.number(), pipe.end[0]);
  Fd::Weak(fresh).close();
  EXPECT_EQ(fresh.number(), -1);
  ::close(pipe.end[1]);
}

NET_TEST(Fd, FindsTheOwnerOfANumber) {
  Pipe pipe;
  EXPECT_EQ(net::find_desc(pipe.end[0]), nullptr);
  Fd reader = pipe.reader();
  net::PollDesc* desc = net::find_desc(pipe.end[0]);
  ASSERT_NE(desc, nullptr);
  net::leave(*desc);
  reader.close();
  EXPECT_EQ(net::find_desc(pipe.end[0]), nullptr);
  EXPECT_EQ(net::find_desc(-1), nullptr);
  EXPECT_EQ(net::find_desc(1 << 30), nullptr);
  ::close(pipe.end[1]);
}

// ---------------------------------------------------------------- pipes and their like

NET_TEST(Fd, ReadsAndWritesAPipe) {
  constexpr std::size_t kSize = 1 << 20;
  Pipe pipe;
  Fd reader = pipe.reader(), writer = pipe.writer();
  auto producer = spawn([&] {
    const std::string data = pattern(kSize);
    for (std::size_t done = 0; done < kSize;)
      done += writer.write(bytes(data).subspan(done), {}).value();
    writer.close();
  });
  std::string all, piece(10'000, '\0');
  while (const std::size_t count = reader.read(writable(piece), {}).value())
    all.append(piece, 0, count);
  EXPECT_EQ(all, pattern(kSize));
  EXPECT_TRUE(producer.join());
}

// SIGPIPE would end the process.
NET_TEST(Fd, WriteToABrokenPipeIsAnError) {
  Pipe pipe;
  Fd writer = pipe.writer();
  ::close(pipe.end[0]);
  EXPECT_EQ(writer.write(bytes("x"), {}).error(), errno_code(EPIPE));
}

NET_TEST(Fd, ReadsAnEventfd) {
  Fd event = Fd::adopt(::eventfd(0, EFD_CLOEXEC)).value();
  std::uint64_t value = 0;
  auto waiter = spawn([&] { return event.read(std::as_writable_bytes(std::span(&value, 1)), {}); });
  until_parked(waiter.handle(), WaitReason::io_read);
  const std::uint64_t three = 3;
  EXPECT_EQ(event.write(std::as_bytes(std::span(&three, 1)), {}).value(), 8u);
  EXPECT_EQ(waiter.join().value(), 8u);
  EXPECT_EQ(value, 3u);
  EXPECT_EQ(event.read(std::as_writable_bytes(std::span(&value, 1)), Deadline::now()).error(),
            Errc::timed_out);
}

NET_TEST(Fd, WaitReady) {
  Pipe pipe;
  Fd reader = pipe.reader(), writer = pipe.writer();
  EXPECT_EQ(writer.wait_ready(net::kRead | net::kWrite, {}).value(), net::kWrite);
  EXPECT_EQ(reader.wait_ready(net::kRead, Deadline::now()).error(), Errc::timed_out);
  EXPECT_EQ(reader.wait_ready(net::kRead, Deadline::after(2ms)).error(), Errc::timed_out);
  auto one = spawn([&] { return reader.wait_ready(net::kRead | net::kWrite, {}); });
  auto two = spawn([&] { return reader.wait_ready(net::kRead, {}); });
  until_parked(one.handle(), WaitReason::io_poll);
  until_parked(two.handle(), WaitReason::io_poll);
  ASSERT_EQ(writer.write(bytes("x"), {}).value(), 1u);
  EXPECT_EQ(one.join().value(), net::kRead);
  EXPECT_EQ(two.join().value(), net::kRead);
  EXPECT_EQ(reader.wait_ready(net::kRead, Deadline::now()).value(), net::kRead);
  auto three = spawn([&] { return reader.wait_ready(net::kWrite, {}); });
  until_parked(three.handle(), WaitReason::io_poll);
  reader.close();
  EXPECT_EQ(three.join().error(), Errc::closed);
}

// ---------------------------------------------------------------- the end

NET_TEST(Fd, CloseWaitReturnsWhenTheOthersHaveLeft) {
  Pipe pipe;
  Fd reader = pipe.reader();
  std::byte byte;
  auto one = spawn([&] { return reader.read({&byte, 1}, {}); });
  until_parked(one.handle(), WaitReason::io_read);
  reader.close_wait();
  EXPECT_EQ(::fcntl(pipe.end[0], F_GETFL), -1);
  EXPECT_EQ(one.join().error(), Errc::closed);
  reader.close_wait();
  ::close(pipe.end[1]);
}

NET_TEST(Fd, ReleaseEndsOperationsFirst) {
  Pipe pipe;
  Fd reader = pipe.reader();
  std::byte byte;
  auto one = spawn([&] { return reader.read({&byte, 1}, {}); });
  until_parked(one.handle(), WaitReason::io_read);
  auto two = spawn([&] { return reader.read({&byte, 1}, {}); });
  until_parked(two.handle(), WaitReason::io_read);
  EXPECT_EQ(reader.release().value(), pipe.end[0]);
  EXPECT_EQ(one.join().error(), Errc::closed);
  EXPECT_EQ(two.join().error(), Errc::closed);
  EXPECT_EQ(net::find_desc(pipe.end[0]), nullptr);
  ::close(pipe.end[0]);
  ::close(pipe.end[1]);
}

NET_TEST(Fd, AttemptIsMadeAgainWhenItHadToWait) {
  struct ReadTwo final : net::Attempt {
    ssize_t make(int fd) noexcept override {
      ++calls;
      const iovec buffers[2] = {{text, 2}, {text + 2, 6}};
      return ::readv(fd, buffers, 2);
    }
    char text[8] = {};
    int calls = 0;
  };
  Pipe pipe;
  Fd reader = pipe.reader();
  Fd writer = pipe.writer();
  ReadTwo attempt;
  EXPECT_EQ(reader.attempt(net::kRead, attempt, MSG_DONTWAIT, {}).error(), errno_code(EAGAIN));
  auto waiting = spawn([&] { return reader.attempt(net::kRead, attempt, 0, {}); });
  until_parked(waiting.handle(), WaitReason::io_read);
  ASSERT_TRUE(writer.write(bytes("fiber"), {}));
  EXPECT_EQ(waiting.join().value(), 5u);
  EXPECT_STREQ(attempt.text, "fiber");
  EXPECT_GE(attempt.calls, 2);
  EXPECT_EQ(reader.attempt(net::kRead, attempt, 0, Deadline::now()).error(), Errc::timed_out);
  auto closed = spawn([&] { return reader.attempt(net::kRead, attempt, 0, {}); });
  until_parked(closed.handle(), WaitReason::io_read);
  reader.close();
  EXPECT_EQ(closed.join().error(), Errc::closed);
}

// Nobody but the fiber can make it leave, and nobody runs it.
TEST(FdThread, OfAFiberThatNobodyRuns) {
  Pipe pipe;
  Fd reader = pipe.reader();
  std::byte byte;
  HangGuard guard;
  Scheduler scheduler;
  auto reading = scheduler.spawn([&] { return reader.read({&byte, 1}, {}); });
  auto stops = scheduler.spawn([&] {
    until_parked(reading.handle(), WaitReason::io_read);
    scheduler.stop();
  });
  ASSERT_TRUE(scheduler.run());
  EXPECT_EQ(reader.release().error(), errno_code(EBUSY));
  EXPECT_EQ(reader.number(), pipe.end[0]);  // nothing has happened to it
  EXPECT_FALSE(reading.done());
  reader.close_wait();
  EXPECT_EQ(reader.number(), -1);
  EXPECT_EQ(reader.release().error(), Errc::closed);
  ASSERT_TRUE(scheduler.run());
  EXPECT_EQ(reading.join().error(), Errc::closed);
  EXPECT_EQ(::fcntl(pipe.end[0], F_GETFL), -1);  // the last one has closed it
  ::close(pipe.end[1]);
}

TEST(FdThread, ReleasesWhatNobodyUses) {
  Pipe pipe;
  Fd reader = pipe.reader();
  EXPECT_EQ(reader.release().value(), pipe.end[0]);
  ::close(pipe.end[0]);
  ::close(pipe.end[1]);
}

NET_TEST(Fd, ReleaseWhereParkingIsForbidden) {
  Pipe pipe;
  Fd reader = pipe.reader();
  std::byte byte;
  auto one = spawn([&] { return reader.read({&byte, 1}, {}); });
  until_parked(one.handle(), WaitReason::io_read);
  {
    const this_fiber::ForbidPark forbid;
    EXPECT_EQ(reader.release().error(), errno_code(EBUSY));
  }
  EXPECT_TRUE(one.handle().cancel());
  EXPECT_EQ(one.join().error(), Errc::cancelled);
  const this_fiber::ForbidPark forbid;
  EXPECT_EQ(reader.release().value(), pipe.end[0]);
  ::close(pipe.end[0]);
  ::close(pipe.end[1]);
}

// Where parking is forbidden an operation still does what needs no wait.
NET_TEST(Fd, WhereParkingIsForbidden) {
  Pipe pipe;
  Fd reader = pipe.reader(), writer = pipe.writer();
  const this_fiber::ForbidPark forbid;
  std::byte byte;
  EXPECT_EQ(reader.read({&byte, 1}, {}).error(), Errc::park_forbidden);
  EXPECT_EQ(reader.wait_ready(net::kRead, {}).error(), Errc::park_forbidden);
  ASSERT_EQ(writer.write(bytes("x"), {}).value(), 1u);
  EXPECT_EQ(reader.read({&byte, 1}, {}).value(), 1u);
  reader.close_wait();
  EXPECT_EQ(::fcntl(pipe.end[0], F_GETFL), -1);
}

}  // namespace
}  // namespace runloom::test
