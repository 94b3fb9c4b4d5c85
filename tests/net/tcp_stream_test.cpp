// Transfers of a TCP connection. Names ending in an id (T14) test that row of the list of known
// troubles. STREAM_TESTs also run on the simulated completion backend.
#include "runloom/net/tcp_stream.hpp"

#include <atomic>

#include "support/net_test.hpp"

namespace runloom::test {
namespace {

using namespace std::chrono_literals;
using net::bytes;
using net::TcpStream;

// ---------------------------------------------------------------- data

STREAM_TEST(TcpStream, EchoesUntilTheEnd) {
  Listening listening;
  auto echo = spawn([&] {
    auto stream = listening.listener.accept().value();
    std::array<std::byte, 512> buffer;
    for (;;) {
      const std::size_t count = stream.read_some(buffer).value();
      if (count == 0) break;
      stream.write_all(std::span(buffer).first(count)).value();
    }
  });
  auto client = TcpStream::connect(listening.address).value();
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(client.write_all(bytes("hello")));
    std::string answer(5, '\0');
    ASSERT_EQ(client.read_full(writable(answer)).value(), 5u);
    ASSERT_EQ(answer, "hello");
  }
  ASSERT_TRUE(client.shutdown_write());
  EXPECT_EQ(read_to_end(client).value(), "");
  EXPECT_TRUE(echo.join());
}

STREAM_TEST(TcpStream, ManyConnectionsAtOnce) {
  constexpr int kConnections = 100;
  Listening listening;
  auto server = spawn([&] {
    for (int i = 0; i < kConnections; ++i) {
      go([stream = listening.listener.accept().value()]() mutable {
        std::array<std::byte, 64> buffer;
        for (;;) {
          const auto count = stream.read_some(buffer);
          if (!count || *count == 0) return;
          if (!stream.write_all(std::span(buffer).first(*count))) return;
        }
      }).value();
    }
  });
  std::vector<JoinHandle<Result<int>>> clients;
  for (int i = 0; i < kConnections; ++i) {
    clients.push_back(spawn([&, i]() -> Result<int> {
      RUNLOOM_TRY(auto client, TcpStream::connect(listening.address));
      int good = 0;
      for (int k = 0; k < 20; ++k) {
        const std::string sent = std::to_string(i) + ":" + std::to_string(k);
        if (auto ok = client.write_all(bytes(sent)); !ok) return Unexpected{ok.error()};
        std::string got(sent.size(), '\0');
        RUNLOOM_TRY(auto count, client.read_full(writable(got)));
        good += count == sent.size() && got == sent ? 1 : 0;
      }
      return good;
    }));
  }
  for (auto& client : clients)
    EXPECT_EQ(client.join().value(), 20);
  EXPECT_TRUE(server.join());
}

STREAM_TEST(TcpStream, EmptyTransfersDoNothing) {
  TcpPair pair;
  EXPECT_EQ(pair.client.read_some({}).value(), 0u);
  EXPECT_EQ(pair.client.write_some({}).value(), 0u);
  EXPECT_TRUE(pair.client.write_all({}));
}

STREAM_TEST(TcpStream, HalfCloseEndsOneDirectionOnly) {
  TcpPair pair;
  ASSERT_TRUE(pair.client.write_all(bytes("last words")));
  ASSERT_TRUE(pair.client.shutdown_write());
  EXPECT_EQ(read_to_end(pair.server).value(), "last words");
  ASSERT_TRUE(pair.server.write_all(bytes("answer")));
  pair.server.close();
  EXPECT_EQ(read_to_end(pair.client).value(), "answer");
  // The end stays the end.
  EXPECT_EQ(read_to_end(pair.client).value(), "");
}

// All is read before the end, though the end came with the first event.
STREAM_TEST(TcpStream, ReadsAllBeforeTheEndT14) {
  constexpr std::size_t kSize = 1 << 20;
  TcpPair pair;
  auto writer = spawn([&] {
    const std::string data = pattern(kSize);
    EXPECT_TRUE(pair.server.write_all(bytes(data)));
    pair.server.close();
  });
  std::string all, piece(4096, '\0');
  for (;;) {
    const std::size_t count = pair.client.read_some(writable(piece)).value();
    if (count == 0) break;
    all.append(piece, 0, count);
  }
  EXPECT_EQ(all.size(), kSize);
  EXPECT_EQ(all, pattern(kSize));
  EXPECT_TRUE(writer.join());
}

// A short read counts as drained, so the next one parks at once: the end that is queued behind the
// data must still come, also when both are there before the first event is polled.
STREAM_TEST(TcpStream, EndRightBehindAShortReadIsSeenS02) {
  for (int i = 0; i < 50; ++i) {
    TcpPair pair;
    auto reader = spawn([&] { return read_to_end(pair.client); });
    if (i % 2 == 0) until_parked(reader.handle(), WaitReason::io_read);
    ASSERT_TRUE(pair.server.write_all(bytes("x")));
    if (i % 3 == 0) this_fiber::yield();
    pair.server.close();
    EXPECT_EQ(reader.join().value(), "x");
  }
}

STREAM_TEST(TcpStream, SlowReaderLosesNothingT28) {
  constexpr std::size_t kChunk = 16 * 1024;
  constexpr int kChunks = 60;
  TcpPair pair;
  auto writer = spawn([&] {
    for (int i = 0; i < kChunks; ++i)
      ASSERT_TRUE(pair.client.write_all(bytes(pattern(kChunk, i * kChunk))));
    pair.client.close();
  });
  std::size_t at = 0;
  for (std::string piece(7777, '\0');;) {
    const std::size_t count = pair.server.read_some(writable(piece)).value();
    if (count == 0) break;
    ASSERT_EQ(piece.substr(0, count), pattern(count, at));
    at += count;
    this_fiber::yield();
  }
  EXPECT_EQ(at, kChunk * kChunks);
  EXPECT_TRUE(writer.join());
}

STREAM_TEST(TcpStream, GathersBuffers) {
  constexpr std::size_t kBuffers = 100;
  TcpPair pair;
  std::vector<std::string> parts;
  std::string whole;
  for (std::size_t i = 0; i < kBuffers; ++i) {
    parts.push_back(i % 7 == 0 ? "" : pattern(i * 37, whole.size()));
    whole += parts.back();
  }
  auto reader = spawn([&] { return read_to_end(pair.server); });
  std::vector<iovec> buffers;
  for (std::string& part : parts)
    buffers.push_back({part.data(), part.size()});
  std::size_t written = 0;
  ASSERT_TRUE(pair.client.writev_all(buffers, {}, &written));
  EXPECT_EQ(written, whole.size());
  pair.client.close();
  EXPECT_EQ(reader.join().value(), whole);
}

STREAM_TEST(TcpStream, ReadsAndWritesAtTheSameTime) {
  static constexpr std::size_t kSize = 2 << 20;
  TcpPair pair;
  // Both sides write more than the pipe holds before they read: only both directions at once work.
  auto pump = [](TcpStream& stream) {
    auto writer = spawn([&stream] { return stream.write_all(bytes(pattern(kSize))); });
    std::string got(kSize, '\0');
    EXPECT_EQ(stream.read_full(writable(got)).value(), kSize);
    EXPECT_EQ(got, pattern(kSize));
    EXPECT_TRUE(writer.join());
  };
  auto other = spawn([&] { pump(pair.server); });
  pump(pair.client);
  EXPECT_TRUE(other.join());
}

// ---------------------------------------------------------------- flags

STREAM_TEST(TcpStream, WaitAllFillsTheBufferT42) {
  TcpPair pair;
  auto reader = spawn([&] {
    std::string got(8, '\0');
    EXPECT_EQ(pair.client.recv(writable(got), MSG_WAITALL).value(), 8u);
    return got;
  });
  ASSERT_TRUE(pair.server.write_all(bytes("1234")));
  until_parked(reader.handle(), WaitReason::io_read);
  ASSERT_TRUE(pair.server.write_all(bytes("5678")));
  EXPECT_EQ(reader.join().value(), "12345678");
}

STREAM_TEST(TcpStream, WaitAllGivesWhatThereIsAtTheEndOrTheDeadlineT42) {
  TcpPair pair;
  std::string got(8, '\0');
  ASSERT_TRUE(pair.server.write_all(bytes("1234")));
  EXPECT_EQ(pair.client.recv(writable(got), MSG_WAITALL, Deadline::after(30ms)).value(), 4u);
  EXPECT_EQ(pair.client.recv(writable(got), MSG_WAITALL, Deadline::after(1ms)).error(),
            Errc::timed_out);
  ASSERT_TRUE(pair.server.write_all(bytes("56")));
  pair.server.close();
  EXPECT_EQ(pair.client.recv(writable(got), MSG_WAITALL).value(), 2u);
  EXPECT_EQ(pair.client.recv(writable(got), MSG_WAITALL).value(), 0u);
}

STREAM_TEST(TcpStream, PeekConsumesNothingT44) {
  TcpPair pair;
  std::string got(8, '\0');
  auto reader = spawn([&] { return pair.client.peek(writable(got)); });
  ASSERT_TRUE(pair.server.write_all(bytes("abc")));
  const std::size_t first = reader.join().value();
  ASSERT_GE(first, 1u);
  EXPECT_EQ(got.substr(0, first), std::string("abc").substr(0, first));
  std::string again(3, '\0');
  EXPECT_EQ(pair.client.read_full(writable(again)).value(), 3u);
  EXPECT_EQ(again, "abc");
  // Nothing is left: a peek counts as nothing read, but must not leave the stream ready for ever.
  EXPECT_EQ(pair.client.peek(writable(got), Deadline::now()).error(), Errc::timed_out);
}

STREAM_TEST(TcpStream, DontWaitNeverParksT43) {
  TcpPair pair;
  std::string got(8, '\0');
  EXPECT_EQ(pair.client.recv(writable(got), MSG_DONTWAIT).error(), errno_code(EAGAIN));
  ASSERT_TRUE(pair.server.write_all(bytes("abc")));
  ASSERT_TRUE(pair.client.wait_readable());
  const std::size_t count = pair.client.recv(writable(got), MSG_DONTWAIT).value();
  EXPECT_GE(count, 1u);
}

STREAM_TEST(TcpStream, PassedDeadlineMakesOneAttempt) {
  TcpPair pair;
  std::string got(8, '\0');
  EXPECT_EQ(pair.client.read_some(writable(got), Deadline::now()).error(), Errc::timed_out);
  EXPECT_GE(pair.server.write_some(bytes("abc"), Deadline::now()).value(), 1u);
  ASSERT_TRUE(pair.client.wait_readable());
  EXPECT_GE(pair.client.read_some(writable(got), Deadline::now()).value(), 1u);
}

// ---------------------------------------------------------------- fairness

// An always full stream must not starve a timer or another connection.
NET_TEST(TcpStream, EagerReadsLetOthersRunS04) {
  Listening listening;
  TcpPair pair;
  std::atomic<bool> over{false};
  auto feeder = spawn([&] {
    const std::string piece(32 * 1024, 'f');
    while (!over && pair.server.write_all(bytes(piece))) {
    }
    pair.server.close();
  });
  auto reader = spawn([&] {
    std::string piece(16, '\0');  // far fewer than there are: never parks
    while (!over)
      ASSERT_TRUE(pair.client.read_some(writable(piece)));
    pair.client.close();
  });
  auto timer = spawn([&] { return this_fiber::sleep_for(20ms); });
  auto acceptor = spawn([&] { return listening.listener.accept(); });
  const int fd = plain_connect(listening.address);
  EXPECT_TRUE(acceptor.join());
  EXPECT_TRUE(timer.join());
  over = true;
  EXPECT_TRUE(reader.join());
  EXPECT_TRUE(feeder.join());
  ::close(fd);
}

}  // namespace
}  // namespace runloom::test
