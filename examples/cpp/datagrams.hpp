// What the servers of datagrams share: an endpoint's life from bind to a clean end on SIGINT or
// SIGTERM.
#pragma once

#include <cstdio>
#include <utility>

#include "example.hpp"
#include "runloom/net/udp_endpoint.hpp"

namespace example {

// Binds to 127.0.0.1, says where, and runs serve(endpoint) until it fails or a signal comes, which
// cancels it. Returns the exit code.
template <class Serve>
int serve_datagrams(const Arguments& arguments, Serve serve) {
  using namespace runloom;
  const net::Signals signals({SIGINT, SIGTERM});
  Options options = Options::from_environment();
  options.hubs = arguments.hubs;

  Scheduler scheduler(std::move(options));
  const auto served = scheduler.run([&]() -> Result<void> {
    RUNLOOM_TRY(const auto endpoint,
                net::UdpEndpoint::bind(net::Address::loopback_ipv4(arguments.port)));
    RUNLOOM_TRY(const auto address, endpoint.local_address());
    std::printf("listening on %s\n", address.to_string().c_str());
    std::fflush(stdout);

    auto serving = spawn([&] { return serve(endpoint); });
    const auto stopper = spawn([&] {
      if (signals.wait()) serving.cancel();
    });
    auto ended = serving.join();
    stopper.cancel();
    if (!ended && ended.error() == Errc::cancelled) return {};
    return ended;
  });

  if (!served) {
    std::fprintf(stderr, "%s\n", served.error().message().c_str());
    return 1;
  }
  std::printf("stopped\n");
  return 0;
}

}  // namespace example
