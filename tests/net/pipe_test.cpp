#include "runloom/net/pipe.hpp"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>

#include "runloom/net/buffered.hpp"
#include "runloom/net/copy.hpp"
#include "runloom/net/owned_fd.hpp"
#include "support/net_test.hpp"
#include "support/syscall_faults.hpp"
#include "support/unix_test.hpp"

namespace runloom::test {
namespace {

using namespace std::chrono_literals;
using net::OwnedFd;
using net::Pipe;
using net::PipeReader;
using net::PipeWriter;

bool is_nonblocking(int fd) {
  return (::fcntl(fd, F_GETFL) & O_NONBLOCK) != 0;
}

struct Ends {
  Ends() {
    std::array<int, 2> ends;
    EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    read.reset(ends[0]);
    write.reset(ends[1]);
  }
  OwnedFd read, write;
};

NET_TEST(Pipe, CarriesBytesToTheEnd) {
  auto pipe = Pipe::make().value();
  EXPECT_TRUE(is_cloexec(pipe.reader.fd().number()));
  const std::string text = pattern(1 << 20);
  auto writer = spawn([&] {
    EXPECT_TRUE(pipe.writer.write_all(net::bytes(text)));
    pipe.writer.close();
  });
  EXPECT_TRUE(read_to_end(pipe.reader).value() == text);
  EXPECT_EQ(read_text(pipe.reader).value(), "");
  EXPECT_TRUE(writer.join());
}

NET_TEST(Pipe, WritesSeveralBuffers) {
  auto pipe = Pipe::make().value();
  std::string one = "one ", two, three = "three";
  const std::array<iovec, 3> buffers{iovec{one.data(), one.size()}, iovec{two.data(), 0},
                                     iovec{three.data(), three.size()}};
  std::size_t written = 0;
  EXPECT_TRUE(pipe.writer.writev_all(buffers, {}, &written));
  EXPECT_EQ(written, 9u);
  EXPECT_EQ(pipe.writer.write_some(net::bytes("!")).value(), 1u);
  EXPECT_EQ(read_text(pipe.reader).value(), "one three!");
}

NET_TEST(Pipe, AWriterWithoutReaderGetsAnErrorAndNoSignal) {
  auto pipe = Pipe::make().value();
  auto writer = spawn([&] { return pipe.writer.write_all(net::bytes(pattern(1 << 20))); });
  until_parked(writer.handle(), WaitReason::io_write);
  pipe.reader.close();
  EXPECT_EQ(writer.join().error(), errno_code(EPIPE));
  EXPECT_EQ(pipe.writer.write_some(net::bytes("x")).error(), errno_code(EPIPE));
}

NET_TEST(Pipe, DeadlineCancelAndCloseEndAWait) {
  auto pipe = Pipe::make().value();
  EXPECT_EQ(read_text(pipe.reader, 9, Deadline::now()).error(), Errc::timed_out);
  EXPECT_EQ(read_text(pipe.reader, 9, Deadline::after(2ms)).error(), Errc::timed_out);
  EXPECT_EQ(pipe.reader.wait_readable(Deadline::after(2ms)).error(), Errc::timed_out);
  auto cancelled = spawn([&] { return read_text(pipe.reader); });
  until_parked(cancelled.handle(), WaitReason::io_read);
  cancelled.cancel();
  EXPECT_EQ(cancelled.join().error(), Errc::cancelled);
  auto closed = spawn([&] { return read_text(pipe.reader); });
  until_parked(closed.handle(), WaitReason::io_read);
  pipe.reader.close();
  EXPECT_EQ(closed.join().error(), Errc::closed);
  EXPECT_EQ(read_text(pipe.reader).error(), Errc::closed);

  auto full = Pipe::make().value();
  const std::string text = pattern(1 << 20);
  std::size_t written = 0;
  EXPECT_EQ(full.writer.write_all(net::bytes(text), Deadline::after(2ms), &written).error(),
            Errc::timed_out);
  EXPECT_GT(written, 0u);
  EXPECT_EQ(full.writer.wait_writable(Deadline::after(2ms)).error(), Errc::timed_out);
  auto writer = spawn([&] { return full.writer.write_some(net::bytes("x")); });
  until_parked(writer.handle(), WaitReason::io_write);
  ASSERT_TRUE(full.writer.shutdown_write());
  EXPECT_EQ(writer.join().error(), Errc::closed);
  EXPECT_EQ(full.writer.shutdown_write().error(), Errc::closed);
  EXPECT_TRUE(read_to_end(full.reader).value() == text.substr(0, written));
}

// Cut off where the caller can't know: whatever is written next would land inside the message.
NET_TEST(Pipe, AMessageThatWasCutOffBreaksTheWriter) {
  auto pipe = Pipe::make().value();
  EXPECT_EQ(pipe.writer.write_all(net::bytes(pattern(1 << 20)), Deadline::after(2ms)).error(),
            Errc::timed_out);
  EXPECT_EQ(pipe.writer.write_some(net::bytes("x")).error(), errno_code(EPIPE));
}

// Two writers at once: nobody's bytes come in between.
NET_TEST(Pipe, WritersTakeTurns) {
  auto pipe = Pipe::make().value();
  constexpr std::size_t kSize = 300'000;
  std::vector<JoinHandle<void>> writers;
  for (const char c : {'a', 'b', 'c'})
    writers.push_back(
        spawn([&, c] { EXPECT_TRUE(pipe.writer.write_all(net::bytes(std::string(kSize, c)))); }));
  std::string all(3 * kSize, '\0');
  EXPECT_EQ(pipe.reader.read_full(writable(all)).value(), all.size());
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_EQ(all.substr(i * kSize, kSize), std::string(kSize, all[i * kSize]));
  for (auto& writer : writers)
    EXPECT_TRUE(writer.join());
}

NET_TEST(Pipe, StacksAsAStream) {
  auto in = Pipe::make().value();
  auto out = Pipe::make().value();
  auto copying = spawn([&] {
    auto copied = net::copy(in.reader, out.writer);
    out.writer.close();
    return copied;
  });
  EXPECT_TRUE(in.writer.write_all(net::bytes("a line\nand more")));
  in.writer.close();
  net::BufferedReader lines(out.reader);
  EXPECT_EQ(lines.read_line(100).value(), "a line");
  EXPECT_EQ(copying.join().value(), 15u);
  // The direction that a pipe does not have.
  EXPECT_EQ(out.reader.write_some(net::bytes("x")).error(), errno_code(EBADF));
  EXPECT_EQ(out.reader.shutdown_write().error(), errno_code(EBADF));
  EXPECT_EQ(read_text(in.writer).error(), errno_code(EBADF));
  EXPECT_EQ(in.writer.wait_readable().error(), errno_code(EBADF));
}

// ---------------------------------------------------------------- adoption

NET_TEST(Pipe, AdoptedEndsLeaveTheSharedOneAlone) {
  Ends ends;
  // What another process would hold: the same open file description.
  const OwnedFd shared_read(::fcntl(ends.read.number(), F_DUPFD_CLOEXEC, 0));
  const OwnedFd shared_write(::fcntl(ends.write.number(), F_DUPFD_CLOEXEC, 0));
  const int read_number = ends.read.release(), write_number = ends.write.release();
  auto reader = PipeReader::adopt(read_number).value();
  auto writer = PipeWriter::adopt(write_number).value();
  EXPECT_EQ(reader.fd().number(), read_number);
  EXPECT_EQ(writer.fd().number(), write_number);
  EXPECT_TRUE(is_nonblocking(read_number) && is_nonblocking(write_number));
  EXPECT_FALSE(is_nonblocking(shared_read.number()) || is_nonblocking(shared_write.number()));
  EXPECT_TRUE(is_cloexec(read_number) && is_cloexec(write_number));
  EXPECT_TRUE(writer.write_all(net::bytes("x")));
  EXPECT_EQ(read_text(reader).value(), "x");
  EXPECT_EQ(PipeReader::adopt(read_number).error(), errno_code(EBUSY));
  const OwnedFd out(reader.detach().value());
  EXPECT_EQ(out.number(), read_number);
  EXPECT_FALSE(is_nonblocking(read_number));
}

NET_TEST(Pipe, AdoptsAPipeWhoseOtherEndIsGone) {
  {
    Ends ends;
    ASSERT_EQ(::write(ends.write.number(), "last", 4), 4);
    ends.write.reset();
    auto reader = PipeReader::adopt(ends.read.release()).value();
    ASSERT_TRUE(reader.wait_readable());
    EXPECT_EQ(read_to_end(reader).value(), "last");
    ASSERT_TRUE(reader.wait_readable());
  }
  Ends ends;
  ends.read.reset();
  auto writer = PipeWriter::adopt(ends.write.release()).value();
  EXPECT_EQ(writer.write_some(net::bytes("x")).error(), errno_code(EPIPE));
}

// A FIFO: who opens it after the last writer has gone hears of no end, and must not be told that
// there is none.
NET_TEST(Pipe, AdoptsAFifoAfterItsEnd) {
  SocketDir dir;
  ASSERT_EQ(::mkfifo(dir.path("fifo").c_str(), 0600), 0);
  OwnedFd read(::open(dir.path("fifo").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  { const OwnedFd write(::open(dir.path("fifo").c_str(), O_WRONLY | O_CLOEXEC)); }
  auto reader = PipeReader::adopt(read.release()).value();
  ASSERT_TRUE(reader.wait_readable());
  EXPECT_EQ(read_text(reader).value(), "");
}

NET_TEST(Pipe, RefusesWhatIsNoSuchEnd) {
  Ends ends;
  EXPECT_EQ(PipeReader::adopt(ends.write.number()).error(), errno_code(EBADF));
  EXPECT_EQ(PipeWriter::adopt(ends.read.number()).error(), errno_code(EBADF));
  EXPECT_EQ(PipeReader::adopt(-1).error(), errno_code(EBADF));
  const OwnedFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_EQ(PipeReader::adopt(null.number()).error(), errno_code(EINVAL));
  EXPECT_FALSE(is_nonblocking(ends.read.number()) || is_nonblocking(ends.write.number()));
}

NET_TEST(Pipe, SurvivesFailingCalls) {
  ASSERT_TRUE(Pipe::make());
  const std::size_t before = open_descriptors();
  for (const int err : {EMFILE, ENFILE, ENOMEM}) {
    const Fault fault(Call::pipe2, err);
    EXPECT_EQ(Pipe::make().error(), errno_code(err));
  }
  for (const int err : {EBUSY, EMFILE, EINTR}) {
    Ends ends;
    const Fault fault(Call::dup3, err);
    EXPECT_EQ(PipeReader::adopt(ends.read.number()).error(), errno_code(err));
    EXPECT_FALSE(is_nonblocking(ends.read.number()));  // still the caller's, as it was
    EXPECT_TRUE(is_cloexec(ends.read.number()));
  }
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
}  // namespace runloom::test
