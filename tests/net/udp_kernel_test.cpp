// UdpEndpoint against what the kernel does: errors of the network, options, groups, addresses.
#include <net/if.h>
#include <netinet/ip.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <set>

#include "support/udp.hpp"

namespace runloom::test {
namespace {

using namespace std::chrono_literals;
using net::Address;
using net::bytes;
using net::UdpEndpoint;

// A port of the loopback where nobody is.
Address closed_port() {
  return Bound().address;
}

int option_of(const UdpEndpoint& endpoint, int level, int name) {
  int value = -1;
  socklen_t size = sizeof value;
  EXPECT_EQ(::getsockopt(endpoint.fd().number(), level, name, &value, &size), 0);
  return value;
}

// ---------------------------------------------------------------- rows

NET_TEST(UdpEndpoint, AnEmptyDatagramIsNoEndU02) {
  Bound server, client;
  for (const char* text : {"a", "", "b"})
    ASSERT_TRUE(client.endpoint.send_to(bytes(text), server.address));
  for (const char* text : {"a", "", "b"}) {
    std::string buffer(10, 'x');
    const auto got = server.endpoint.recv_from(writable(buffer)).value();
    EXPECT_EQ(text_of(got.data()), text);
    EXPECT_EQ(got.peer, client.address);
    EXPECT_FALSE(got.truncated());
  }
  // Of a connected one, too, and one that is awaited.
  auto peer = UdpEndpoint::connect(server.address).value();
  auto reader = spawn([&] { return receive(server.endpoint); });
  until_parked(reader.handle(), WaitReason::io_read);
  ASSERT_TRUE(peer.send(bytes("")));
  EXPECT_EQ(reader.join().value(), "");
  EXPECT_EQ(receive(server.endpoint, Deadline::after(5ms)).error(), Errc::timed_out);
}

// A socket has room again each time that what it sent is received: nobody waits for that.
NET_TEST(UdpEndpoint, AReceivedDatagramWakesNoSender) {
  if (Scheduler::current()->hubs() != 1) GTEST_SKIP() << "another hub has sleeps of its own";
  Bound server;
  const int peer = plain_udp();
  auto echo = spawn([&] {
    for (int i = 0; i < 20; ++i) {
      std::string buffer(10, 'x');
      const auto got = server.endpoint.recv_from(writable(buffer)).value();
      EXPECT_TRUE(server.endpoint.send_to(got.data(), got.peer));
    }
  });
  std::uint64_t sleeps = 0;
  for (int i = 0; i < 20; ++i) {
    until_parked(echo.handle(), WaitReason::io_read);
    ASSERT_EQ(::sendto(peer, "x", 1, 0, server.address.data(), server.address.size()), 1);
    char byte;
    yield_until([&] { return ::recv(peer, &byte, 1, MSG_DONTWAIT) == 1; });
    const std::uint64_t before = Scheduler::current()->stats().sleeps;
    ASSERT_TRUE(this_fiber::sleep_for(1ms));
    sleeps += Scheduler::current()->stats().sleeps - before;
  }
  EXPECT_TRUE(echo.join());
  EXPECT_LE(sleeps, 22u) << "one for each, and two for luck";
  ::close(peer);
}

NET_TEST(UdpEndpoint, AnUnconnectedOneHearsOfNoClosedPortU04) {
  Bound client, server;
  const Address nobody = closed_port();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(client.endpoint.send_to(bytes("anybody?"), nobody));
    EXPECT_EQ(receive(client.endpoint, Deadline::after(5ms)).error(), Errc::timed_out);
  }
  ASSERT_TRUE(server.endpoint.send_to(bytes("alive"), client.address));
  EXPECT_EQ(receive(client.endpoint).value(), "alive");
}

// ICMP's word reaches connected endpoints: the send after it, or the receive that waits.
NET_TEST(UdpEndpoint, AConnectedOneIsToldOnceOfAClosedPort) {
  for (const Address& loopback : loopbacks()) {
    const Address nobody = Bound({}, loopback).address;
    auto client = UdpEndpoint::connect(nobody).value();
    EXPECT_TRUE(client.send(bytes("1")));
    EXPECT_EQ(client.send(bytes("2")).error(), errno_code(ECONNREFUSED));
    EXPECT_TRUE(client.send(bytes("3")));
    EXPECT_EQ(receive(client).error(), errno_code(ECONNREFUSED));
    EXPECT_EQ(receive(client, Deadline::after(5ms)).error(), Errc::timed_out);
    auto reader = spawn([&] { return receive(client); });
    until_parked(reader.handle(), WaitReason::io_read);
    EXPECT_TRUE(client.send(bytes("4")));
    EXPECT_EQ(reader.join().error(), errno_code(ECONNREFUSED));
    // It is as good as before.
    auto late = UdpEndpoint::bind(nobody).value();
    EXPECT_TRUE(client.send(bytes("5")));
    EXPECT_EQ(receive(late).value(), "5");
  }
}

NET_TEST(UdpEndpoint, TheLargestGoesAndOneByteMoreFailsU06) {
  Bound server({.receive_buffer = 1 << 20}), client({.send_buffer = 1 << 20});
  const std::string most = pattern(net::kMostUdpIpv4);
  ASSERT_TRUE(client.endpoint.send_to(bytes(most), server.address));
  EXPECT_EQ(receive(server.endpoint).value(), most);
  const std::string more = pattern(net::kMostUdpIpv4 + 1);
  EXPECT_EQ(client.endpoint.send_to(bytes(more), server.address).error(), errno_code(EMSGSIZE));
  const std::array<net::OutDatagram, 3> batch{{{bytes("before"), server.address},
                                               {bytes(more), server.address},
                                               {bytes("after"), server.address}}};
  EXPECT_EQ(client.endpoint.send_many(batch).value(), 1u);
  EXPECT_EQ(client.endpoint.send_many(std::span(batch).subspan(1)).error(), errno_code(EMSGSIZE));
  EXPECT_EQ(client.endpoint.send_many(std::span(batch).subspan(2)).value(), 1u);
  EXPECT_EQ(receive(server.endpoint).value(), "before");
  EXPECT_EQ(receive(server.endpoint).value(), "after");
  EXPECT_EQ(receive(server.endpoint, Deadline::after(5ms)).error(), Errc::timed_out);
}

// No route: from the loopback's address nothing leaves the machine, whatever its routes are.
NET_TEST(UdpEndpoint, AnUnreachableNetworkFailsThatSendOnlyU08) {
  Bound server, client;
  const Address far = Address::from_ip("192.0.2.1", 9).value();
  const int plain = plain_udp();
  EXPECT_EQ(::sendto(plain, "x", 1, 0, far.data(), far.size()), -1);
  const int expected = errno;
  ::close(plain);
  EXPECT_TRUE(expected == ENETUNREACH || expected == EHOSTUNREACH || expected == EINVAL)
      << expected;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(client.endpoint.send_to(bytes("lost"), far).error(), errno_code(expected));
    ASSERT_TRUE(client.endpoint.send_to(bytes("good"), server.address));
    EXPECT_EQ(receive(server.endpoint).value(), "good");
  }
  const std::array<net::OutDatagram, 2> batch{
      {{bytes("lost"), far}, {bytes("good"), server.address}}};
  EXPECT_EQ(client.endpoint.send_many(batch).error(), errno_code(expected));
  EXPECT_EQ(client.endpoint.send_many(std::span(batch).subspan(1)).value(), 1u);
  EXPECT_EQ(receive(server.endpoint).value(), "good");
}

