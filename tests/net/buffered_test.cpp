#include "runloom/net/buffered.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "runloom/net/tcp_listener.hpp"
#include "runloom/net/tcp_stream.hpp"
#include "runloom/sched/fiber.hpp"
#include "runloom/sched/scheduler.hpp"
#include "support/fiber_test.hpp"
#include "support/memory_stream.hpp"

namespace runloom::net {
namespace {

using test::MemoryStream;

std::span<std::byte> into(std::string& text) {
  return std::as_writable_bytes(std::span(text.data(), text.size()));
}

// All that is left, by reads of `size` bytes.
std::string rest(BufferedReader& reader, std::size_t size = 7) {
  std::string all;
  std::string piece(size, '\0');
  for (;;) {
    auto count = reader.read_some(into(piece));
    EXPECT_TRUE(count) << count.error().message();
    if (!count || *count == 0) return all;
    all.append(piece, 0, *count);
  }
}

TEST(BufferedReader, LinesEndInLfOrCrlf) {
  MemoryStream stream({"one\r\ntwo\n\nfo", "ur\r", "\nrest"});
  BufferedReader reader(stream);
  EXPECT_EQ(*reader.read_line(), "one");
  EXPECT_EQ(*reader.read_line(), "two");
  EXPECT_EQ(*reader.read_line(), "");
  EXPECT_EQ(*reader.read_line(), "four");
  auto last = reader.read_line();
  EXPECT_EQ(last.error(), ReadErrc::end_of_stream);
  EXPECT_EQ(reader.unread(), "rest");
  EXPECT_EQ(rest(reader), "rest");
  EXPECT_EQ(reader.read_line().error(), ReadErrc::end_of_stream);
}

TEST(BufferedReader, ADelimiterMayBeCutAnywhere) {
  const std::string text = "head\r\n\r\nbody";
  for (std::size_t cut = 1; cut < text.size(); ++cut) {
    MemoryStream stream({text.substr(0, cut), text.substr(cut)});
    BufferedReader reader(stream);
    EXPECT_EQ(*reader.read_until("\r\n\r\n"), "head\r\n\r\n") << cut;
    EXPECT_EQ(rest(reader), "body") << cut;
  }
}

TEST(BufferedReader, LimitCountsTheDelimiterAndTakesNothing) {
  MemoryStream stream({"12345\n", "123456\nrest"});
  BufferedReader reader(stream);
  EXPECT_EQ(*reader.read_line(6), "12345");
  auto line = reader.read_line(6);
  ASSERT_FALSE(line);
  EXPECT_EQ(line.error(), ReadErrc::limit_exceeded);
  // The caller may go on as it likes: with a larger limit, or by skipping.
  EXPECT_EQ(*reader.read_line(7), "123456");
  EXPECT_EQ(rest(reader), "rest");
}

TEST(BufferedReader, LimitBoundsTheMemory) {
  MemoryStream stream;
  for (int i = 0; i < 1000; ++i)
    stream.add(std::string(1000, 'x'));
  BufferedReader reader(stream, 1024);
  EXPECT_EQ(reader.read_line(10'000).error(), ReadErrc::limit_exceeded);
  EXPECT_LE(reader.held(), 2u * 10'000);
  // It stopped reading when it knew.
  EXPECT_LE(reader.unread().size(), 2u * 10'000);
}

TEST(BufferedReader, AFailedCallIsRepeatable) {
  const std::error_code timed_out = make_error_code(Errc::timed_out);
  MemoryStream stream({"ha", timed_out, "lf\nab", timed_out, "cd"});
  BufferedReader reader(stream);
  EXPECT_EQ(reader.read_line().error(), timed_out);
  EXPECT_EQ(reader.unread(), "ha");
  EXPECT_EQ(*reader.read_line(), "half");
  EXPECT_EQ(reader.peek(4).error(), timed_out);
  EXPECT_EQ(*reader.peek(4), "abcd");
  EXPECT_EQ(rest(reader), "abcd");
}

TEST(BufferedReader, PeekTakesNothing) {
  MemoryStream stream({"ab", "cd", "ef"});
  BufferedReader reader(stream);
  EXPECT_EQ(*reader.peek(1), "ab");
  EXPECT_EQ(*reader.peek(3), "abcd");
  reader.consume(1);
  EXPECT_EQ(reader.unread(), "bcd");
  EXPECT_EQ(*reader.peek(5), "bcdef");
  EXPECT_EQ(reader.peek(6).error(), ReadErrc::end_of_stream);
  EXPECT_EQ(*reader.peek(5), "bcdef");
  EXPECT_EQ(*reader.peek(0), "bcdef");
}

TEST(BufferedReader, ReadExact) {
  MemoryStream stream({"abc", "defg", "h"});
  BufferedReader reader(stream, 4);
  std::string five(5, '\0');
  ASSERT_TRUE(reader.read_exact(into(five)));
  EXPECT_EQ(five, "abcde");
  std::size_t count = 99;
  auto short_read = reader.read_exact(into(five), {}, &count);
  EXPECT_EQ(short_read.error(), ReadErrc::end_of_stream);
  EXPECT_EQ(count, 3u);
  EXPECT_EQ(five.substr(0, 3), "fgh");
  std::string none;
  EXPECT_TRUE(reader.read_exact(into(none), {}, &count));
  EXPECT_EQ(count, 0u);
}

TEST(BufferedReader, LargeReadsBypassTheBuffer) {
  MemoryStream stream({"line\nbulk", std::string(100'000, 'b')});
  BufferedReader reader(stream, 1024);
  EXPECT_EQ(*reader.read_line(), "line");
  std::string big(200'000, '\0');
  EXPECT_EQ(*reader.read_some(into(big)), 4u);  // what is unread comes first
  EXPECT_EQ(*reader.read_some(into(big)), 100'000u);
  EXPECT_EQ(stream.largest_read, big.size());
  EXPECT_EQ(reader.held(), 0u);
}

TEST(BufferedReader, HoldsNoMemoryWhileItWaits) {
  MemoryStream stream({"one\n", "two\n", "12345", "x"});
  BufferedReader reader(stream);
  std::vector<std::size_t> held;
  stream.on_wait = [&] { held.push_back(reader.held()); };
  EXPECT_EQ(reader.held(), 0u);
  EXPECT_EQ(*reader.read_line(), "one");
  EXPECT_EQ(*reader.read_line(), "two");
  std::string five(5, '\0');
  ASSERT_TRUE(reader.read_exact(into(five)));
  EXPECT_EQ(reader.held(), 0u);  // drained by a copy: nothing refers to it any more
  ASSERT_TRUE(reader.wait_readable());
  EXPECT_EQ(rest(reader), "x");
  ASSERT_GE(held.size(), 5u);
  for (const std::size_t bytes_held : held)
    EXPECT_EQ(bytes_held, 0u);
}

TEST(BufferedReader, WaitReadableLooksAtUnreadBytesFirst) {
  MemoryStream stream({"one\nmore"});
  BufferedReader reader(stream);
  EXPECT_EQ(*reader.read_line(), "one");
  const int waits = stream.waits;
  ASSERT_TRUE(reader.wait_readable());
  EXPECT_EQ(stream.waits, waits);
  EXPECT_EQ(reader.unread(), "more");
}

TEST(BufferedReader, HandsItsBytesOver) {
  MemoryStream stream({"STARTTLS\r\n\x16\x03\x01", "next"});
  BufferedReader reader(stream);
  EXPECT_EQ(*reader.read_line(), "STARTTLS");
  EXPECT_EQ(reader.take_unread(), "\x16\x03\x01");
  EXPECT_EQ(reader.held(), 0u);
  EXPECT_TRUE(reader.unread().empty());
  // The stream itself goes on where the bytes end.
  std::string next(4, '\0');
  EXPECT_EQ(*reader.stream().read_some(into(next)), 4u);
  EXPECT_EQ(next, "next");
}

TEST(BufferedReader, ErrorsOfTheStreamComeThrough) {
  MemoryStream stream({errno_code(ECONNRESET)});
  BufferedReader reader(stream);
  auto line = reader.read_line();
  EXPECT_EQ(line.error(), std::errc::connection_reset);
  EXPECT_EQ(reader.held(), 0u);
  std::string none;
  EXPECT_EQ(*reader.read_some(into(none)), 0u);
}

TEST(BufferedReader, R02BytesNowAndThenDoNotExtendADeadline) {
  const auto drip = [] {
    MemoryStream stream;
    for (int i = 0; i < 100; ++i)
      stream.add("x");
    return stream;
  };
  const std::error_code timed_out = make_error_code(Errc::timed_out);
  // A deadline that has passed allows one attempt, not one for each byte.
  auto lines = drip();
  BufferedReader by_line(lines);
  EXPECT_EQ(by_line.read_line(1000, Deadline::now()).error(), timed_out);
  EXPECT_EQ(by_line.unread(), "x");
  auto pieces = drip();
  BufferedReader by_size(pieces);
  std::string ten(10, '\0');
  std::size_t count = 0;
  EXPECT_EQ(by_size.read_exact(into(ten), Deadline::now(), &count).error(), timed_out);
  EXPECT_EQ(count, 1u);
  EXPECT_EQ(by_size.peek(10, Deadline::now()).error(), timed_out);
  EXPECT_EQ(by_size.unread(), "x");
}

// Any mix of calls over any arrival of the bytes gives the same bytes in the same order.
TEST(BufferedReader, RandomCallsLoseNothing) {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto upto = [&](std::size_t n) { return random() % (n + 1); };
    std::string sent;
    MemoryStream stream;
    for (std::size_t i = 0; i < 60; ++i) {
      std::string piece(1 + upto(40), '\0');
      for (char& c : piece)
        c = static_cast<char>(upto(9) == 0 ? '\n' : 'a' + upto(25));
      sent += piece;
      stream.add(piece);
    }
    BufferedReader reader(stream, 1 + upto(50));
    std::string got;
    while (got.size() < sent.size()) {
      switch (upto(4)) {
        case 0: {
          std::string buffer(1 + upto(60), '\0');
          auto count = reader.read_some(into(buffer));
          ASSERT_TRUE(count);
          got.append(buffer, 0, *count);
          break;
        }
        case 1: {
          std::string buffer(1 + upto(60), '\0');
          std::size_t count = 0;
          static_cast<void>(reader.read_exact(into(buffer), {}, &count));
          got.append(buffer, 0, count);
          break;
        }
        case 2:
          if (auto line = reader.read_until("\n", 1 + upto(80))) got += *line;
          break;
        case 3:
          if (auto seen = reader.peek(upto(80))) {
            const std::size_t taken = upto(seen->size());
            got += seen->substr(0, taken);
            reader.consume(taken);
          }
          break;
        default:
          got += reader.take_unread();
      }
    }
    EXPECT_EQ(got, sent);
  }
}

// Two connected streams.
struct Pair {
  Pair() {
    auto listener = TcpListener::listen(Address::loopback_ipv4());
    auto connecting = spawn([&] { return TcpStream::connect(*listener->local_address()); });
    here = std::move(*listener->accept());
    there = std::move(*connecting.join());
    listener->close();
  }
  TcpStream here, there;
};

FIBER_TEST(BufferedReader, WaitsOnASocketWithoutMemory) {
  Pair pair;
  BufferedReader reader(pair.here);
  // On this hub, because held() is looked at meanwhile.
  auto line =
      spawn([&] { return std::string(*reader.read_line()); }, {.hub = Hub::current()->index()});
  test::until_parked(line.handle(), WaitReason::io_read);
  EXPECT_EQ(reader.held(), 0u);
  ASSERT_TRUE(pair.there.write_all(bytes("one\ntwo\nthr")));
  EXPECT_EQ(*line.join(), "one");
  EXPECT_EQ(*reader.read_line(), "two");
  EXPECT_EQ(reader.read_line(100, Deadline::after(std::chrono::milliseconds(1))).error(),
            Errc::timed_out);
  EXPECT_EQ(reader.unread(), "thr");
  ASSERT_TRUE(pair.there.write_all(bytes("ee\nrest")));
  EXPECT_EQ(*reader.read_line(), "three");
  pair.there.close();
  EXPECT_EQ(rest(reader), "rest");
}

FIBER_TEST(BufferedReader, ACancelTakesNothing) {
  Pair pair;
  BufferedReader reader(pair.here);
  ASSERT_TRUE(pair.there.write_all(bytes("half")));
  auto line = spawn([&] { return reader.read_line().error(); }, {.hub = Hub::current()->index()});
  test::until_parked(line.handle(), WaitReason::io_read);
  line.cancel();
  EXPECT_EQ(*line.join(), Errc::cancelled);
  EXPECT_EQ(reader.unread(), "half");
  ASSERT_TRUE(pair.there.write_all(bytes(" and half\n")));
  EXPECT_EQ(*reader.read_line(), "half and half");
}

FIBER_TEST(BufferedReader, CarriesBulkThroughASocket) {
  Pair pair;
  constexpr int kLines = 20'000;
  auto writer = spawn([&] {
    for (int i = 0; i < kLines; ++i)
      if (!pair.there.write_all(
              bytes(std::to_string(i) + std::string(static_cast<std::size_t>(i % 97), '.') + "\n")))
        return;
    pair.there.close();
  });
  BufferedReader reader(pair.here, 512);
  for (int i = 0; i < kLines; ++i) {
    const auto line = reader.read_line();
    ASSERT_TRUE(line) << line.error().message();
    ASSERT_EQ(*line, std::to_string(i) + std::string(static_cast<std::size_t>(i % 97), '.'));
  }
  EXPECT_EQ(reader.read_line().error(), ReadErrc::end_of_stream);
  EXPECT_TRUE(writer.join());
}

}  // namespace
}  // namespace runloom::net
