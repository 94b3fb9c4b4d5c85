// What the examples share: the command line, and a server's life from listen to a clean end on
// SIGINT or SIGTERM.
#pragma once

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "runloom/net/address.hpp"
#include "runloom/net/server.hpp"
#include "runloom/net/signals.hpp"
#include "runloom/sched/scheduler.hpp"

namespace example {

struct Arguments {
  std::uint16_t port = 0;  // 0: any free one
  int hubs = 1;
  std::vector<std::string> flags;
  std::vector<std::string> rest;  // what is no option

  bool has(std::string_view flag) const { return std::ranges::count(flags, flag) != 0; }
};

// Reads --port N, --hubs N and the flags; says `usage` and exits with 2 when it can't.
inline Arguments parse(int argc, char** argv, const char* usage,
                       std::initializer_list<std::string_view> flags = {}) {
  const auto refuse = [&](std::string_view argument) {
    std::fprintf(stderr, "%.*s is not understood\nusage: %s\n", static_cast<int>(argument.size()),
                 argument.data(), usage);
    std::exit(2);
  };
  const auto number = [&](std::string_view text, auto& value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) refuse(text);
  };
  Arguments out;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--help") {
      std::printf("usage: %s\n", usage);
      std::exit(0);
    } else if (name == "--port" && i + 1 < argc) {
      number(argv[++i], out.port);
    } else if (name == "--hubs" && i + 1 < argc) {
      number(argv[++i], out.hubs);
      if (out.hubs < 1) refuse(argv[i]);
    } else if (std::ranges::count(flags, name) != 0) {
      out.flags.emplace_back(name);
    } else if (name.starts_with("--")) {
      refuse(name);
    } else {
      out.rest.emplace_back(name);
    }
  }
  return out;
}

// Listens on 127.0.0.1, says where, serves until a signal comes, and gives the connections that
// are open then five seconds to end, or until a second signal. Returns the exit code.
inline int run(runloom::net::Server& server, const Arguments& arguments) {
  using namespace runloom;
  const net::Signals signals({SIGINT, SIGTERM});
  Options options = Options::from_environment();
  options.hubs = arguments.hubs;

  Scheduler scheduler(std::move(options));
  const auto served = scheduler.run([&]() -> Result<void> {
    const auto address = server.listen(net::Address::loopback_ipv4(arguments.port));
    if (!address) return Unexpected{address.error()};
    std::printf("listening on %s\n", address->to_string().c_str());
    std::fflush(stdout);
    server.stop_on(signals, std::chrono::seconds(5));
    return server.serve();
  });

  if (!served) {
    std::fprintf(stderr, "%s\n", served.error().message().c_str());
    return 1;
  }
  std::printf("%s\n", net::to_string(server.stats()).c_str());
  return 0;
}

}  // namespace example
