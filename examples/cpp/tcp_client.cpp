// Connects to a host by name, sends what stands on the standard input and writes what comes back.
//
//     printf 'GET / HTTP/1.0\r\n\r\n' | build/release/examples/example_tcp_client example.org:80
//
// The addresses of the name are tried as RFC 8305 says; when none can be connected to, each is
// named with its reason. Two fibers use the connection at the same time, one for each direction.
#include <chrono>
#include <cstdio>
#include <string>

#include "runloom/dns/dial.hpp"
#include "runloom/net/copy.hpp"
#include "runloom/net/stdio.hpp"
#include "runloom/net/tcp_stream.hpp"
#include "runloom/sched/join_set.hpp"
#include "runloom/sched/scheduler.hpp"

using namespace runloom;
using namespace std::chrono_literals;

static Result<void> talk(const std::string& target) {
  std::string problem;
  auto stream = dns::dial(target, {}, Deadline::after(10s), &problem);
  if (!stream) {
    std::fprintf(stderr, "%s\n", problem.c_str());
    return Unexpected{stream.error()};
  }
  std::fprintf(stderr, "connected to %s\n", stream->peer_address().value().to_string().c_str());
  RUNLOOM_TRY(auto in, net::stdin_stream());
  RUNLOOM_TRY(auto out, net::stdout_stream());
  JoinSet<> directions;
  auto begun = directions.spawn([&]() -> Result<void> {
    if (auto sent = net::copy(in, *stream); !sent) return Unexpected{sent.error()};
    return stream->shutdown_write();
  });
  if (!begun) return begun;
  if (auto received = net::copy(*stream, out); !received) {
    std::fprintf(stderr, "%s\n", received.error().message().c_str());
    return Unexpected{received.error()};
  }
  return directions.wait();
}

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: example_tcp_client HOST:PORT\n");
    return 2;
  }
  const std::string target = argv[1];
  return runloom::run([&] { return talk(target); }) ? 0 : 1;
}
