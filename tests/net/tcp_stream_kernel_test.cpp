// What the kernel does with TCP connections: resets, connects, options, descriptors.
#include "runloom/net/tcp_stream.hpp"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "runloom/sched/cancel.hpp"
#include "support/net_test.hpp"

namespace runloom::test {
namespace {

using namespace std::chrono_literals;
using net::bytes;
using net::TcpStream;

// ---------------------------------------------------------------- errors of the kernel

// SO_ERROR is not read behind the fiber's back: a reset never looks like the end.
NET_TEST(TcpStream, ResetBehindDataIsReadAfterItT16) {
  Listening listening;
  const int peer = plain_connect(listening.address);
  auto stream = listening.listener.accept().value();
  ASSERT_EQ(::send(peer, "12345", 5, 0), 5);
  ASSERT_TRUE(stream.wait_readable());
  reset_and_close(peer);
  ASSERT_TRUE(this_fiber::sleep_for(20ms));  // the poller has seen the error
  EXPECT_EQ(read_text(stream, 3).value(), "123");
  EXPECT_EQ(read_text(stream, 3).value(), "45");
  EXPECT_EQ(read_text(stream, 3).error(), errno_code(ECONNRESET));
}

NET_TEST(TcpStream, ResetWakesAReader) {
  Listening listening;
  const int peer = plain_connect(listening.address);
  auto stream = listening.listener.accept().value();
  auto reader = spawn([&] { return read_text(stream); });
  until_parked(reader.handle(), WaitReason::io_read);
  reset_and_close(peer);
  EXPECT_EQ(reader.join().error(), errno_code(ECONNRESET));
}

NET_TEST(TcpStream, SendsAfterThePeerHasClosedT26) {
  Listening listening;
  const int peer = plain_connect(listening.address);
  auto stream = listening.listener.accept().value();
  ::close(peer);
  EXPECT_EQ(stream.write_some(bytes("1")).value(), 1u);
  ASSERT_TRUE(stream.wait_readable());  // the reset that answers it
  EXPECT_EQ(stream.write_some(bytes("2")).error(), errno_code(EPIPE));
}

NET_TEST(TcpStream, PeerClosesWithOurDataUnreadT26) {
  Listening listening;
  const int peer = plain_connect(listening.address);
  auto stream = listening.listener.accept().value();
  ASSERT_TRUE(stream.write_all(bytes("unread")));
  int unread = 0;
  while (unread < 6)
    ASSERT_EQ(::ioctl(peer, FIONREAD, &unread), 0);
  ::close(peer);
  EXPECT_EQ(read_text(stream).error(), errno_code(ECONNRESET));
}

// Urgent data splits the stream: a read stops at the mark, and what follows is not forgotten.
NET_TEST(TcpStream, ReadsPastTheUrgentMark) {
  Listening listening;
  const int peer = plain_connect(listening.address);
  auto stream = listening.listener.accept().value();
  auto reader = spawn([&] { return read_to_end(stream); });
  until_parked(reader.handle(), WaitReason::io_read);
  ASSERT_EQ(::send(peer, "abc", 3, 0), 3);
  ASSERT_EQ(::send(peer, "!", 1, MSG_OOB), 1);
  ASSERT_EQ(::send(peer, "def", 3, 0), 3);
  ::close(peer);
  EXPECT_EQ(reader.join().value(), "abcdef");
}

// ---------------------------------------------------------------- connect

NET_TEST(TcpStream, RefusedConnectIsReportedOnceT32) {
  net::Address address;
  {
    Listening listening;
    address = listening.address;
  }
  EXPECT_EQ(TcpStream::connect(address).error(), errno_code(ECONNREFUSED));
}

// A backlog that is full drops further handshakes: a port like a black hole.
struct BlackHole {
  BlackHole() : listening({.backlog = 0}) {
    for (int i = 0; i < 2; ++i) {
      const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
      [[maybe_unused]] const int pending =
          ::connect(fd, listening.address.data(), listening.address.size());
      fillers.push_back(fd);
    }
    pollfd first{fillers[0], POLLOUT, 0};
    EXPECT_EQ(::poll(&first, 1, 5000), 1);
  }
  ~BlackHole() {
    for (const int fd : fillers)
      ::close(fd);
  }
  Listening listening;
  std::vector<int> fillers;
};

NET_TEST(TcpStream, ConnectTimesOutT30) {
  BlackHole hole;
  EXPECT_EQ(TcpStream::connect(hole.listening.address, {}, Deadline::after(50ms)).error(),
            Errc::timed_out);
}

// Whatever step a connect has come to when it is cancelled, or its fiber's scope ends, it leaves no
// descriptor: the teardown counts them.
NET_TEST(TcpStream, ConnectCancelledInEveryStepT34) {
  BlackHole hole;
  Listening good;
  for (int step = 0; step < 200; ++step) {
    const bool answers = step % 2 == 0;
    auto connecting = spawn([&] {
      CancelScope scope(step % 3 == 0 ? Deadline::after(1us) : Deadline::never());
      return TcpStream::connect(answers ? good.address : hole.listening.address);
    });
    for (int yields = step % 5; yields > 0; --yields)
      this_fiber::yield();
    connecting.cancel();
    const auto connected = connecting.join();
    if (connected) {
      EXPECT_TRUE(answers);
      EXPECT_TRUE(good.listener.accept());
    } else {
      const auto error = connected.error();
      EXPECT_TRUE(error == Errc::cancelled || error == Errc::timed_out) << error.message();
    }
  }
}

// The watch of a connect that was given up is gone before its number is used again.
NET_TEST(TcpStream, CancelledConnectLeavesNothingBehindT10) {
  BlackHole hole;
  Listening good;
  for (int i = 0; i < 20; ++i) {
    auto connecting = spawn([&] { return TcpStream::connect(hole.listening.address); });
    until_parked(connecting.handle(), WaitReason::io_connect);
    connecting.cancel();
    EXPECT_EQ(connecting.join().error(), Errc::cancelled);
    auto stream = TcpStream::connect(good.address).value();
    auto accepted = good.listener.accept().value();
    EXPECT_EQ(read_text(stream, 1, Deadline::after(1ms)).error(), Errc::timed_out);
    ASSERT_TRUE(accepted.write_all(bytes("x")));
    EXPECT_EQ(read_text(stream, 1).value(), "x");
  }
}

NET_TEST(TcpStream, ConnectToItselfIsRefused) {
  net::Address address;
  {
    Listening listening;
    address = listening.address;
  }
  const auto stream = TcpStream::connect(address, {.local = address, .reuse_address = true});
  EXPECT_EQ(stream.error(), Errc::self_connect);
  // The port is free again.
  EXPECT_TRUE(net::TcpListener::listen(address));
}

NET_TEST(TcpStream, ConnectsFromAGivenAddress) {
  Listening listening;
  const auto local = net::Address::from_ip("127.0.0.7", 0).value();
  auto client = TcpStream::connect(listening.address, {.local = local}).value();
  net::Address peer;
  auto server = listening.listener.accept_from(peer).value();
  EXPECT_EQ(peer.ip(), "127.0.0.7");
  EXPECT_EQ(peer, client.local_address().value());
  EXPECT_EQ(peer, server.peer_address().value());
  EXPECT_EQ(client.peer_address().value(), listening.address);
}

NET_TEST(TcpStream, OnlyIpAddresses) {
  EXPECT_EQ(TcpStream::connect(net::Address::from_unix_path("/none").value()).error(),
            errno_code(EAFNOSUPPORT));
  EXPECT_EQ(TcpStream::connect(net::Address()).error(), errno_code(EAFNOSUPPORT));
}

// ---------------------------------------------------------------- options and descriptors

int option(const TcpStream& stream, int level, int name) {
  int value = -1;
  socklen_t size = sizeof value;
  EXPECT_EQ(::getsockopt(stream.fd().number(), level, name, &value, &size), 0);
  return value;
}

NET_TEST(TcpStream, OptionsReachTheKernel) {
  Listening listening({.tcp = {.keep_alive = net::KeepAlive{.idle = 11s, .interval = 7s}}});
  auto client = TcpStream::connect(listening.address, {.tcp = {.no_delay = false}}).value();
  auto server = listening.listener.accept().value();
  EXPECT_EQ(option(client, IPPROTO_TCP, TCP_NODELAY), 0);
  EXPECT_EQ(option(server, IPPROTO_TCP, TCP_NODELAY), 1);  // inherited from the listener
  EXPECT_EQ(option(server, SOL_SOCKET, SO_KEEPALIVE), 1);
  EXPECT_EQ(option(server, IPPROTO_TCP, TCP_KEEPIDLE), 11);
  ASSERT_TRUE(client.set_no_delay(true));
  EXPECT_EQ(option(client, IPPROTO_TCP, TCP_NODELAY), 1);
  ASSERT_TRUE(client.set_keep_alive(net::KeepAlive{.idle = 5s, .interval = 3s, .probes = 2}));
  EXPECT_EQ(option(client, IPPROTO_TCP, TCP_KEEPIDLE), 5);
  EXPECT_EQ(option(client, IPPROTO_TCP, TCP_KEEPINTVL), 3);
  EXPECT_EQ(option(client, IPPROTO_TCP, TCP_KEEPCNT), 2);
  // More seconds than an int holds are refused, and don't come out as 5.
  for (const auto idle : {std::chrono::seconds(0x1'0000'0005), std::chrono::seconds::max()})
    EXPECT_EQ(client.set_keep_alive(net::KeepAlive{.idle = idle}).error(), errno_code(EINVAL));
  EXPECT_EQ(option(client, IPPROTO_TCP, TCP_KEEPIDLE), 5);
  ASSERT_TRUE(client.set_keep_alive({}));
  EXPECT_EQ(option(client, SOL_SOCKET, SO_KEEPALIVE), 0);
  EXPECT_EQ(client.set_linger(5s).error(), errno_code(EINVAL));
  ASSERT_TRUE(client.set_send_buffer(64 * 1024));
  EXPECT_GE(option(client, SOL_SOCKET, SO_SNDBUF), 64 * 1024);
}

NET_TEST(TcpStream, LingerZeroResets) {
  TcpPair pair;
  ASSERT_TRUE(pair.client.set_linger(0s));
  pair.client.close();
  EXPECT_EQ(read_text(pair.server).error(), errno_code(ECONNRESET));
}

NET_TEST(TcpStream, DetachGivesTheDescriptorAwayInBlockingMode) {
  TcpPair pair;
  auto reader = spawn([&] { return read_text(pair.client); });
  until_parked(reader.handle(), WaitReason::io_read);
  const int number = pair.client.fd().number();
  const int fd = pair.client.detach().value();
  EXPECT_EQ(fd, number);
  EXPECT_EQ(reader.join().error(), Errc::closed);
  EXPECT_FALSE(pair.client);
  EXPECT_EQ(::fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
  ASSERT_EQ(::send(fd, "plain", 5, 0), 5);
  EXPECT_EQ(read_text(pair.server).value(), "plain");
  // And back again: it is taken over in blocking mode and given out as such.
  auto again = TcpStream::adopt(fd).value();
  EXPECT_NE(::fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
  ASSERT_TRUE(again.write_all(bytes("x")));
  EXPECT_EQ(read_text(pair.server).value(), "x");
  EXPECT_EQ(pair.client.detach().error(), Errc::closed);
}

NET_TEST(TcpStream, AdoptTakesOnlyTcp) {
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  EXPECT_EQ(TcpStream::adopt(pair[0]).error(), errno_code(EPROTOTYPE));
  EXPECT_EQ(TcpStream::adopt(-1).error(), errno_code(EBADF));
  ::close(pair[0]);
  ::close(pair[1]);
}

NET_TEST(TcpStream, SendsAFile) {
  constexpr std::size_t kSize = 3 << 20;
  TcpPair pair;
  char name[] = "/tmp/runloom-test-XXXXXX";
  const int file = ::mkstemp(name);
  ASSERT_GE(file, 0);
  ::unlink(name);
  const std::string data = pattern(kSize);
  ASSERT_EQ(::write(file, data.data(), kSize), static_cast<ssize_t>(kSize));
  auto reader = spawn([&] { return read_to_end(pair.server); });
  EXPECT_EQ(pair.client.send_file(file, 100, kSize).value(), kSize - 100);
  pair.client.close();
  EXPECT_EQ(reader.join().value(), data.substr(100));
  ::close(file);
}

// SIGPIPE would end the process.
NET_TEST(TcpStream, BrokenPipeIsAnErrorAndNoSignal) {
  struct sigaction before;
  ASSERT_EQ(::sigaction(SIGPIPE, nullptr, &before), 0);
  ASSERT_EQ(before.sa_handler, SIG_DFL);
  char name[] = "/tmp/runloom-test-XXXXXX";
  const int file = ::mkstemp(name);
  ::unlink(name);
  ASSERT_EQ(::write(file, "data", 4), 4);
  Listening listening;
  const int peer = plain_connect(listening.address);
  auto stream = listening.listener.accept().value();
  reset_and_close(peer);
  ASSERT_TRUE(stream.wait_readable());
  EXPECT_EQ(stream.write_some(bytes("x")).error(), errno_code(ECONNRESET));
  EXPECT_EQ(stream.write_some(bytes("x")).error(), errno_code(EPIPE));
  EXPECT_EQ(stream.send_file(file, 0, 4).error(), errno_code(EPIPE));
  sigset_t pending;
  ::sigpending(&pending);
  EXPECT_FALSE(::sigismember(&pending, SIGPIPE));
  ::close(file);
}

}  // namespace
}  // namespace runloom::test
