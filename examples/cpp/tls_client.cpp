// Connects to a TLS server, sends what stands on the standard input and writes what comes back.
//
//     printf 'hello\n' | build/release/examples/example_tls_client localhost:7443 localhost
//     cert.pem
//
// Two fibers use the connection at the same time, one for each direction: TLS streams are full
// duplex as others are. The end of the input becomes a close_notify; the program ends with the
// server's. With a certificate and a key it shows them to a server that asks.
#include <chrono>
#include <cstdio>
#include <string>

#include "runloom/dns/dial.hpp"
#include "runloom/net/copy.hpp"
#include "runloom/net/stdio.hpp"
#include "runloom/net/tcp_stream.hpp"
#include "runloom/sched/join_set.hpp"
#include "runloom/sched/scheduler.hpp"
#include "runloom/tls/context.hpp"
#include "runloom/tls/stream.hpp"

using namespace runloom;
using namespace std::chrono_literals;

static Result<void> talk(const std::string& target, const tls::Context& context,
                         const std::string& host) {
  std::string problem;
  auto tcp = dns::dial(target, {}, Deadline::after(10s), &problem);
  if (!tcp) {
    std::fprintf(stderr, "%s\n", problem.c_str());
    return Unexpected{tcp.error()};
  }
  RUNLOOM_TRY(auto stream, tls::Stream::client(*std::move(tcp), context, {.host = host}));
  if (auto ok = stream.handshake(Deadline::after(10s)); !ok) {
    std::fprintf(stderr, "%s\n", stream.explain(ok.error()).c_str());
    return ok;
  }
  std::fprintf(stderr, "%s, %s\n", to_string(*stream.version()), stream.cipher().c_str());
  RUNLOOM_TRY(auto in, net::stdin_stream());
  RUNLOOM_TRY(auto out, net::stdout_stream());
  JoinSet<> directions;
  auto begun = directions.spawn([&]() -> Result<void> {
    if (auto sent = net::copy(in, stream); !sent) return Unexpected{sent.error()};
    return stream.shutdown_write();
  });
  if (!begun) return begun;
  const auto received = net::copy(stream, out);
  if (!received) {
    std::fprintf(stderr, "%s\n", stream.explain(received.error()).c_str());
    return Unexpected{received.error()};
  }
  return directions.wait();
}

int main(int argc, char** argv) {
  if (argc != 4 && argc != 6) {
    std::fprintf(stderr, "usage: example_tls_client HOST:PORT NAME ROOTS [CERTIFICATE KEY]\n");
    return 2;
  }
  tls::ContextOptions options;
  options.ca_file = argv[3];
  if (argc == 6) {
    options.identities.resize(1);
    options.identities[0].certificate_file = argv[4];
    options.identities[0].key_file = argv[5];
  }
  std::string problem;
  const auto context = tls::Context::client(options, &problem);
  if (!context) {
    std::fprintf(stderr, "%s\n", problem.c_str());
    return 1;
  }
  const std::string target = argv[1], host = argv[2];
  return runloom::run([&] { return talk(target, *context, host); }) ? 0 : 1;
}
