#include "runloom/net/file.hpp"

#include <pty.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "runloom/net/buffered.hpp"
#include "support/files.hpp"
#include "support/net_test.hpp"
#include "support/on_pool.hpp"
#include "support/race.hpp"
#include "support/syscall_faults.hpp"

namespace runloom::test {
namespace {

using namespace std::chrono_literals;
using net::bytes;
using net::File;

std::string read_text_at(const File& file, std::size_t most, off_t offset) {
  std::string text(most, '\0');
  const auto count = file.read_at(writable(text), offset);
  EXPECT_TRUE(count) << count.error().message();
  text.resize(count.value_or(0));
  return text;
}

NET_TEST(File, WritesAndReads) {
  const TempDirectory directory;
  auto file = File::open(directory / "a", O_RDWR | O_CREAT | O_EXCL, 0640).value();
  EXPECT_GE(file.number(), 0);
  EXPECT_EQ(::fcntl(file.number(), F_GETFD), FD_CLOEXEC);  // I9
  EXPECT_EQ(::fcntl(file.number(), F_GETFL) & O_NONBLOCK, 0);
  EXPECT_EQ(file.write_at(bytes("hello"), 3).value(), 5u);
  EXPECT_EQ(read_text_at(file, 100, 0), std::string("\0\0\0hello", 8));
  EXPECT_TRUE(file.sync());
  EXPECT_TRUE(file.sync_data());
  EXPECT_TRUE(file.truncate(5));
  const auto status = file.status().value();
  EXPECT_EQ(status.size, 5u);
  EXPECT_EQ(status.type, net::FileType::regular);
  EXPECT_EQ(status.mode, 0640u & ~::umask(::umask(0)));
  EXPECT_EQ(status.links, 1u);
  struct stat plain;
  ASSERT_EQ(::stat((directory / "a").c_str(), &plain), 0);
  EXPECT_EQ(status.inode, plain.st_ino);
  EXPECT_EQ(status.device, plain.st_dev);
  EXPECT_EQ(status.modified.tv_sec, plain.st_mtim.tv_sec);
  EXPECT_EQ(status.modified.tv_nsec, plain.st_mtim.tv_nsec);
  EXPECT_TRUE(file.close());
  EXPECT_EQ(file_text(directory / "a"), std::string("\0\0\0he", 5));
}

NET_TEST(File, Allocates) {
  const TempDirectory directory;
  auto file = File::open(directory / "a", O_RDWR | O_CREAT).value();
  const auto allocated = file.allocate(0, 100'000);
  if (!allocated) {
    EXPECT_EQ(allocated.error(), errno_code(EOPNOTSUPP));  // as the file system has it
    return;
  }
  EXPECT_EQ(file.status().value().size, 100'000u);
  EXPECT_GE(file.status().value().blocks, 100'000u / 512);
}

NET_TEST(File, HasAPosition) {
  const TempDirectory directory;
  make_file(directory / "a", "0123456789");
  auto file = File::open(directory / "a", O_RDWR).value();
  std::string text(4, '\0');
  EXPECT_EQ(file.read(writable(text)).value(), 4u);
  EXPECT_EQ(text, "0123");
  EXPECT_EQ(file.position().value(), 4);
  EXPECT_EQ(file.write(bytes("ab")).value(), 2u);
  EXPECT_EQ(file.seek(-3, SEEK_END).value(), 7);
  EXPECT_EQ(file.read(writable(text)).value(), 3u);
  EXPECT_EQ(file.read(writable(text)).value(), 0u);
  EXPECT_EQ(file.seek(-1).error(), errno_code(EINVAL));
  EXPECT_EQ(file_text(directory / "a"), "0123ab6789");
  // The kernel's own: whoever gets the descriptor goes on there.
  ASSERT_TRUE(file.seek(2));
  const int fd = file.detach().value();
  char next;
  EXPECT_EQ(::read(fd, &next, 1), 1);
  EXPECT_EQ(next, '2');
  auto again = File::adopt(fd).value();
  EXPECT_EQ(again.position().value(), 3);
}

NET_TEST(File, FailsAsTheSystemCallDoes) {
  const TempDirectory directory;
  make_file(directory / "file", "x");
  EXPECT_EQ(File::open(directory / "none").error(), errno_code(ENOENT));
  EXPECT_EQ(File::open(directory / "file/below").error(), errno_code(ENOTDIR));
  EXPECT_EQ(File::open(directory.path(), O_RDWR).error(), errno_code(EISDIR));
  EXPECT_EQ(File::open(directory / "file", O_WRONLY | O_CREAT | O_EXCL).error(),
            errno_code(EEXIST));
  ASSERT_EQ(::symlink("loop", (directory / "loop").c_str()), 0);
  EXPECT_EQ(File::open(directory / "loop").error(), errno_code(ELOOP));
  EXPECT_EQ(File::open(directory / std::string(300, 'x')).error(), errno_code(ENAMETOOLONG));
  EXPECT_EQ(File::open(std::string("/tmp\0/x", 7)).error(), errno_code(EINVAL));
  EXPECT_EQ(File::open("").error(), errno_code(ENOENT));
  EXPECT_EQ(File::adopt(-1).error(), errno_code(EBADF));

  const auto reader = File::open(directory / "file").value();
  EXPECT_EQ(reader.write_at(bytes("x"), 0).error(), errno_code(EBADF));
  EXPECT_EQ(reader.truncate(0).error(), errno_code(EINVAL));
  std::string text(1, '\0');
  EXPECT_EQ(reader.read_at(writable(text), -1).error(), errno_code(EINVAL));
  const auto below = File::open(directory.path()).value();
  EXPECT_EQ(below.read_at(writable(text), 0).error(), errno_code(EISDIR));
}

NET_TEST(File, OpensBelowADirectory) {
  const TempDirectory directory;
  ASSERT_EQ(::mkdir((directory / "sub").c_str(), 0700), 0);
  make_file(directory / "sub/file", "x");
  const auto base = File::open(directory / "sub", O_PATH | O_DIRECTORY).value();
  EXPECT_TRUE(File::open_at(base, "file"));
  EXPECT_TRUE(File::open_at(base, directory / "sub/file"));
  EXPECT_EQ(File::open_at(base, "other").error(), errno_code(ENOENT));
  EXPECT_EQ(File::open_at(File(), "file").error(), Errc::closed);
}

// Nobody waits for the other end of a FIFO.
NET_TEST(File, RefusesWhatHasNoPosition) {
  const TempDirectory directory;
  const std::string fifo = directory / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  for (const int mode : {O_RDONLY, O_WRONLY, O_RDWR})
    EXPECT_EQ(File::open(fifo, mode).error(), errno_code(ESPIPE)) << mode;
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  EXPECT_EQ(File::adopt(ends[0]).error(), errno_code(ESPIPE));
  EXPECT_EQ(::close(ends[0]), 0);
  EXPECT_EQ(::close(ends[1]), 0);
  ASSERT_EQ(::openpty(&ends[0], &ends[1], nullptr, nullptr, nullptr), 0);
  EXPECT_EQ(File::adopt(ends[1]).error(), errno_code(ESPIPE));
  ::close(ends[0]);
  ::close(ends[1]);
  EXPECT_EQ(File::open("/dev/ptmx", O_RDWR).error(), errno_code(ESPIPE));
  EXPECT_TRUE(File::open("/dev/zero"));
}

NET_TEST(File, IsClosedOnce) {
  const TempDirectory directory;
  auto file = File::open(directory / "a", O_RDWR | O_CREAT).value();
  EXPECT_TRUE(file.close());
  EXPECT_FALSE(file);
  EXPECT_EQ(file.number(), -1);
  EXPECT_EQ(file.close().error(), Errc::closed);
  EXPECT_EQ(file.detach().error(), Errc::closed);
  std::string text(1, '\0');
  EXPECT_EQ(file.read(writable(text)).error(), Errc::closed);
  EXPECT_EQ(file.read_at(writable(text), 0).error(), Errc::closed);
  EXPECT_EQ(file.write_at(bytes("x"), 0).error(), Errc::closed);
  EXPECT_EQ(file.status().error(), Errc::closed);
  EXPECT_EQ(file.sync().error(), Errc::closed);
  EXPECT_EQ(file.truncate(0).error(), Errc::closed);
  EXPECT_EQ(file.seek(0).error(), Errc::closed);
  EXPECT_EQ(File().close().error(), Errc::closed);
}

NET_TEST(File, F14ReportsWhatCloseSays) {
  const OnPool on_pool;
  const TempDirectory directory;
  for (const int err : {EIO, ENOSPC, EDQUOT}) {
    auto file = File::open(directory / "a", O_WRONLY | O_CREAT).value();
    const int fd = file.number();
    {
      const Fault fault(Call::close, err);
      EXPECT_EQ(file.close().error(), errno_code(err));
    }
    EXPECT_FALSE(file);
    ::close(fd);  // the injected failure left it open
  }
  auto file = File::open(directory / "a", O_WRONLY).value();
  const int fd = file.number();
  {
    const Fault fault(Call::close, EINTR);  // no failure on Linux
    EXPECT_TRUE(file.close());
  }
  ::close(fd);
}

// A write of the file is under way on a thread.
struct SlowWrite {
  explicit SlowWrite(const File& file) {
    writer = spawn([&file] { return file.write_at(bytes("late"), 0); });
    yield_until([this] { return hold.held() == 1; });
  }
  OnPool on_pool;
  Fault not_here{Call::pwritev2, EOPNOTSUPP};
  Hold hold{Call::pwritev2};
  JoinHandle<Result<std::size_t>> writer;
};

NET_TEST(File, CloseWaitsForOperations) {
  const TempDirectory directory;
  auto file = File::open(directory / "a", O_RDWR | O_CREAT).value();
  const int fd = file.number();
  if (file_in_memory(directory.path())) GTEST_SKIP() << "writes there never leave the thread";
  SlowWrite slow(file);
  auto closer = spawn([&] { return file.close(); });
  yield_until([&] { return !file; });
  until_parked(closer.handle(), WaitReason::io_close);
  EXPECT_GE(::fcntl(fd, F_GETFD), 0);  // still open
  EXPECT_EQ(file.write_at(bytes("x"), 0).error(), Errc::closed);
  slow.hold.release();
  EXPECT_EQ(slow.writer.join().value(), 4u);
  EXPECT_TRUE(closer.join());
  EXPECT_EQ(::fcntl(fd, F_GETFD), -1);
  EXPECT_EQ(file_text(directory / "a"), "late");
}

NET_TEST(File, CloseGivesUpAtItsDeadline) {
  const TempDirectory directory;
  if (file_in_memory(directory.path())) GTEST_SKIP() << "writes there never leave the thread";
  auto file = File::open(directory / "a", O_RDWR | O_CREAT).value();
  const int fd = file.number();
  SlowWrite slow(file);
  EXPECT_EQ(file.close(Deadline::after(1ms)).error(), Errc::timed_out);
  EXPECT_GE(::fcntl(fd, F_GETFD), 0);
  slow.hold.release();
  EXPECT_EQ(slow.writer.join().value(), 4u);
  EXPECT_EQ(::fcntl(fd, F_GETFD), -1);  // the last operation closed it
}

NET_TEST(File, DestructionWaitsForNobody) {
  const TempDirectory directory;
  if (file_in_memory(directory.path())) GTEST_SKIP() << "writes there never leave the thread";
  auto file = std::make_unique<File>(File::open(directory / "a", O_RDWR | O_CREAT).value());
  SlowWrite slow(*file);
  File moved = std::move(*file);
  file.reset();
  EXPECT_TRUE(moved);
  moved = File();
  EXPECT_FALSE(moved);
  slow.hold.release();
  EXPECT_EQ(slow.writer.join().value(), 4u);
}

// What a sync finds that its fiber did not wait for is told to the next one who asks.
NET_TEST(File, F14ALateSyncErrorIsNotLost) {
  const OnPool on_pool;
  const TempDirectory directory;
  for (const bool by_close : {false, true}) {
    auto file = File::open(directory / "a", O_RDWR | O_CREAT).value();
    {
      const Fault fault(Call::fsync, EIO);
      Hold hold(Call::fsync);
      auto syncer = spawn([&] { return file.sync(); });
      yield_until([&] { return hold.held() == 1; });
      syncer.cancel();
      EXPECT_EQ(syncer.join().error(), Errc::cancelled);  // at once
      hold.release();
      yield_until([&] { return hold.held() == 0; });
    }
    if (by_close) {
      EXPECT_EQ(file.close().error(), errno_code(EIO));
    } else {
      // A sync of the kernel's that succeeds does not hide it.
      Result<void> synced;
      do
        synced = file.sync();
      while (synced);
      EXPECT_EQ(synced.error(), errno_code(EIO));
      EXPECT_TRUE(file.sync());
    }
  }
}

NET_TEST(File, WorksOnThreads) {
  const TempDirectory directory;
  ForeignThreads threads;
  for (int i = 0; i < 4; ++i)
    threads.start([&, i] {
      auto file = File::open(directory / std::to_string(i), O_RDWR | O_CREAT).value();
      EXPECT_EQ(file.write(bytes("text")).value(), 4u);
      EXPECT_EQ(read_text_at(file, 10, 1), "ext");
      EXPECT_EQ(file.status().value().size, 4u);
      EXPECT_TRUE(file.sync());
      EXPECT_TRUE(file.close());
    });
  threads.join();
}

NET_TEST(File, ForbiddenParksAreRefused) {
  const TempDirectory directory;
  make_file(directory / "a", "cached");
  const auto file = File::open(directory / "a").value();
  EXPECT_EQ(read_text_at(file, 10, 0), "cached");
  const this_fiber::ForbidPark forbid;
  EXPECT_EQ(read_text_at(file, 10, 0), "cached");
  EXPECT_EQ(file.sync().error(), Errc::park_forbidden);
  EXPECT_TRUE(File::open(directory / "a"));  // the kernel knows where it is
  EXPECT_EQ(File::open(directory / "a", O_RDWR | O_CREAT).error(), Errc::park_forbidden);
}

}  // namespace
}  // namespace runloom::test
