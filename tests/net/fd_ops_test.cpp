#include "runloom/net/fd_ops.hpp"

#include <fcntl.h>
#include <pty.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include "runloom/sched/blocking.hpp"
#include "support/files.hpp"
#include "support/net_test.hpp"
#include "support/race.hpp"

namespace runloom::test {
namespace {

using namespace std::chrono_literals;
using net::bytes;
using net::fd_read;
using net::fd_write;

Result<std::string> read_fd(int fd, std::size_t most = 4096, Deadline deadline = {}) {
  std::string text(most, '\0');
  RUNLOOM_TRY(const std::size_t count, fd_read(fd, writable(text), deadline));
  text.resize(count);
  return text;
}

// Threads of this process that the kernel has blocked in a read of a pipe.
int threads_reading_a_pipe() {
  int count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task"))
    if (file_text((task.path() / "wchan").string()).find("pipe_read") != std::string::npos) ++count;
  return count;
}

// Both ends of something in blocking mode that carries bytes from `in` to `out`.
struct Ends {
  ~Ends() {
    for (const int fd : {in, out})
      if (fd >= 0) ::close(fd);
  }
  void close_in() { ::close(std::exchange(in, -1)); }
  int in = -1, out = -1;
};

void open_pipe(Ends& ends) {
  int end[2];
  ASSERT_EQ(::pipe2(end, O_CLOEXEC), 0);
  ends.out = end[0];
  ends.in = end[1];
}
void open_sockets(Ends& ends) {
  int end[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, end), 0);
  ends.out = end[0];
  ends.in = end[1];
}
// The kernel can't be kept from blocking on a FIFO, nor on a terminal.
void open_fifo(Ends& ends) {
  char directory[] = "/tmp/runloom-test-XXXXXX";
  ASSERT_NE(::mkdtemp(directory), nullptr);
  const std::string path = std::string(directory) + "/fifo";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const int both = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  ends.out = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ends.in = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  ::close(both);
  ::unlink(path.c_str());
  ::rmdir(directory);
}

void carries_bytes(void (*open)(Ends&)) {
  constexpr std::size_t kSize = 300'000;
  Ends ends;
  open(ends);
  EXPECT_EQ(read_fd(ends.out, 1, Deadline::now()).error(), Errc::timed_out);
  EXPECT_EQ(read_fd(ends.out, 1, Deadline::after(2ms)).error(), Errc::timed_out);
  auto writer = spawn([&] {
    std::size_t written = 0;
    EXPECT_TRUE(net::fd_write_all(ends.in, bytes(pattern(kSize)), {}, &written));
    EXPECT_EQ(written, kSize);
    ends.close_in();
  });
  std::string all;
  for (;;) {
    const std::string piece = read_fd(ends.out).value();
    if (piece.empty()) break;
    all += piece;
  }
  EXPECT_EQ(all, pattern(kSize));
  EXPECT_TRUE(writer.join());
  // The flags are what they were.
  EXPECT_EQ(::fcntl(ends.out, F_GETFL) & O_NONBLOCK, 0);
}

NET_TEST(FdOps, Pipe) {
  carries_bytes(&open_pipe);
}
NET_TEST(FdOps, Socket) {
  carries_bytes(&open_sockets);
}
NET_TEST(FdOps, Fifo) {
  carries_bytes(&open_fifo);
}

NET_TEST(FdOps, WaitsForTheOtherSide) {
  for (void (*open)(Ends&) : {&open_pipe, &open_sockets, &open_fifo}) {
    Ends ends;
    open(ends);
    auto reader = spawn([&] { return read_fd(ends.out); });
    until_parked(reader.handle(), WaitReason::io_poll);
    EXPECT_EQ(fd_write(ends.in, bytes("abc")).value(), 3u);
    EXPECT_EQ(reader.join().value(), "abc");
    auto cancelled = spawn([&] { return read_fd(ends.out); });
    until_parked(cancelled.handle(), WaitReason::io_poll);
    cancelled.cancel();
    EXPECT_EQ(cancelled.join().error(), Errc::cancelled);
  }
}

NET_TEST(FdOps, WriteAllHasADeadline) {
  for (void (*open)(Ends&) : {&open_pipe, &open_sockets, &open_fifo}) {
    Ends ends;
    open(ends);
    std::size_t written = 0;
    const std::string data(8 << 20, 'x');
    EXPECT_EQ(net::fd_write_all(ends.in, bytes(data), Deadline::after(200ms), &written).error(),
              Errc::timed_out);
    EXPECT_GT(written, 0u);
    EXPECT_LT(written, data.size());
  }
}

// SIGPIPE would end the process.
NET_TEST(FdOps, BrokenPipeIsAnError) {
  for (void (*open)(Ends&) : {&open_pipe, &open_sockets, &open_fifo}) {
    Ends ends;
    open(ends);
    ::close(std::exchange(ends.out, -1));
    EXPECT_EQ(fd_write(ends.in, bytes("x")).error(), errno_code(EPIPE));
  }
}

NET_TEST(FdOps, Terminal) {
  Ends ends;
  ASSERT_EQ(::openpty(&ends.out, &ends.in, nullptr, nullptr, nullptr), 0);
  termios mode;
  ASSERT_EQ(::tcgetattr(ends.in, &mode), 0);
  ::cfmakeraw(&mode);
  ASSERT_EQ(::tcsetattr(ends.in, TCSANOW, &mode), 0);
  auto reader = spawn([&] { return read_fd(ends.out); });
  until_parked(reader.handle(), WaitReason::io_poll);
  EXPECT_TRUE(net::fd_write_all(ends.in, bytes("terminal")));
  EXPECT_EQ(reader.join().value(), "terminal");
}

NET_TEST(FdOps, RegularFile) {
  char name[] = "/tmp/runloom-test-XXXXXX";
  const int file = ::mkstemp(name);
  ASSERT_GE(file, 0);
  ::unlink(name);
  const std::string data = pattern(100'000);
  EXPECT_TRUE(net::fd_write_all(file, bytes(data)));
  ASSERT_EQ(::lseek(file, 0, SEEK_SET), 0);
  std::string all;
  for (std::string piece = "."; !piece.empty();) {
    piece = read_fd(file).value();
    all += piece;
  }
  EXPECT_EQ(all, data);
  ::close(file);
}

NET_TEST(FdOps, RecvAndSend) {
  Ends ends;
  open_sockets(ends);
  std::string got(16, '\0');
  EXPECT_EQ(net::fd_recv(ends.out, writable(got), MSG_DONTWAIT).error(), errno_code(EAGAIN));
  EXPECT_EQ(net::fd_recv(ends.out, writable(got), 0, Deadline::after(1ms)).error(),
            Errc::timed_out);
  EXPECT_EQ(net::fd_send(ends.in, bytes("abc")).value(), 3u);
  EXPECT_EQ(net::fd_recv(ends.out, writable(got), MSG_PEEK).value(), 3u);
  EXPECT_EQ(net::fd_recv(ends.out, writable(got)).value(), 3u);
  auto writer = spawn([&] { return net::fd_send_all(ends.in, bytes(pattern(1 << 20))); });
  std::string all(1 << 20, '\0');
  for (std::size_t done = 0; done < all.size();)
    done += net::fd_recv(ends.out, writable(all).subspan(done)).value();
  EXPECT_EQ(all, pattern(1 << 20));
  EXPECT_TRUE(writer.join());
  EXPECT_EQ(net::fd_recv(-1, writable(got)).error(), errno_code(EBADF));
}

// A number that a net object owns is used in turn with its other users.
NET_TEST(FdOps, OwnedDescriptor) {
  TcpPair pair;
  const int number = pair.client.fd().number();
  auto one = spawn([&] { return read_text(pair.client, 1); });
  until_parked(one.handle(), WaitReason::io_read);
  auto two = spawn([&] { return read_fd(number, 1); });
  until_parked(two.handle(), WaitReason::io_read);
  ASSERT_TRUE(pair.server.write_all(bytes("ab")));
  EXPECT_EQ(one.join().value(), "a");
  EXPECT_EQ(two.join().value(), "b");
  EXPECT_EQ(fd_write(number, bytes("c")).value(), 1u);
  EXPECT_EQ(read_text(pair.server).value(), "c");
  auto three = spawn([&] { return read_fd(number); });
  until_parked(three.handle(), WaitReason::io_read);
  pair.client.close();
  EXPECT_EQ(three.join().error(), Errc::closed);
}

TEST(FdOps, OnAnOsThread) {
  HangGuard guard;
  Ends ends;
  open_pipe(ends);
  EXPECT_EQ(read_fd(ends.out, 1, Deadline::after(1ms)).error(), Errc::timed_out);
  EXPECT_TRUE(fd_write(ends.in, bytes("abc")));
  EXPECT_EQ(read_fd(ends.out).value(), "abc");
  Ends fifo;
  open_fifo(fifo);
  EXPECT_TRUE(fd_write(fifo.in, bytes("abc")));
  EXPECT_EQ(read_fd(fifo.out).value(), "abc");
}

// ---------------------------------------------------------------- files

NET_TEST(FdOps, ReadsAndWritesFilesAtOffsets) {
  const TempDirectory directory;
  make_file(directory / "a", pattern(300'000));
  const int fd = ::open((directory / "a").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  std::string text(200'000, '\0');
  for (const bool cold : {false, true}) {
    if (cold) drop_cache(directory / "a");
    ASSERT_EQ(::lseek(fd, 7, SEEK_SET), 7);
    EXPECT_EQ(net::fd_read_at(fd, writable(text), 150'000).value(), 150'000u);
    EXPECT_EQ(text.substr(0, 150'000), pattern(150'000, 150'000));
    EXPECT_EQ(fd_read(fd, writable(text)).value(), 200'000u);
    EXPECT_EQ(text, pattern(200'000, 7));
    EXPECT_EQ(fd_read(fd, writable(text)).value(), 99'993u);
    EXPECT_EQ(fd_read(fd, writable(text)).value(), 0u);
  }
  EXPECT_EQ(net::fd_write_at(fd, bytes("abc"), 299'999).value(), 3u);
  EXPECT_EQ(fd_write(fd, bytes("z")).value(), 1u);
  EXPECT_EQ(file_text(directory / "a"), pattern(299'999) + "azc");
  EXPECT_EQ(net::fd_read_at(fd, writable(text), -1).error(), errno_code(EINVAL));
  ::close(fd);
  EXPECT_EQ(net::fd_read_at(fd, writable(text), 0).error(), errno_code(EBADF));
  Ends ends;
  open_pipe(ends);
  EXPECT_EQ(net::fd_read_at(ends.out, writable(text), 0).error(), errno_code(ESPIPE));
  EXPECT_EQ(net::fd_write_at(ends.in, bytes("x"), 0).error(), errno_code(ESPIPE));
}

// Far more readers than the pool has threads, all woken by each byte: none of them blocks one, so
// that files and blocking calls go on.
NET_TEST(FdOps, F18FifoReadersBlockNoThreads) {
  Ends ends;
  open_fifo(ends);
  const int readers = kSanitized ? 200 : 500;
  std::atomic<int> read{0};
  std::vector<JoinHandle<void>> fibers;
  for (int i = 0; i < readers; ++i)
    fibers.push_back(spawn([&] {
      const auto text = read_fd(ends.out, 1);
      if (text && text->size() == 1) ++read;
    }));
  for (auto& fiber : fibers)
    until_parked(fiber.handle(), WaitReason::io_poll);
  for (int round = 1; round <= 10; ++round) {
    ASSERT_EQ(::write(ends.in, "x", 1), 1);
    yield_until([&] { return read == round; });
    EXPECT_EQ(blocking([] { return 7; }).value(), 7);
  }
  EXPECT_EQ(threads_reading_a_pipe(), 0);
  for (auto& fiber : fibers)
    fiber.cancel();
  for (auto& fiber : fibers)
    (void)fiber.join();
  EXPECT_EQ(read, 10);
}

// F06: a cancelled read of a FIFO touches its memory no more, and takes no byte with it.
NET_TEST(FdOps, F06CancelledFifoReadsLoseNothing) {
  Ends ends;
  open_fifo(ends);
  const int rounds = kSanitized ? 2'000 : 10'000;
  std::string seen;
  Random random(1);
  for (int i = 0; i < rounds; ++i) {
    const char byte = static_cast<char>('a' + i % 26);
    auto memory = std::make_unique<std::string>(16, '\0');
    auto reader = spawn([&] { return fd_read(ends.out, writable(*memory)); });
    for (std::uint32_t pause = random.below(4); pause > 0; --pause)
      this_fiber::yield();
    const bool before = random.one_in(2);
    if (before) reader.cancel();
    ASSERT_EQ(::write(ends.in, &byte, 1), 1);
    if (!before) reader.cancel();
    const auto count = reader.join();
    if (count) {
      seen.append(*memory, 0, *count);
    } else {
      EXPECT_EQ(count.error(), Errc::cancelled);
    }
    memory.reset();
  }
  for (std::string rest; seen.size() < static_cast<std::size_t>(rounds); seen += rest)
    rest = read_fd(ends.out).value();
  std::string expected;
  for (int i = 0; i < rounds; ++i)
    expected += static_cast<char>('a' + i % 26);
  EXPECT_EQ(seen, expected);
}

}  // namespace
}  // namespace runloom::test
