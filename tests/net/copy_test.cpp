#include "runloom/net/copy.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "runloom/sched/scheduler.hpp"
#include "support/memory_stream.hpp"
#include "support/net_test.hpp"

namespace runloom::net {
namespace {

using test::MemoryStream;
using test::TcpPair;
using namespace std::chrono_literals;

// Small buffers, so that a write soon has to wait.
void shrink(const TcpStream& stream) {
  const int size = 16 * 1024;
  ASSERT_EQ(::setsockopt(stream.fd().number(), SOL_SOCKET, SO_SNDBUF, &size, sizeof size), 0);
  ASSERT_EQ(::setsockopt(stream.fd().number(), SOL_SOCKET, SO_RCVBUF, &size, sizeof size), 0);
}

TEST(Copy, TakesAllUntilTheEndAndDoesNotPassItOn) {
  MemoryStream from({"one ", "two ", "three"});
  MemoryStream to;
  EXPECT_EQ(copy(from, to).value(), 13u);
  EXPECT_EQ(to.written, "one two three");
  EXPECT_FALSE(to.write_ended);
}

TEST(Copy, SaysWhatFailedAndHowMuchWasCopied) {
  MemoryStream from({"some", errno_code(EIO)});
  MemoryStream to;
  std::uint64_t copied = 0;
  EXPECT_EQ(copy(from, to, {}, &copied).error(), errno_code(EIO));
  EXPECT_EQ(copied, 4u);
  EXPECT_EQ(to.written, "some");
}

STREAM_TEST(Copy, EchoesEachConnectionItsOwnBytes) {
  // More than the kernel takes, from several at once: what one copy holds while it waits to write
  // must not be overwritten by the others.
  static constexpr std::size_t kSize = 300'000;
  constexpr int kConnections = 4;
  std::vector<JoinHandle<void>> clients;
  for (int i = 0; i < kConnections; ++i)
    clients.push_back(spawn([i] {
      TcpPair pair;
      shrink(pair.client);
      shrink(pair.server);
      auto echo = spawn([&] {
        auto copied = copy(pair.server, pair.server);
        EXPECT_TRUE(pair.server.shutdown_write());
        return copied;
      });
      const std::string sent = test::pattern(kSize, static_cast<std::size_t>(i) * 1009);
      auto writer = spawn([&] {
        EXPECT_TRUE(pair.client.write_all(bytes(sent)));
        EXPECT_TRUE(pair.client.shutdown_write());
      });
      auto got = test::read_to_end(pair.client);
      EXPECT_TRUE(got && *got == sent);
      EXPECT_TRUE(writer.join());
      EXPECT_EQ(echo.join().value(), kSize);
    }));
  for (auto& client : clients)
    EXPECT_TRUE(client.join());
}

// A copy into a stream on which somebody else's write waits queues behind it.
NET_TEST(Copy, WaitsForAWriterBeforeIt) {
  TcpPair in, out;
  shrink(out.client);
  shrink(out.server);
  const std::string large = test::pattern(500'000);
  auto writer = spawn([&] { return out.client.write_all(bytes(large)); });
  test::until_parked(writer.handle(), WaitReason::io_write);
  auto copier = spawn([&] {
    auto copied = copy(in.server, out.client);
    EXPECT_TRUE(out.client.shutdown_write());
    return copied;
  });
  ASSERT_TRUE(in.client.write_all(bytes("after")));
  ASSERT_TRUE(in.client.shutdown_write());
  EXPECT_EQ(test::read_to_end(out.server).value(), large + "after");
  EXPECT_TRUE(writer.join());
  EXPECT_EQ(copier.join().value(), 5u);
}

STREAM_TEST(Copy, TimesOut) {
  TcpPair pair;
  ASSERT_TRUE(pair.client.write_all(bytes("x")));
  std::uint64_t copied = 0;
  EXPECT_EQ(copy(pair.server, pair.server, {.deadline = Deadline::after(5ms)}, &copied).error(),
            Errc::timed_out);
  EXPECT_EQ(copied, 1u);
  const std::int64_t start = monotonic_ns();
  EXPECT_EQ(copy(pair.server, pair.server, {.idle = 5ms}).error(), Errc::timed_out);
  EXPECT_GE(monotonic_ns() - start, 5'000'000);
}

STREAM_TEST(Copy, IsACancelPoint) {
  TcpPair pair;
  auto copier = spawn([&] { return copy(pair.server, pair.server); });
  this_fiber::yield();
  copier.cancel();
  EXPECT_EQ(copier.join().error(), Errc::cancelled);
}

NET_TEST(Copy, EndsWhenTheReceiverIsGone) {
  TcpPair in, out;
  out.server.close();
  auto copier = spawn([&] { return copy(in.server, out.client); });
  while (!copier.done()) {
    ASSERT_TRUE(in.client.write_all(bytes("x")));
    this_fiber::yield();
  }
  const std::error_code error = copier.join().error();
  EXPECT_TRUE(error == errno_code(EPIPE) || error == errno_code(ECONNRESET)) << error.message();
}

}  // namespace
}  // namespace runloom::net
