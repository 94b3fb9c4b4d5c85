// runloom UDP echo: one fiber, code that reads like blocking code. One hub; the environment
// (RUNLOOM_SPIN_US, RUNLOOM_NETPOLL) chooses the rest.
//
// Datagrams are taken and sent back in batches, as the C loop does it; with `single` one by one.
//
// Usage: echo_udp_runloom PORT [single]
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "runloom/net/udp_endpoint.hpp"
#include "runloom/sched/scheduler.hpp"

namespace net = runloom::net;

namespace {

constexpr std::size_t kBatch = 64;  // as every peer has it
constexpr std::size_t kSize = 2048;
constexpr int kSocketBuffer = 4 << 20;

runloom::Result<void> echo(const net::UdpEndpoint& endpoint) {
  std::vector<std::byte> memory(kBatch * kSize);
  std::array<net::Datagram, kBatch> batch;
  for (std::size_t i = 0; i < kBatch; ++i)
    batch[i].buffer = std::span(memory).subspan(i * kSize, kSize);
  for (;;) {
    RUNLOOM_TRY(const std::size_t count, endpoint.recv_many(batch));
    std::span<const net::Datagram> rest(batch.data(), count);
    while (!rest.empty()) {
      RUNLOOM_TRY(const std::size_t sent, endpoint.send_many(rest));
      rest = rest.subspan(sent);
    }
  }
}

runloom::Result<void> echo_one_by_one(const net::UdpEndpoint& endpoint) {
  std::array<std::byte, kSize> buffer;
  for (;;) {
    RUNLOOM_TRY(const net::Datagram got, endpoint.recv_from(buffer));
    if (auto sent = endpoint.send_to(got.data(), got.peer); !sent) return sent;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool single = argc == 3 && std::strcmp(argv[2], "single") == 0;
  if (argc != 2 && !single) return 64;
  const auto port = static_cast<std::uint16_t>(std::atoi(argv[1]));
  const auto served = runloom::run([port, single]() -> runloom::Result<void> {
    RUNLOOM_TRY(const auto endpoint, net::UdpEndpoint::bind(net::Address::loopback_ipv4(port),
                                                            {.send_buffer = kSocketBuffer,
                                                             .receive_buffer = kSocketBuffer}));
    return single ? echo_one_by_one(endpoint) : echo(endpoint);
  });
  std::fprintf(stderr, "echo_udp_runloom: %s\n", served.error().message().c_str());
  return 1;
}
