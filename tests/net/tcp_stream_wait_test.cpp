// Waits on a TCP connection, and what ends them: deadline, cancel, close, another user.
#include "runloom/net/tcp_stream.hpp"

#include <atomic>
#include "runloom/sched/cancel.hpp"

#include "support/net_test.hpp"

namespace runloom::test {
namespace {

using namespace std::chrono_literals;
using net::bytes;

// ---------------------------------------------------------------- waits that end

STREAM_TEST(TcpStream, ReadTimesOut) {
  TcpPair pair;
  std::string got(8, '\0');
  const std::int64_t before = monotonic_ns();
  EXPECT_EQ(pair.client.read_some(writable(got), Deadline::after(20ms)).error(), Errc::timed_out);
  EXPECT_GE(monotonic_ns() - before, 20'000'000);
  // The stream is as good as before.
  ASSERT_TRUE(pair.server.write_all(bytes("abc")));
  EXPECT_GE(pair.client.read_some(writable(got)).value(), 1u);
}

STREAM_TEST(TcpStream, CancelEndsARead) {
  TcpPair pair;
  auto reader = spawn([&] { return read_text(pair.client); });
  until_parked(reader.handle(), WaitReason::io_read);
  reader.cancel();
  EXPECT_EQ(reader.join().error(), Errc::cancelled);
}

STREAM_TEST(TcpStream, ScopeDeadlineEndsARead) {
  TcpPair pair;
  CancelScope scope(Deadline::after(10ms));
  EXPECT_EQ(read_text(pair.client).error(), Errc::timed_out);
}

// What has arrived wins over a cancel, which stays pending.
STREAM_TEST(TcpStream, DataWinsOverCancel) {
  TcpPair pair;
  ASSERT_TRUE(pair.server.write_all(bytes("abc")));
  ASSERT_TRUE(pair.client.wait_readable());
  CancelScope scope;
  scope.cancel();
  EXPECT_TRUE(read_text(pair.client, 3));
  EXPECT_EQ(this_fiber::check_cancelled().error(), Errc::cancelled);
}

STREAM_TEST(TcpStream, CloseWakesAReaderT06) {
  TcpPair pair;
  auto reader = spawn([&] { return read_text(pair.client); });
  until_parked(reader.handle(), WaitReason::io_read);
  pair.client.close();
  EXPECT_EQ(reader.join().error(), Errc::closed);
  EXPECT_FALSE(pair.client);
  EXPECT_EQ(read_text(pair.client).error(), Errc::closed);
  EXPECT_EQ(pair.client.write_all(bytes("x")).error(), Errc::closed);
  EXPECT_EQ(pair.client.shutdown_write().error(), Errc::closed);
  pair.client.close();
}

STREAM_TEST(TcpStream, CloseWakesAWriterT06) {
  TcpPair pair;
  auto writer = spawn([&] {
    const std::string data = pattern(1 << 20);
    for (;;)
      if (auto ok = pair.client.write_all(bytes(data)); !ok) return ok.error();
  });
  until_parked(writer.handle(), WaitReason::io_write);
  pair.client.close();
  EXPECT_EQ(writer.join().value(), Errc::closed);
}

STREAM_TEST(TcpStream, WaitReadableEndsByDataEndAndClose) {
  TcpPair pair;
  EXPECT_EQ(pair.client.wait_readable(Deadline::after(5ms)).error(), Errc::timed_out);
  auto waiter = spawn([&] { return pair.client.wait_readable(); });
  until_parked(waiter.handle(), WaitReason::io_poll);
  ASSERT_TRUE(pair.server.write_all(bytes("abc")));
  EXPECT_TRUE(waiter.join());
  EXPECT_TRUE(pair.client.wait_readable());
  std::string got(3, '\0');
  ASSERT_EQ(pair.client.read_full(writable(got)).value(), 3u);
  auto other = spawn([&] { return pair.server.wait_readable(); });
  until_parked(other.handle(), WaitReason::io_poll);
  pair.server.close();
  EXPECT_EQ(other.join().error(), Errc::closed);
  EXPECT_TRUE(pair.client.wait_readable());  // the end can be read
}

// A wait for readiness and a read don't queue for each other.
NET_TEST(TcpStream, WaitReadableBesideAReader) {
  TcpPair pair;
  auto reader = spawn([&] { return read_text(pair.client); });
  until_parked(reader.handle(), WaitReason::io_read);
  auto waiter = spawn([&] { return pair.client.wait_readable(); });
  until_parked(waiter.handle(), WaitReason::io_poll);
  ASSERT_TRUE(pair.server.write_all(bytes("abc")));
  EXPECT_EQ(reader.join().value(), "abc");
  EXPECT_TRUE(waiter.join());
}

// First come, first served; nobody is forgotten.
STREAM_TEST(TcpStream, TwoReadersAreServedInOrderT24) {
  TcpPair pair;
  std::string first(100, '\0'), second(100, '\0');
  auto one = spawn([&] { return pair.client.recv(writable(first), MSG_WAITALL); });
  until_parked(one.handle(), WaitReason::io_read);
  auto two = spawn([&] { return pair.client.recv(writable(second), MSG_WAITALL); });
  until_parked(two.handle(), WaitReason::io_read);
  ASSERT_TRUE(pair.server.write_all(bytes(pattern(100))));
  EXPECT_EQ(one.join().value(), 100u);
  EXPECT_FALSE(two.done());
  ASSERT_TRUE(pair.server.write_all(bytes(pattern(100, 100))));
  EXPECT_EQ(two.join().value(), 100u);
  EXPECT_EQ(first, pattern(100));
  EXPECT_EQ(second, pattern(100, 100));
}

STREAM_TEST(TcpStream, QueuedReaderHasItsOwnDeadlineAndCancelT24) {
  TcpPair pair;
  auto one = spawn([&] { return read_text(pair.client, 1); });
  until_parked(one.handle(), WaitReason::io_read);
  EXPECT_EQ(read_text(pair.client, 10, Deadline::after(5ms)).error(), Errc::timed_out);
  auto two = spawn([&] { return read_text(pair.client, 1); });
  until_parked(two.handle(), WaitReason::io_read);
  two.cancel();
  EXPECT_EQ(two.join().error(), Errc::cancelled);
  auto three = spawn([&] { return read_text(pair.client, 1); });
  until_parked(three.handle(), WaitReason::io_read);
  ASSERT_TRUE(pair.server.write_all(bytes("ab")));
  EXPECT_EQ(one.join().value(), "a");
  EXPECT_EQ(three.join().value(), "b");
}

STREAM_TEST(TcpStream, CloseWakesQueuedReadersT24) {
  TcpPair pair;
  std::vector<JoinHandle<Result<std::string>>> readers;
  for (int i = 0; i < 3; ++i) {
    readers.push_back(spawn([&] { return read_text(pair.client); }));
    until_parked(readers.back().handle(), WaitReason::io_read);
  }
  pair.client.close();
  for (auto& reader : readers)
    EXPECT_EQ(reader.join().error(), Errc::closed);
}

// Two writers at once don't mix their bytes.
STREAM_TEST(TcpStream, WritersTakeTurns) {
  constexpr std::size_t kSize = 300'000;
  TcpPair pair;
  auto a = spawn([&] { return pair.client.write_all(bytes(std::string(kSize, 'a'))); });
  auto b = spawn([&] { return pair.client.write_all(bytes(std::string(kSize, 'b'))); });
  std::string all(2 * kSize, '\0');
  ASSERT_EQ(pair.server.read_full(writable(all)).value(), 2 * kSize);
  EXPECT_TRUE(a.join());
  EXPECT_TRUE(b.join());
  const char first = all[0];
  EXPECT_EQ(all.find_first_not_of(first), kSize);
}

// The deadline bounds the whole of it, not each transfer.
STREAM_TEST(TcpStream, WriteAllTimesOutT27) {
  TcpPair pair;
  const std::string data(16 << 20, 'x');
  std::size_t written = 0;
  EXPECT_EQ(pair.client.write_all(bytes(data), Deadline::after(50ms), &written).error(),
            Errc::timed_out);
  EXPECT_GT(written, 0u);
  EXPECT_LT(written, data.size());
}

STREAM_TEST(TcpStream, WriteAllToATricklingReaderEndsAtItsDeadlineT27) {
  TcpPair pair;
  std::atomic<bool> over{false};
  auto reader = spawn([&] {
    std::string piece(512, '\0');
    while (!over && this_fiber::sleep_for(1ms))
      pair.server.read_some(writable(piece), Deadline::now()).error();
  });
  const std::string data(16 << 20, 'x');
  EXPECT_EQ(pair.client.write_all(bytes(data), Deadline::after(60ms)).error(), Errc::timed_out);
  over = true;
  EXPECT_TRUE(reader.join());
}

// Who gives up in the middle of a message and does not know where must not write behind it.
STREAM_TEST(TcpStream, CancelledWriteBreaksTheStreamT29) {
  TcpPair pair;
  auto writer = spawn([&] { return pair.client.write_all(bytes(std::string(10 << 20, 'x'))); });
  until_parked(writer.handle(), WaitReason::io_write);
  writer.cancel();
  EXPECT_EQ(writer.join().error(), Errc::cancelled);
  EXPECT_EQ(pair.client.write_all(bytes("next request")).error(), errno_code(EPIPE));
  EXPECT_EQ(pair.client.write_some(bytes("next request")).error(), errno_code(EPIPE));
  // Reading goes on.
  ASSERT_TRUE(pair.server.write_all(bytes("abc")));
  EXPECT_TRUE(read_text(pair.client));
}

STREAM_TEST(TcpStream, CancelledWriteWithACountMayGoOnT29) {
  TcpPair pair;
  const std::string data = pattern(4 << 20);
  std::size_t written = 0;
  auto writer = spawn([&] { return pair.client.write_all(bytes(data), {}, &written); });
  until_parked(writer.handle(), WaitReason::io_write);
  writer.cancel();
  EXPECT_EQ(writer.join().error(), Errc::cancelled);
  auto rest = spawn([&] { return pair.client.write_all(bytes(data).subspan(written)); });
  std::string got(data.size(), '\0');
  EXPECT_EQ(pair.server.read_full(writable(got)).value(), data.size());
  EXPECT_EQ(got, data);
  EXPECT_TRUE(rest.join());
}

STREAM_TEST(TcpStream, ReadFullTellsHowMuchHadCome) {
  TcpPair pair;
  ASSERT_TRUE(pair.server.write_all(bytes("abc")));
  std::string got(8, '\0');
  std::size_t count = 0;
  EXPECT_EQ(pair.client.read_full(writable(got), Deadline::after(20ms), &count).error(),
            Errc::timed_out);
  EXPECT_EQ(count, 3u);
}

STREAM_TEST(TcpStream, LingeringCloseLetsThePeerReadTheAnswerT46) {
  TcpPair pair;
  auto client = spawn([&] {
    const std::string upload(1 << 20, 'u');
    // The server takes it, though nobody there wants it.
    EXPECT_TRUE(pair.client.write_all(bytes(upload)));
    EXPECT_TRUE(pair.client.shutdown_write());
    return read_to_end(pair.client);
  });
  ASSERT_TRUE(pair.server.write_all(bytes("413 too large")));
  net::lingering_close(pair.server, {.deadline = Deadline::after(5s), .bytes = 4 << 20});
  EXPECT_FALSE(pair.server);
  EXPECT_EQ(client.join().value(), "413 too large");
}

STREAM_TEST(TcpStream, LingeringCloseHasALimit) {
  TcpPair pair;
  auto client = spawn([&] {
    const std::string piece(64 * 1024, 'u');
    while (pair.client.write_all(bytes(piece))) {
    }
  });
  net::lingering_close(pair.server, {.bytes = 300'000});
  EXPECT_FALSE(pair.server);
  EXPECT_TRUE(client.join());
}

}  // namespace
}  // namespace runloom::test
