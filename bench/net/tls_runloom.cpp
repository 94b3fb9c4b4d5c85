// A TLS echo server on runloom, one hub.
//
//     tls_runloom PORT CERTIFICATE KEY
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "runloom/net/address.hpp"
#include "runloom/net/server.hpp"
#include "runloom/net/tcp_stream.hpp"
#include "runloom/sched/scheduler.hpp"
#include "runloom/tls/context.hpp"
#include "runloom/tls/stream.hpp"

using namespace runloom;

namespace {

constexpr std::size_t kBuffer = 65536;

// Memory is held only while there is something to echo.
Result<void> echo(net::TcpStream tcp, const tls::Context& context) {
  static_cast<void>(tcp.set_no_delay(true));
  RUNLOOM_TRY(tls::Stream stream, tls::Stream::server(std::move(tcp), context));
  for (;;) {
    if (auto ready = stream.wait_readable(); !ready) return ready;
    const auto buffer = std::make_unique_for_overwrite<std::byte[]>(kBuffer);
    RUNLOOM_TRY(const std::size_t count, stream.read_some({buffer.get(), kBuffer}));
    if (count == 0) return stream.shutdown_write();
    if (auto sent = stream.write_all({buffer.get(), count}); !sent) return sent;
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  tls::ContextOptions options;
  options.identities.resize(1);
  options.identities[0].certificate_file = argv[2];
  options.identities[0].key_file = argv[3];
  std::string problem;
  const auto context = tls::Context::server(options, &problem);
  if (!context) {
    std::fprintf(stderr, "%s\n", problem.c_str());
    return 1;
  }
  const auto port = static_cast<std::uint16_t>(std::atoi(argv[1]));
  const auto done = run([&]() -> Result<void> {
    net::Server server(
        [&](net::TcpStream tcp) { static_cast<void>(echo(std::move(tcp), *context)); });
    RUNLOOM_TRY(const auto address, server.listen(net::Address::loopback_ipv4(port)));
    static_cast<void>(address);
    return server.serve();
  });
  if (!done) std::fprintf(stderr, "%s\n", done.error().message().c_str());
  return done ? 0 : 1;
}
