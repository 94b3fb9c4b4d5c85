// Peers that want to be trouble, and machines that have run out of something.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "runloom/net/proxy_protocol.hpp"
#include "runloom/net/server.hpp"
#include "runloom/net/signals.hpp"
#include "runloom/sched/scheduler.hpp"
#include "support/server.hpp"
#include "support/unix_test.hpp"

namespace runloom::net {
namespace {

using namespace std::chrono_literals;
using test::expect_echo;
using test::Serving;
using test::yield_until;

// As many descriptors as there are, and `more`.
class FewDescriptors {
 public:
  explicit FewDescriptors(int more) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const int lowest_free = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    ::close(lowest_free);
    rlimit few = before_;
    few.rlim_cur = static_cast<rlim_t>(lowest_free) + static_cast<rlim_t>(more);
    ::setrlimit(RLIMIT_NOFILE, &few);
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

// What can't be made whole leaves nothing behind, and can be made later.
NET_TEST(ServerHostile, R04WithoutDescriptorsNothingIsHalfMade) {
  test::SocketDir directory;
  Server server(test::echo_connection);
  // A descriptor for the probe of the limit itself may lie between others, so all counts are tried.
  for (int more = 0; more < Scheduler::current()->hubs(); ++more) {
    const auto at = test::Listening().address;  // a port that was free just now
    {
      const FewDescriptors few(more);
      EXPECT_EQ(server.listen(at).error(), std::errc::too_many_files_open) << more;
    }
    EXPECT_FALSE(TcpStream::connect(at)) << more;
  }
  {
    const FewDescriptors none(0);
    EXPECT_EQ(server.listen(directory.address("s")).error(), std::errc::too_many_files_open);
    EXPECT_THROW(Signals({SIGUSR1}), std::system_error);
  }
  EXPECT_EQ(directory.names(), std::vector<std::string>{});
  ASSERT_TRUE(server.listen(directory.address("s")));
  const auto at = server.listen(Address::loopback_ipv4()).value();
  auto serving = spawn([&] { return server.serve(); });
  auto client = TcpStream::connect(at).value();
  expect_echo(client, "x");
  client.close();
  EXPECT_TRUE(server.stop(Deadline::after(1h)));
  EXPECT_TRUE(serving.join());
}

// A peer opens and resets connections as fast as it can; another one is served all the time. How
// many of the first kind are taken between two answers of the second is counted, not timed.
NET_TEST(ServerHostile, Z04AFloodOfConnectionsCostsOthersLittle) {
  if (Scheduler::current()->hubs() != 1) GTEST_SKIP() << "counted on one hub";
  constexpr int kFlood = 3000;
  Serving server(test::echo_connection);
  auto good = server.connect();
  expect_echo(good, "before");
  std::thread flood([at = server.address()] {
    for (int i = 0; i < kFlood; ++i) {
      const int fd = test::plain_connect(at);
      if (fd >= 0) test::reset_and_close(fd);
    }
  });
  std::uint64_t before = server->stats().accepted;
  std::uint64_t most = 0;
  while (before < kFlood + 1) {
    expect_echo(good, "meanwhile");
    const std::uint64_t now = server->stats().accepted;
    most = std::max(most, now - before);
    before = now;
  }
  flood.join();
  // Some turns of 64 for each of the two directions of an echo.
  EXPECT_LE(most, 8u * 64);
  yield_until([&] { return server->stats().active == 1; });
}

// One byte a segment, and as many extensions as there is room for: each byte is looked at once by
// the parser, and once more for the checksum.
NET_TEST(ServerHostile, Z04AHeaderInOneByteSegmentsIsReadOnce) {
  std::vector<ProxyTlv> many(500, ProxyTlv{0xe0, "x"});
  const std::string header = proxy_v2(Address::parse("192.0.2.1:7").value(),
                                      Address::parse("192.0.2.2:80").value(), many, true);
  ServerOptions options;
  options.proxy.trusted.push_back(Network::parse("127.0.0.0/8").value());
  Serving server(test::echo_connection, options);
  auto client = server.connect();
  for (const char& byte : header)
    ASSERT_TRUE(client.write_all(bytes({&byte, 1})));
  expect_echo(client, "hello");
  EXPECT_EQ(server->stats().proxied, 1u);
}

// Readers of a connection that sends one byte at a time do not keep the others waiting.
NET_TEST(ServerHostile, Z04OneByteWritesCostOthersLittle) {
  Serving server(test::echo_connection);
  auto good = server.connect();
  auto bad = server.connect();
  std::atomic<bool> over{false};
  std::atomic<std::uint64_t> sent{0};
  auto writing = spawn([&] {
    while (!over && bad.write_all(bytes("x")))
      ++sent;
  });
  auto reading = spawn([&] { test::reads_end(bad); });
  for (int i = 0; i < 200; ++i)
    expect_echo(good, "hello");
  over = true;
  EXPECT_TRUE(writing.join());
  ASSERT_TRUE(bad.shutdown_write());
  EXPECT_TRUE(reading.join());
  EXPECT_GT(sent, 0u);
}

}  // namespace
}  // namespace runloom::net
