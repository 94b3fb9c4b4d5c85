// Serves the files of a directory over HTTP/1.1.
//
//     build/release/examples/example_http_static --port 8080 .
//     curl -i http://127.0.0.1:8080/README.md
//
// What it serves, and how, stands in http_files.hpp. With --behind-proxy its connections come from
// a proxy of this machine that tells by the PROXY protocol who the client is, such as
// example_tls_proxy --proxy; the client is told in turn, by X-Client. Nobody else is served then.
#include "example.hpp"
#include "http_files.hpp"

using namespace runloom;

int main(int argc, char** argv) {
  const char* usage = "example_http_static [--port N] [--hubs N] [--behind-proxy] [DIRECTORY]";
  const auto arguments = example::parse(argc, argv, usage, {"--behind-proxy"});
  const bool behind_proxy = arguments.has("--behind-proxy");
  const std::string directory = arguments.rest.empty() ? "." : arguments.rest[0];
  // Outside of the scheduler this blocks the thread, which has nothing else to do yet.
  const auto root = net::File::open(directory, O_PATH | O_DIRECTORY);
  if (!root) {
    std::fprintf(stderr, "%s: %s\n", directory.c_str(), root.error().message().c_str());
    return 2;
  }
  net::ServerOptions options = http::server_options();
  if (behind_proxy)
    options.proxy.trusted = {net::Network::parse("127.0.0.0/8").value(),
                             net::Network::parse("::1/128").value()};
  net::Server server(
      [&](net::Connection& client) { http::Client(client, *root, behind_proxy).serve(); }, options);
  return example::run(server, arguments);
}
