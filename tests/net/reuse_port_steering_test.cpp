#include "reuse_port_steering.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "runloom/net/tcp_listener.hpp"
#include "support/net_test.hpp"

namespace runloom::net {
namespace {

// Listeners of one port, in the order in which they came; and who gets a connection.
struct Port {
  explicit Port(const Address& wanted = Address::loopback_ipv4()) : at(wanted) {}
  void add(int count) {
    for (int i = 0; i < count; ++i) {
      listeners.push_back(TcpListener::listen(at, {.reuse_port = true}).value());
      at = listeners.back().local_address().value();
    }
  }
  // How many of 64 connects come to each.
  std::vector<int> spread() {
    std::vector<TcpStream> clients;
    for (int i = 0; i < 64; ++i)
      clients.push_back(TcpStream::connect(at).value());
    std::vector<int> out;
    for (TcpListener& each : listeners) {
      out.push_back(0);
      while (each.accept(Deadline::now()))
        ++out.back();
    }
    return out;
  }
  Address at;
  std::vector<TcpListener> listeners;
};

int sum(const std::vector<int>& counts, std::size_t from, std::size_t to) {
  int out = 0;
  for (std::size_t i = from; i < to; ++i)
    out += counts[i];
  return out;
}

NET_TEST(ReusePortSteering, NewConnectionsGoToTheSuccessor) {
  for (const auto& [wanted, own, other] :
       {std::tuple(Address::loopback_ipv4(), 2, 2), std::tuple(Address::loopback_ipv6(), 1, 3),
        std::tuple(Address::any_ipv4(), 2, 3)}) {
    Port port(wanted);
    port.add(own + other);
    const auto first = static_cast<std::size_t>(own);
    EXPECT_GT(sum(port.spread(), 0, first), 0);
    steer_away(port.listeners[0].fd(), port.at, first);
    EXPECT_EQ(sum(port.spread(), first, port.listeners.size()), 64);
    // Also while one after the other is closed, in either order.
    while (!port.listeners.empty() && port.listeners.size() > static_cast<std::size_t>(other)) {
      port.listeners.erase(port.listeners.begin());
      const std::size_t left = port.listeners.size() - static_cast<std::size_t>(other);
      const auto counts = port.spread();
      EXPECT_EQ(sum(counts, left, counts.size()), 64);
    }
    // And then to all of them, by hash, without anybody's doing.
    for (const int count : port.spread())
      EXPECT_GT(count, 0);
  }
}

NET_TEST(ReusePortSteering, ASuccessorWithFewerListenersChangesNothing) {
  Port port;
  port.add(3);
  steer_away(port.listeners[0].fd(), port.at, 2);
  for (const int count : port.spread())
    EXPECT_GT(count, 0);
}

NET_TEST(ReusePortSteering, CanBeTakenBack) {
  Port port;
  port.add(2);
  steer_away(port.listeners[0].fd(), port.at, 1);
  EXPECT_EQ(port.spread()[0], 0);
  stop_steering(port.listeners[1].fd());
  for (const int count : port.spread())
    EXPECT_GT(count, 0);
  stop_steering(port.listeners[1].fd());  // nothing to take back
}

}  // namespace
}  // namespace runloom::net
