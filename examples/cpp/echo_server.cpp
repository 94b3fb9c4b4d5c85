// Sends back what each client sends.
//
//     build/release/examples/example_echo_server --port 7000
//     nc 127.0.0.1 7000
//
// It reads like the blocking program that everybody writes first: each connection has a fiber,
// and a call that would block lets the others run.
#include <array>
#include <cstddef>
#include <span>

#include "example.hpp"
#include "runloom/net/tcp_stream.hpp"

using namespace runloom;

static void echo(net::TcpStream stream) {
  std::array<std::byte, 16 * 1024> buffer;
  for (;;) {
    const auto count = stream.read_some(buffer);
    if (!count || *count == 0) return;
    if (!stream.write_all(std::span(buffer).first(*count))) return;
  }
}

int main(int argc, char** argv) {
  const auto arguments = example::parse(argc, argv, "example_echo_server [--port N] [--hubs N]");
  net::Server server(echo);
  return example::run(server, arguments);
}