// ---------------------------------------------------------------- addresses

NET_TEST(UdpEndpoint, BothFamiliesAtOnce) {
  if (loopbacks().size() < 2) GTEST_SKIP() << "no IPv6 here";
  Bound both({.v6_only = false}, Address::any_ipv6());
  const std::uint16_t port = both.address.port();
  Bound ipv4, ipv6({}, Address::loopback_ipv6());
  ASSERT_TRUE(ipv4.endpoint.send_to(bytes("four"), Address::loopback_ipv4(port)));
  ASSERT_TRUE(ipv6.endpoint.send_to(bytes("six"), Address::loopback_ipv6(port)));
  std::string buffer(10, '\0');
  const auto first = both.endpoint.recv_from(writable(buffer)).value();
  EXPECT_EQ(first.peer.ip(), "::ffff:127.0.0.1");
  ASSERT_TRUE(both.endpoint.send_to(bytes("back"), first.peer));
  EXPECT_EQ(receive(ipv4.endpoint).value(), "back");
  EXPECT_EQ(both.endpoint.recv_from(writable(buffer)).value().peer, ipv6.address);

  Bound six({.v6_only = true}, Address::any_ipv6());
  auto four = UdpEndpoint::connect(Address::loopback_ipv4(six.address.port())).value();
  EXPECT_TRUE(four.send(bytes("x")));
  EXPECT_EQ(receive(four).error(), errno_code(ECONNREFUSED));
}

