// Ends TLS in front of a server that speaks plain TCP.
//
//     python3 -m http.server 8000 --bind 127.0.0.1 &
//     build/release/examples/example_tls_proxy --port 7443 127.0.0.1:8000 cert.pem key.pem
//     curl --cacert cert.pem https://localhost:7443/
//
// It is the plain proxy in a server that wraps each connection before the handler sees it, and
// bounds the time for that: what copies bytes between streams does not ask what they are. The end
// of each direction is passed on, as a close_notify or as a FIN; a connection that was cut is cut.
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "example.hpp"
#include "runloom/net/connection.hpp"
#include "runloom/net/copy.hpp"
#include "runloom/net/proxy_protocol.hpp"
#include "runloom/net/tcp_stream.hpp"
#include "runloom/sched/join_set.hpp"
#include "runloom/tls/accept.hpp"
#include "runloom/tls/context.hpp"
#include "runloom/tls/stream.hpp"

using namespace runloom;
using namespace std::chrono_literals;

// One direction, until it ends or fails.
static Result<void> pump(net::Stream& from, net::Stream& to) {
  if (auto copied = net::copy(from, to); !copied) return Unexpected{copied.error()};
  return to.shutdown_write();
}

enum class Header { none, v1, v2 };

static std::string header_of(net::Connection& client, Header version) {
  const net::ConnectionInfo& info = client.info();
  if (version == Header::none) return {};
  if (version == Header::v1) return net::proxy_v1(info.peer, info.local);
  // What the handshake has settled. The server wraps every connection by TLS.
  const auto& secure = static_cast<const tls::Stream&>(client.below());
  const std::string alpn = secure.alpn();
  const std::string name = secure.server_name();
  std::vector<net::ProxyTlv> tlvs;
  if (!alpn.empty()) tlvs.push_back({.type = 0x01, .value = alpn});
  if (!name.empty()) tlvs.push_back({.type = 0x02, .value = name});
  return net::proxy_v2(info.peer, info.local, tlvs);
}

static Result<void> serve(net::Connection& client, const net::Address& target, Header version) {
  RUNLOOM_TRY(auto server, net::TcpStream::connect(target, {}, Deadline::after(10s)));
  const std::string header = header_of(client, version);
  if (auto ok = server.write_all(net::bytes(header), Deadline::after(10s)); !ok) return ok;
  JoinSet<> directions;
  if (auto ok = directions.spawn([&] { return pump(client, server); }); !ok) return ok;
  if (auto ok = directions.spawn([&] { return pump(server, client); }); !ok) return ok;
  return directions.wait();
}

int main(int argc, char** argv) {
  const char* usage =
      "example_tls_proxy [--port N] [--hubs N] [--proxy | --proxy-v1] TARGET:PORT CERTIFICATE KEY "
      "[CLIENTS_ROOTS]";
  const auto arguments = example::parse(argc, argv, usage, {"--proxy", "--proxy-v1"});
  const Header header = arguments.has("--proxy")      ? Header::v2
                        : arguments.has("--proxy-v1") ? Header::v1
                                                      : Header::none;
  std::string problem = "a target, a certificate and a key are needed";
  const auto target =
      net::Address::parse(arguments.rest.empty() ? "" : arguments.rest[0], &problem);
  if (!target || arguments.rest.size() < 3 || arguments.rest.size() > 4) {
    std::fprintf(stderr, "%s\nusage: %s\n", problem.c_str(), usage);
    return 2;
  }
  tls::ContextOptions options;
  options.identities.resize(1);
  options.identities[0].certificate_file = arguments.rest[1];
  options.identities[0].key_file = arguments.rest[2];
  options.alpn = {"http/1.1"};
  options.alpn_required = false;
  if (arguments.rest.size() == 4) {
    options.client_certificates = tls::ClientCertificates::required;
    options.ca_file = arguments.rest[3];
  }
  const auto context = tls::Context::server(options, &problem);
  if (!context) {
    std::fprintf(stderr, "%s\n", problem.c_str());
    return 1;
  }
  net::ServerOptions server_options;
  server_options.wrap = tls::server_wrap(*context);
  net::Server server(
      [&](net::Connection& client) {
        if (const auto done = serve(client, *target, header); !done)
          std::fprintf(stderr, "%s\n", done.error().message().c_str());
      },
      server_options);
  return example::run(server, arguments);
}
