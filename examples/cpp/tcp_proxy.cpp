// Connects each client to one server and copies bytes both ways.
//
//     build/release/examples/example_tcp_proxy --port 7001 127.0.0.1:7000
//     nc 127.0.0.1 7001
//
// What a proxy has to get right falls out of the blocking style: a write that parks stops the
// reads of the same direction, so a slow receiver slows its sender down and nothing piles up
// here; and the end of one direction is passed on while the other one goes on (half-close). With
// net::copy() a connection on which nothing moves holds no buffer.
#include <chrono>
#include <cstdio>
#include <string>

#include "example.hpp"
#include "runloom/net/copy.hpp"
#include "runloom/net/tcp_stream.hpp"
#include "runloom/sched/join_set.hpp"

using namespace runloom;

// One direction, until it ends or fails.
static Result<void> pump(net::TcpStream& from, net::TcpStream& to) {
  if (auto copied = net::copy(from, to); !copied) return Unexpected{copied.error()};
  return to.shutdown_write();
}

static void serve(net::TcpStream client, const net::Address& target) {
  auto server = net::TcpStream::connect(target, {}, Deadline::after(std::chrono::seconds(10)));
  if (!server) {
    std::fprintf(stderr, "%s: %s\n", target.to_string().c_str(), server.error().message().c_str());
    return;
  }
  // The set ends with both directions, and a direction that fails ends the other one.
  JoinSet<> directions;
  if (!directions.spawn([&] { return pump(client, *server); })) return;
  if (!directions.spawn([&] { return pump(*server, client); })) return;
  static_cast<void>(directions.wait());
}

int main(int argc, char** argv) {
  const char* usage = "example_tcp_proxy [--port N] [--hubs N] TARGET:PORT";
  const auto arguments = example::parse(argc, argv, usage);
  std::string problem = "one target is needed";
  const auto target =
      net::Address::parse(arguments.rest.empty() ? "" : arguments.rest[0], &problem);
  if (!target || arguments.rest.size() != 1) {
    std::fprintf(stderr, "%s\nusage: %s\n", problem.c_str(), usage);
    return 2;
  }
  net::Server server([&](net::TcpStream client) { serve(std::move(client), *target); });
  return example::run(server, arguments);
}
