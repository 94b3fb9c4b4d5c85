// Serves the files of a directory over HTTPS.
//
//     openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost
//       -addext subjectAltName=DNS:localhost -keyout key.pem -out cert.pem       (in one line)
//     build/release/examples/example_https_static --port 8443 cert.pem key.pem .
//     curl -i --cacert cert.pem https://localhost:8443/README.md
//
// It is the server of http_static with TLS put around each connection before the handler sees it.
// What it serves, and how, stands in http_files.hpp. On SIGTERM the answers that are under way are
// finished, and tell their clients that they are the last.
#include "example.hpp"
#include "http_files.hpp"
#include "runloom/tls/accept.hpp"
#include "runloom/tls/context.hpp"

using namespace runloom;

int main(int argc, char** argv) {
  const char* usage = "example_https_static [--port N] [--hubs N] CERTIFICATE KEY [DIRECTORY]";
  const auto arguments = example::parse(argc, argv, usage);
  if (arguments.rest.size() < 2 || arguments.rest.size() > 3) {
    std::fprintf(stderr, "usage: %s\n", usage);
    return 2;
  }
  // Outside of the scheduler this blocks the thread, which has nothing else to do yet.
  const std::string directory = arguments.rest.size() < 3 ? "." : arguments.rest[2];
  const auto root = net::File::open(directory, O_PATH | O_DIRECTORY);
  if (!root) {
    std::fprintf(stderr, "%s: %s\n", directory.c_str(), root.error().message().c_str());
    return 2;
  }
  tls::ContextOptions options;
  options.identities.resize(1);
  options.identities[0].certificate_file = arguments.rest[0];
  options.identities[0].key_file = arguments.rest[1];
  options.alpn = {"http/1.1"};
  std::string problem;
  const auto context = tls::Context::server(options, &problem);
  if (!context) {
    std::fprintf(stderr, "%s\n", problem.c_str());
    return 1;
  }
  net::ServerOptions server_options = http::server_options();
  server_options.wrap = tls::server_wrap(*context);
  net::Server server([&](net::Connection& client) { http::Client(client, *root).serve(); },
                     server_options);
  return example::run(server, arguments);
}
