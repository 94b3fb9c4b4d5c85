// What the tests of UDP share.
#pragma once

#include <string>
#include <vector>

#include "runloom/net/stream.hpp"
#include "runloom/net/udp_endpoint.hpp"
#include "support/net_test.hpp"

namespace runloom::test {

// An endpoint on the loopback, and its address.
struct Bound {
  explicit Bound(const net::UdpOptions& options = {},
                 const net::Address& local = net::Address::loopback_ipv4());
  net::UdpEndpoint endpoint;
  net::Address address;
};

// The loopback addresses of the families that this machine has.
std::vector<net::Address> loopbacks();

// One datagram as text, from a buffer of `most` bytes.
Result<std::string> receive(const net::UdpEndpoint& endpoint, Deadline deadline = {},
                            std::size_t most = 65'536);

// A plain kernel socket bound to the loopback, which receives nothing by itself.
int plain_udp(const net::Address& local = net::Address::loopback_ipv4());
net::Address plain_address(int fd);

// Memory for so many datagrams.
class DatagramBuffers {
 public:
  DatagramBuffers(std::size_t count, std::size_t size);
  std::span<net::Datagram> all() { return datagrams_; }
  net::Datagram& operator[](std::size_t index) { return datagrams_[index]; }
  std::string text(std::size_t index) const;

 private:
  std::string memory_;
  std::vector<net::Datagram> datagrams_;
};

std::string text_of(std::span<const std::byte> data);

}  // namespace runloom::test
