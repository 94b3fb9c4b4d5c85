// Sends back each datagram that comes.
//
//     build/release/examples/example_udp_echo --port 7000
//     nc -u 127.0.0.1 7000
//
// One fiber serves all clients: it takes what has come in one system call and answers in another.
#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "datagrams.hpp"

using namespace runloom;

static Result<void> echo(const net::UdpEndpoint& endpoint) {
  constexpr std::size_t kMost = 16;      // datagrams at once
  constexpr std::size_t kSize = 65'536;  // no datagram is larger
  std::vector<std::byte> memory(kMost * kSize);
  std::array<net::Datagram, kMost> batch;
  for (std::size_t i = 0; i < kMost; ++i)
    batch[i].buffer = std::span(memory).subspan(i * kSize, kSize);
  for (;;) {
    RUNLOOM_TRY(const std::size_t count, endpoint.recv_many(batch));
    // What can't be sent is dropped, as a network may do it: the next client has not to suffer.
    for (std::size_t sent = 0; sent < count;) {
      const auto some =
          endpoint.send_many(std::span<const net::Datagram>(batch).subspan(sent, count - sent));
      if (!some && (some.error() == Errc::cancelled || some.error() == Errc::closed))
        return fail(some.error());
      sent += some.value_or(1);
    }
  }
}

int main(int argc, char** argv) {
  const auto arguments = example::parse(argc, argv, "example_udp_echo [--port N] [--hubs N]");
  return example::serve_datagrams(arguments, echo);
}
