// runloom TCP echo: one fiber a connection, code that reads like blocking code. One hub; the
// environment (RUNLOOM_SPIN_US, RUNLOOM_NETPOLL) chooses the rest.
//
// Connections share a warm buffer, as the raw server's do: net::copy() takes one only while there
// is something to move. With `own` each has one on its stack.
//
// Usage: echo_runloom PORT [own]
#include <sys/resource.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "runloom/net/copy.hpp"
#include "runloom/net/tcp_listener.hpp"
#include "runloom/net/tcp_stream.hpp"
#include "runloom/sched/scheduler.hpp"

namespace net = runloom::net;

namespace {

constexpr std::size_t kBuffer = 16 * 1024;  // as every peer has it

void echo(net::TcpStream& stream, bool own) {
  if (!own) {
    static_cast<void>(net::copy(stream, stream));
    return;
  }
  std::array<std::byte, kBuffer> buffer;
  for (;;) {
    const auto n = stream.read_some(buffer);
    if (!n || *n == 0) return;
    if (!stream.write_all(std::span(buffer).first(*n))) return;
  }
}

runloom::Result<void> serve(std::uint16_t port, bool own) {
  RUNLOOM_TRY(auto listener,
              net::TcpListener::listen(net::Address::loopback_ipv4(port), {.backlog = 4096}));
  for (;;) {
    RUNLOOM_TRY(auto stream, listener.accept_retrying());
    RUNLOOM_TRY([[maybe_unused]] auto fiber,
                runloom::go([stream = std::move(stream), own]() mutable { echo(stream, own); }));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool own = argc == 3 && std::strcmp(argv[2], "own") == 0;
  if (argc != 2 && !own) return 64;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);

  const auto port = static_cast<std::uint16_t>(std::atoi(argv[1]));
  const auto served = runloom::run([port, own] { return serve(port, own); });
  std::fprintf(stderr, "echo_runloom: %s\n", served.error().message().c_str());
  return 1;
}
