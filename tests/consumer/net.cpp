// Uses the network layer as an outside project does: one connection over the loopback, and an echo.
#include <array>
#include <cstddef>
#include <cstdio>
#include <runloom/net/buffered.hpp>
#include <runloom/net/tcp_listener.hpp>
#include <runloom/net/tcp_stream.hpp>
#include <runloom/sched/scheduler.hpp>
#include <span>
#include <string_view>

namespace {

using runloom::Result;
using runloom::net::Address;
using runloom::net::TcpListener;
using runloom::net::TcpStream;

Result<void> echo_once(TcpListener& listener) {
  RUNLOOM_TRY(TcpStream peer, listener.accept());
  std::array<std::byte, 16> buffer;
  RUNLOOM_TRY(const std::size_t count, peer.read_some(buffer));
  return peer.write_all(std::span(buffer).first(count));
}

Result<bool> echo_comes_back() {
  RUNLOOM_TRY(TcpListener listener, TcpListener::listen(Address::loopback_ipv4()));
  RUNLOOM_TRY(const Address address, listener.local_address());
  auto server = runloom::spawn([&listener] { return echo_once(listener); });

  constexpr std::string_view kHello = "hello";
  RUNLOOM_TRY(TcpStream client, TcpStream::connect(address));
  auto written = client.write_all(std::as_bytes(std::span(kHello)));
  if (!written) return runloom::Unexpected{written.error()};
  std::array<std::byte, 16> answer;
  RUNLOOM_TRY(const std::size_t count, client.read_some(answer));
  auto served = server.join();
  if (!served) return runloom::Unexpected{served.error()};
  return std::string_view(reinterpret_cast<const char*>(answer.data()), count) == kHello;
}

}  // namespace

int main() {
  auto same = runloom::run(echo_comes_back);
  if (!same) {
    std::fprintf(stderr, "failed: %s\n", same.error().message().c_str());
    return 1;
  }
  return *same ? 0 : 1;
}