// A link-local address keeps its scope on the way in and out.
NET_TEST(UdpEndpoint, LinkLocalAddressesKeepTheirScope) {
  std::string own;
  struct if_nameindex* interfaces = ::if_nameindex();
  for (auto* each = interfaces; each && each->if_index != 0 && own.empty(); ++each) {
    // Whichever link-local address the interface has: the kernel picks it for a peer on that link.
    const auto probe = Address::from_ip(std::string("ff02::1%") + each->if_name, 9);
    if (!probe) continue;
    const auto endpoint = UdpEndpoint::connect(*probe);
    if (!endpoint) continue;
    const Address local = endpoint->local_address().value();
    if (local.is_link_local()) own = local.ip() + "%" + each->if_name;
  }
  ::if_freenameindex(interfaces);
  EXPECT_FALSE(UdpEndpoint::connect(Address::from_ip("fe80::1", 9).value()));  // which link?
  if (own.empty()) GTEST_SKIP() << "no interface has a link-local address";
  Bound server({}, Address::from_ip(own, 0).value()), client({}, Address::from_ip(own, 0).value());
  EXPECT_NE(server.address.scope_id(), 0u);
  ASSERT_TRUE(client.endpoint.send_to(bytes("x"), server.address));
  std::string buffer(10, '\0');
  const auto got = server.endpoint.recv_from(writable(buffer)).value();
  EXPECT_EQ(got.peer, client.address);
  ASSERT_TRUE(server.endpoint.send_to(bytes("y"), got.peer));
  EXPECT_EQ(receive(client.endpoint).value(), "y");
}

NET_TEST(UdpEndpoint, TellsTheDestination) {
  for (const Address& loopback : loopbacks()) {
    const bool ipv6 = loopback.is_ipv6();
    Bound server({.destination = true}, ipv6 ? Address::any_ipv6() : Address::any_ipv4());
    Bound client({}, loopback);
    // Another address than the one that the kernel would answer from.
    const Address target = (ipv6 ? loopback : Address::from_ip("127.0.0.5", 0).value())
                               .with_port(server.address.port());
    ASSERT_TRUE(client.endpoint.send_to(bytes("x"), target));
    std::string buffer(10, '\0');
    const auto got = server.endpoint.recv_from(writable(buffer)).value();
    EXPECT_EQ(got.destination, target.with_port(0));
    EXPECT_EQ(got.local, target.with_port(0));
    EXPECT_EQ(got.interface, ::if_nametoindex("lo"));
    ASSERT_TRUE(server.endpoint.send({.data = got.data(), .peer = got.peer, .local = got.local}));
    EXPECT_EQ(client.endpoint.recv_from(writable(buffer)).value().peer, target);
    // As a batch answers.
    ASSERT_TRUE(client.endpoint.send_to(bytes("x"), target));
    DatagramBuffers batch(2, 10);
    ASSERT_EQ(server.endpoint.recv_many(batch.all()).value(), 1u);
    EXPECT_EQ(batch[0].destination, target.with_port(0));
    ASSERT_EQ(
        server.endpoint.send_many(std::span<const net::Datagram>(batch.all()).first(1)).value(),
        1u);
    EXPECT_EQ(client.endpoint.recv_from(writable(buffer)).value().peer, target);
  }
}

// ---------------------------------------------------------------- options

