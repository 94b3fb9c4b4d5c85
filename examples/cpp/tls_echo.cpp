// Sends back what each client sends, over TLS.
//
//     openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost
//       -addext subjectAltName=DNS:localhost -keyout key.pem -out cert.pem       (in one line)
//     build/release/examples/example_tls_echo --port 7443 cert.pem key.pem
//     openssl s_client -connect 127.0.0.1:7443 -servername localhost -CAfile cert.pem
//
// With a third file, of roots, clients need a certificate of one of them. The code is that of the
// plain echo server; what TLS adds are the handshake, with a time for it, and a goodbye, without
// which the peer could not tell the end from a connection that was cut.
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <span>
#include <string>

#include "example.hpp"
#include "runloom/net/tcp_stream.hpp"
#include "runloom/tls/context.hpp"
#include "runloom/tls/stream.hpp"

using namespace runloom;
using namespace std::chrono_literals;

static Result<void> echo(net::TcpStream tcp, const tls::Context& context) {
  RUNLOOM_TRY(tls::Stream stream, tls::Stream::server(std::move(tcp), context));
  if (auto ok = stream.handshake(Deadline::after(10s)); !ok) return ok;
  std::array<std::byte, 16 * 1024> buffer;
  for (;;) {
    RUNLOOM_TRY(const std::size_t count, stream.read_some(buffer));
    if (count == 0) return stream.shutdown_write(Deadline::after(10s));
    if (auto ok = stream.write_all(std::span(buffer).first(count)); !ok) return ok;
  }
}

int main(int argc, char** argv) {
  const char* usage = "example_tls_echo [--port N] [--hubs N] CERTIFICATE KEY [CLIENTS_ROOTS]";
  const auto arguments = example::parse(argc, argv, usage);
  if (arguments.rest.size() < 2 || arguments.rest.size() > 3) {
    std::fprintf(stderr, "usage: %s\n", usage);
    return 2;
  }
  tls::ContextOptions options;
  options.identities.resize(1);
  options.identities[0].certificate_file = arguments.rest[0];
  options.identities[0].key_file = arguments.rest[1];
  if (arguments.rest.size() == 3) {
    options.client_certificates = tls::ClientCertificates::required;
    options.ca_file = arguments.rest[2];
  }
  std::string problem;
  const auto context = tls::Context::server(options, &problem);
  if (!context) {
    std::fprintf(stderr, "%s\n", problem.c_str());
    return 1;
  }
  net::Server server([&](net::TcpStream tcp) {
    const auto done = echo(std::move(tcp), *context);
    if (!done && done.error() != Errc::cancelled)
      std::fprintf(stderr, "%s\n", done.error().message().c_str());
  });
  return example::run(server, arguments);
}
