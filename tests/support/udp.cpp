#include "support/udp.hpp"

#include <unistd.h>

namespace runloom::test {

Bound::Bound(const net::UdpOptions& options, const net::Address& local) {
  auto made = net::UdpEndpoint::bind(local, options);
  EXPECT_TRUE(made) << made.error().message();
  if (!made) return;
  endpoint = std::move(*made);
  address = endpoint.local_address().value();
}

std::vector<net::Address> loopbacks() {
  std::vector<net::Address> found{net::Address::loopback_ipv4()};
  if (net::UdpEndpoint::bind(net::Address::loopback_ipv6()))
    found.push_back(net::Address::loopback_ipv6());
  return found;
}

Result<std::string> receive(const net::UdpEndpoint& endpoint, Deadline deadline, std::size_t most) {
  std::string text(most, '\0');
  RUNLOOM_TRY(const std::size_t count, endpoint.recv(writable(text), deadline));
  text.resize(count);
  return text;
}

int plain_udp(const net::Address& local) {
  const int fd = ::socket(local.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0);
  EXPECT_GE(fd, 0);
  EXPECT_EQ(::bind(fd, local.data(), local.size()), 0);
  return fd;
}

net::Address plain_address(int fd) {
  net::Address address;
  socklen_t size = net::Address::kMostSize;
  EXPECT_EQ(::getsockname(fd, address.fill(), &size), 0);
  address.filled(size);
  return address;
}

DatagramBuffers::DatagramBuffers(std::size_t count, std::size_t size)
    : memory_(count * size, '\0'), datagrams_(count) {
  for (std::size_t i = 0; i < count; ++i)
    datagrams_[i].buffer = writable(memory_).subspan(i * size, size);
}

std::string DatagramBuffers::text(std::size_t index) const {
  return text_of(datagrams_[index].data());
}

std::string text_of(std::span<const std::byte> data) {
  return {reinterpret_cast<const char*>(data.data()), data.size()};
}

}  // namespace runloom::test