NET_TEST(UdpEndpoint, SharesAPort) {
  Bound first({.reuse_port = true});
  auto second = UdpEndpoint::bind(first.address, {.reuse_port = true});
  ASSERT_TRUE(second) << second.error().message();
  EXPECT_EQ(UdpEndpoint::bind(first.address).error(), errno_code(EADDRINUSE));
  // The kernel spreads the senders: none is lost.
  std::vector<Bound> clients(40);
  for (const Bound& client : clients)
    ASSERT_TRUE(client.endpoint.send_to(bytes("x"), first.address));
  std::string buffer(10, '\0');
  std::set<std::uint16_t> ports;
  for (const UdpEndpoint* each : {&first.endpoint, &*second})
    while (const auto got = each->recv_from(writable(buffer), Deadline::now()))
      ports.insert(got->peer.port());
  EXPECT_EQ(ports.size(), clients.size());
}

NET_TEST(UdpEndpoint, SetsOptions) {
  Bound udp(
      {.reuse_address = true, .broadcast = true, .send_buffer = 50'000, .receive_buffer = 60'000});
  const UdpEndpoint& endpoint = udp.endpoint;
  EXPECT_EQ(option_of(endpoint, SOL_SOCKET, SO_REUSEADDR), 1);
  EXPECT_EQ(option_of(endpoint, SOL_SOCKET, SO_BROADCAST), 1);
  EXPECT_EQ(option_of(endpoint, SOL_SOCKET, SO_SNDBUF), 100'000);
  EXPECT_EQ(option_of(endpoint, SOL_SOCKET, SO_RCVBUF), 120'000);
  EXPECT_TRUE(endpoint.set_broadcast(false));
  EXPECT_EQ(option_of(endpoint, SOL_SOCKET, SO_BROADCAST), 0);
  EXPECT_TRUE(endpoint.set_send_buffer(30'000));
  EXPECT_EQ(option_of(endpoint, SOL_SOCKET, SO_SNDBUF), 60'000);
  EXPECT_TRUE(endpoint.set_receive_buffer(40'000));
  EXPECT_EQ(option_of(endpoint, SOL_SOCKET, SO_RCVBUF), 80'000);
  EXPECT_TRUE(endpoint.set_hop_limit(7));
  EXPECT_EQ(option_of(endpoint, IPPROTO_IP, IP_TTL), 7);
  EXPECT_EQ(endpoint.set_hop_limit(256).error(), errno_code(EINVAL));
  EXPECT_TRUE(endpoint.set_traffic_class(IPTOS_LOWDELAY));
  EXPECT_EQ(option_of(endpoint, IPPROTO_IP, IP_TOS), IPTOS_LOWDELAY);
  EXPECT_TRUE(endpoint.set_multicast_hop_limit(3));
  EXPECT_EQ(option_of(endpoint, IPPROTO_IP, IP_MULTICAST_TTL), 3);
  EXPECT_TRUE(endpoint.set_multicast_loop(false));
  EXPECT_EQ(option_of(endpoint, IPPROTO_IP, IP_MULTICAST_LOOP), 0);

  if (loopbacks().size() < 2) return;
  const auto ipv6 = UdpEndpoint::open(AF_INET6).value();
  EXPECT_TRUE(ipv6.set_hop_limit(7));
  EXPECT_EQ(option_of(ipv6, IPPROTO_IPV6, IPV6_UNICAST_HOPS), 7);
  EXPECT_TRUE(ipv6.set_traffic_class(8));
  EXPECT_EQ(option_of(ipv6, IPPROTO_IPV6, IPV6_TCLASS), 8);
  EXPECT_TRUE(ipv6.set_multicast_hop_limit(3));
  EXPECT_EQ(option_of(ipv6, IPPROTO_IPV6, IPV6_MULTICAST_HOPS), 3);
  EXPECT_TRUE(ipv6.set_multicast_loop(false));
  EXPECT_EQ(option_of(ipv6, IPPROTO_IPV6, IPV6_MULTICAST_LOOP), 0);
}

NET_TEST(UdpEndpoint, BroadcastsOnlyWhenAllowed) {
  Bound server({}, Address::any_ipv4()), client;
  const Address all = Address::from_ip("127.255.255.255", server.address.port()).value();
  EXPECT_EQ(client.endpoint.send_to(bytes("x"), all).error(), errno_code(EACCES));
  ASSERT_TRUE(client.endpoint.set_broadcast(true));
  ASSERT_TRUE(client.endpoint.send_to(bytes("hear me"), all));
  EXPECT_EQ(receive(server.endpoint).value(), "hear me");
}

// The interface that carries groups of the family: the loopback carries only IPv4's. 0: none.
unsigned group_interface(int family) {
  if (family == AF_INET) return ::if_nametoindex("lo");
  unsigned found = 0;
  struct if_nameindex* interfaces = ::if_nameindex();
  for (auto* each = interfaces; each && each->if_index != 0 && found == 0; ++each)
    if (const auto all = Address::from_ip(std::string("ff01::1%") + each->if_name, 9);
        all && UdpEndpoint::connect(*all))
      found = each->if_index;
  ::if_freenameindex(interfaces);
  return found;
}

// Nothing leaves the machine: groups of interface scope, no hops. Each endpoint has a group of its
// own, so that nobody else is a member.
NET_TEST(UdpEndpoint, JoinsAndLeavesGroups) {
  for (const Address& loopback : loopbacks()) {
    const bool ipv6 = loopback.is_ipv6();
    const unsigned interface = group_interface(loopback.family());
    if (interface == 0) continue;
    Bound member({}, ipv6 ? Address::any_ipv6() : Address::any_ipv4());
    const std::uint16_t port = member.address.port();
    const std::string own =
        ipv6 ? "ff01::42:" + std::to_string(port % 10'000) + "%" + std::to_string(interface)
             : "239.1." + std::to_string(port / 256) + "." + std::to_string(port % 256);
    const Address group = Address::from_ip(own, port).value();
    const auto sender = UdpEndpoint::open(loopback.family()).value();
    ASSERT_TRUE(sender.set_multicast_interface(interface));
    ASSERT_TRUE(sender.set_multicast_hop_limit(0));
    ASSERT_TRUE(sender.send_to(bytes("nobody"), group));

    ASSERT_TRUE(member.endpoint.join_group(group, interface));
    EXPECT_EQ(member.endpoint.join_group(group, interface).error(), errno_code(EADDRINUSE));
    ASSERT_TRUE(sender.send_to(bytes("members"), group));
    EXPECT_EQ(receive(member.endpoint).value(), "members");
    ASSERT_TRUE(member.endpoint.leave_group(group, interface));
    EXPECT_EQ(member.endpoint.leave_group(group, interface).error(), errno_code(EADDRNOTAVAIL));
    ASSERT_TRUE(sender.send_to(bytes("nobody"), group));
    ASSERT_TRUE(member.endpoint.join_group(group, interface));
    ASSERT_TRUE(sender.send_to(bytes("again"), group));
    EXPECT_EQ(receive(member.endpoint).value(), "again");
    // Neither another family's nor what is no group.
    EXPECT_EQ(member.endpoint.join_group(ipv6 ? Address::any_ipv4() : Address::any_ipv6()).error(),
              errno_code(EAFNOSUPPORT));
    EXPECT_EQ(member.endpoint.join_group(loopback, interface).error(), errno_code(EINVAL));
  }
}

// What is sent to a group is answered from an address of ours.
NET_TEST(UdpEndpoint, AnswersAGroupsDatagramFromItsOwnAddress) {
  const unsigned lo = ::if_nametoindex("lo");
  const Address group = Address::from_ip("239.1.2.4", 0).value();
  Bound member({.destination = true}, Address::any_ipv4());
  Bound sender;
  ASSERT_TRUE(member.endpoint.join_group(group, lo));
  ASSERT_TRUE(sender.endpoint.set_multicast_interface(lo));
  ASSERT_TRUE(sender.endpoint.send_to(bytes("who?"), group.with_port(member.address.port())));
  DatagramBuffers batch(1, 10);
  ASSERT_EQ(member.endpoint.recv_many(batch.all()).value(), 1u);
  EXPECT_EQ(batch[0].destination, group);
  EXPECT_NE(batch[0].local, group);
  ASSERT_EQ(member.endpoint.send_many(std::span<const net::Datagram>(batch.all())).value(), 1u);
  EXPECT_EQ(receive(sender.endpoint).value(), "who?");
}

}  // namespace
}  // namespace runloom::test
