#include "runloom/net/udp_endpoint.hpp"

#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <thread>

#include "runloom/sched/cancel.hpp"
#include "support/syscall_faults.hpp"
#include "support/udp.hpp"

namespace runloom::test {
namespace {

using namespace std::chrono_literals;
using net::Address;
using net::bytes;
using net::UdpEndpoint;

// ---------------------------------------------------------------- there and back

NET_TEST(UdpEndpoint, EchoesWithAddressesOfBothFamilies) {
  for (const Address& loopback : loopbacks()) {
    Bound server({}, loopback), client({}, loopback);
    auto echo = spawn([&]() -> Result<void> {
      std::string buffer(2000, '\0');
      for (int i = 0; i < 10; ++i) {
        RUNLOOM_TRY(const auto datagram, server.endpoint.recv_from(writable(buffer)));
        EXPECT_EQ(datagram.peer, client.address);
        if (auto ok = server.endpoint.send_to(datagram.data(), datagram.peer); !ok) return ok;
      }
      return {};
    });
    for (std::size_t i = 0; i < 10; ++i) {
      const std::string text = pattern(i * 100, i);
      ASSERT_TRUE(client.endpoint.send_to(bytes(text), server.address));
      std::string buffer(2000, '\0');
      const auto answer = client.endpoint.recv_from(writable(buffer)).value();
      EXPECT_EQ(text_of(answer.data()), text);
      EXPECT_EQ(answer.peer, server.address);
      EXPECT_EQ(answer.full_size, text.size());
      EXPECT_FALSE(answer.truncated());
      EXPECT_EQ(answer.segments(), 1u);
      EXPECT_EQ(answer.local.family(), AF_UNSPEC);
    }
    EXPECT_TRUE(echo.join());
  }
}

// The same with plain kernel sockets at the other end.
NET_TEST(UdpEndpoint, TalksToAPlainSocket) {
  Bound ours;
  const int peer = plain_udp();
  const Address peer_address = plain_address(peer);
  ASSERT_TRUE(ours.endpoint.send_to(bytes("ping"), peer_address));
  std::array<char, 10> got;
  sockaddr_storage from;
  socklen_t size = sizeof from;
  ASSERT_EQ(::recvfrom(peer, got.data(), got.size(), 0, reinterpret_cast<sockaddr*>(&from), &size),
            4);
  EXPECT_EQ(Address::from_sockaddr(reinterpret_cast<sockaddr*>(&from), size).value(), ours.address);
  ASSERT_EQ(::sendto(peer, "pong!", 5, 0, ours.address.data(), ours.address.size()), 5);
  EXPECT_EQ(receive(ours.endpoint).value(), "pong!");
  ::close(peer);
}

// Bound, connected, both and neither.
NET_TEST(UdpEndpoint, ConnectedOnesHearTheirPeerOnly) {
  Bound server, stranger;
  auto client = UdpEndpoint::connect(server.address).value();
  EXPECT_EQ(client.peer_address().value(), server.address);
  const Address address = client.local_address().value();
  ASSERT_TRUE(stranger.endpoint.send_to(bytes("no"), address));
  ASSERT_TRUE(server.endpoint.send_to(bytes("yes"), address));
  EXPECT_EQ(receive(client).value(), "yes");
  ASSERT_TRUE(client.send(bytes("hi")));
  std::string buffer(10, '\0');
  EXPECT_EQ(server.endpoint.recv_from(writable(buffer)).value().peer, address);

  ASSERT_TRUE(client.set_peer(stranger.address));
  EXPECT_EQ(client.peer_address().value(), stranger.address);
  ASSERT_TRUE(client.send(bytes("moved")));
  EXPECT_EQ(receive(stranger.endpoint).value(), "moved");
  ASSERT_TRUE(client.clear_peer());
  EXPECT_EQ(client.peer_address().error(), errno_code(ENOTCONN));
  EXPECT_EQ(client.send(bytes("who?")).error(), errno_code(EDESTADDRREQ));
  EXPECT_EQ(client.set_peer(Address()).error(), errno_code(EAFNOSUPPORT));
}

NET_TEST(UdpEndpoint, AnUnboundOneIsBoundByItsFirstSend) {
  Bound server;
  auto client = UdpEndpoint::open(AF_INET).value();
  EXPECT_EQ(client.local_address().value().port(), 0);
  ASSERT_TRUE(client.send_to(bytes("x"), server.address));
  EXPECT_NE(client.local_address().value().port(), 0);
  std::string buffer(10, '\0');
  EXPECT_EQ(server.endpoint.recv_from(writable(buffer)).value().peer.port(),
            client.local_address().value().port());
}

NET_TEST(UdpEndpoint, ConnectsFromTheGivenAddress) {
  Bound server;
  auto client = UdpEndpoint::connect(server.address, {.local = Address::loopback_ipv4()}).value();
  ASSERT_TRUE(client.send(bytes("x")));
  std::string buffer(10, '\0');
  EXPECT_EQ(server.endpoint.recv_from(writable(buffer)).value().peer,
            client.local_address().value());
}

NET_TEST(UdpEndpoint, RefusesWhatIsNoUdpAddress) {
  EXPECT_EQ(UdpEndpoint::open(AF_UNIX).error(), errno_code(EAFNOSUPPORT));
  EXPECT_EQ(UdpEndpoint::bind(Address()).error(), errno_code(EAFNOSUPPORT));
  EXPECT_EQ(UdpEndpoint::connect(Address::from_unix_abstract("x").value()).error(),
            errno_code(EAFNOSUPPORT));
  Bound taken;
  EXPECT_EQ(UdpEndpoint::bind(taken.address).error(), errno_code(EADDRINUSE));
  EXPECT_EQ(UdpEndpoint::bind(Address::from_ip("192.0.2.1", 0).value()).error(),
            errno_code(EADDRNOTAVAIL));
  // An address of the other family.
  EXPECT_EQ(taken.endpoint.send_to(bytes("x"), Address::loopback_ipv6(9)).error(),
            errno_code(EAFNOSUPPORT));
  EXPECT_EQ(
      taken.endpoint
          .send({.data = bytes("x"), .peer = taken.address, .local = Address::loopback_ipv6()})
          .error(),
      errno_code(EAFNOSUPPORT));
}

// ---------------------------------------------------------------- sizes

NET_TEST(UdpEndpoint, ShowsTruncation) {
  Bound server, client;
  std::string buffer(10, '\0');
  ASSERT_TRUE(client.endpoint.send_to(bytes(pattern(100)), server.address));
  const auto cut = server.endpoint.recv_from(writable(buffer)).value();
  EXPECT_EQ(cut.size, 10u);
  EXPECT_EQ(cut.full_size, 100u);
  EXPECT_TRUE(cut.truncated());
  EXPECT_EQ(text_of(cut.data()), pattern(10));

  ASSERT_TRUE(client.endpoint.send_to(bytes(pattern(100)), server.address));
  std::size_t full_size = 0;
  EXPECT_EQ(server.endpoint.recv(writable(buffer), {}, &full_size).value(), 10u);
  EXPECT_EQ(full_size, 100u);

  // The rest is gone, and a datagram that fits is not called cut.
  ASSERT_TRUE(client.endpoint.send_to(bytes("0123456789"), server.address));
  EXPECT_FALSE(server.endpoint.recv_from(writable(buffer)).value().truncated());
  // No memory at all still takes one.
  ASSERT_TRUE(client.endpoint.send_to(bytes("lost"), server.address));
  EXPECT_EQ(server.endpoint.recv_from({}).value().full_size, 4u);
}

// ---------------------------------------------------------------- waits and their ends

NET_TEST(UdpEndpoint, ReceiveTimesOut) {
  Bound server;
  EXPECT_EQ(receive(server.endpoint, Deadline::now()).error(), Errc::timed_out);
  const std::int64_t before = monotonic_ns();
  EXPECT_EQ(receive(server.endpoint, Deadline::after(20ms)).error(), Errc::timed_out);
  EXPECT_GE(monotonic_ns() - before, 20'000'000);
  EXPECT_EQ(server.endpoint.wait_readable(Deadline::after(1ms)).error(), Errc::timed_out);
  ASSERT_TRUE(server.endpoint.send_to(bytes("me"), server.address));
  EXPECT_TRUE(server.endpoint.wait_readable());
  EXPECT_EQ(receive(server.endpoint, Deadline::now()).value(), "me");
}

NET_TEST(UdpEndpoint, CancelAndScopeEndAReceive) {
  Bound server;
  auto reader = spawn([&] { return receive(server.endpoint); });
  until_parked(reader.handle(), WaitReason::io_read);
  reader.cancel();
  EXPECT_EQ(reader.join().error(), Errc::cancelled);
  CancelScope scope(Deadline::after(5ms));
  EXPECT_EQ(receive(server.endpoint).error(), Errc::timed_out);
}

NET_TEST(UdpEndpoint, CloseEndsAReceiveAndFreesThePort) {
  for (int round = 0; round < 20; ++round) {
    Bound server;
    auto reader = spawn([&] { return receive(server.endpoint); });
    until_parked(reader.handle(), WaitReason::io_read);
    if (round % 2 == 0) {
      server.endpoint.close_wait();
      EXPECT_TRUE(UdpEndpoint::bind(server.address));
    } else {
      server.endpoint.close();
    }
    EXPECT_EQ(reader.join().error(), Errc::closed);
    EXPECT_FALSE(server.endpoint);
    EXPECT_EQ(receive(server.endpoint).error(), Errc::closed);
    EXPECT_EQ(server.endpoint.send_to(bytes("x"), server.address).error(), Errc::closed);
    EXPECT_EQ(server.endpoint.local_address().error(), Errc::closed);
    EXPECT_EQ(server.endpoint.set_broadcast(true).error(), Errc::closed);
    EXPECT_EQ(server.endpoint.clear_peer().error(), Errc::closed);
    EXPECT_EQ(server.endpoint.set_multicast_interface(0).error(), Errc::closed);
    server.endpoint.close();
  }
}

// First come, first served.
NET_TEST(UdpEndpoint, ManyReadersAreServedInOrder) {
  Bound server, client;
  std::vector<JoinHandle<Result<std::string>>> readers;
  for (int i = 0; i < 5; ++i) {
    readers.push_back(spawn([&] { return receive(server.endpoint); }));
    until_parked(readers.back().handle(), WaitReason::io_read);
  }
  for (int i = 0; i < 5; ++i)
    ASSERT_TRUE(client.endpoint.send_to(bytes(std::to_string(i)), server.address));
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(readers[static_cast<std::size_t>(i)].join().value(), std::to_string(i));
}

NET_TEST(UdpEndpoint, OthersRunWhileADatagramIsAwaited) {
  Bound server;
  auto reader = spawn([&] { return receive(server.endpoint); });
  until_parked(reader.handle(), WaitReason::io_read);
  // On the same endpoint a sender is not in the reader's way.
  ASSERT_TRUE(server.endpoint.send_to(bytes("to myself"), server.address));
  EXPECT_EQ(reader.join().value(), "to myself");
}

NET_TEST(UdpEndpoint, AnOsThreadMayUseIt) {
  Bound server, client;
  std::thread thread([&] {
    std::string buffer(100, '\0');
    const auto got = server.endpoint.recv_from(writable(buffer));
    EXPECT_TRUE(got);
    if (got) {
      EXPECT_TRUE(server.endpoint.send_to(got->data(), got->peer));
    }
    EXPECT_EQ(receive(server.endpoint, Deadline::after(1ms)).error(), Errc::timed_out);
  });
  ASSERT_TRUE(client.endpoint.send_to(bytes("thread"), server.address));
  EXPECT_EQ(receive(client.endpoint).value(), "thread");
  thread.join();
}

// ---------------------------------------------------------------- backpressure

// The loopback takes datagrams off the send buffer at once, so that only a fault makes it full: a
// send that finds it so waits for room, and a deadline, a cancel or a close ends that.
NET_TEST(UdpEndpoint, ASendWaitsWhileTheBufferIsFull) {
  Bound server;
  {
    Bound client;
    Fault full(Call::sendmsg, EAGAIN);
    ASSERT_TRUE(client.endpoint.send_to(bytes("later"), server.address));
    EXPECT_EQ(full.failed(), 1);
    EXPECT_EQ(receive(server.endpoint).value(), "later");
  }
  // From now on there is no event that would end the wait.
  constexpr int kForEver = 1 << 20;
  for (const char* end : {"deadline", "cancel", "close"}) {
    Bound client;
    const std::string ended_by = end;
    Fault full(Call::sendmsg, EAGAIN, 1, kForEver);
    auto sender = spawn([&] {
      const auto deadline = ended_by == "deadline" ? Deadline::after(20ms) : Deadline::never();
      return client.endpoint.send_to(bytes("x"), server.address, deadline);
    });
    if (ended_by != "deadline") until_parked(sender.handle(), WaitReason::io_write);
    if (ended_by == "cancel") sender.cancel();
    if (ended_by == "close") client.endpoint.close();
    EXPECT_EQ(sender.join().error(), ended_by == "deadline" ? Errc::timed_out
                                     : ended_by == "cancel" ? Errc::cancelled
                                                            : Errc::closed);
  }
}

// ---------------------------------------------------------------- taking over, giving away

NET_TEST(UdpEndpoint, AdoptsAndDetaches) {
  const int fd = plain_udp();
  auto endpoint = UdpEndpoint::adopt(fd).value();
  const Address address = endpoint.local_address().value();
  auto reader = spawn([&] { return receive(endpoint); });
  until_parked(reader.handle(), WaitReason::io_read);
  EXPECT_EQ(endpoint.detach().value(), fd);
  EXPECT_EQ(reader.join().error(), Errc::closed);
  EXPECT_FALSE(endpoint);
  EXPECT_EQ(::fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
  EXPECT_EQ(plain_address(fd), address);
  ::close(fd);

  const int tcp = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(UdpEndpoint::adopt(tcp).error(), errno_code(EPROTOTYPE));
  ::close(tcp);
  EXPECT_EQ(UdpEndpoint::adopt(-1).error(), errno_code(EBADF));
}

// What its former owner had set holds here, too.
NET_TEST(UdpEndpoint, AdoptsWithItsOptions) {
  const int fd = plain_udp();
  const int on = 1;
  ASSERT_EQ(::setsockopt(fd, IPPROTO_IP, IP_PKTINFO, &on, sizeof on), 0);
  auto endpoint = UdpEndpoint::adopt(fd).value();
  ASSERT_TRUE(endpoint.send_to(bytes("x"), endpoint.local_address().value()));
  std::string buffer(10, '\0');
  EXPECT_EQ(endpoint.recv_from(writable(buffer)).value().destination, Address::loopback_ipv4());
}

}  // namespace
}  // namespace runloom::test
