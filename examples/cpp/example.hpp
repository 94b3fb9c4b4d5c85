// What the examples share: the command line, and a server's life from listen to a clean end on
// SIGINT or SIGTERM.
#pragma once

#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include <sys/signalfd.h>
#include <unistd.h>

#include "runloom/net/address.hpp"
#include "runloom/net/netpoll.hpp"
#include "runloom/net/server.hpp"
#include "runloom/sched/fiber.hpp"
#include "runloom/sched/scheduler.hpp"

namespace example {

struct Arguments {
  std::uint16_t port = 0;  // 0: any free one
  int hubs = 1;
  std::vector<std::string> rest;  // what is no option
};

// Reads --port N and --hubs N; says `usage` and exits with 2 when it can't.
inline Arguments parse(int argc, char** argv, const char* usage) {
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
    } else if (name.starts_with("--")) {
      refuse(name);
    } else {
      out.rest.emplace_back(name);
    }
  }
  return out;
}

// SIGINT and SIGTERM as something that a fiber can wait for. Made before the first thread, which
// inherits that both are blocked: they must not be delivered anywhere else.
class StopSignals {
 public:
  StopSignals() {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    fd_ = ::signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
  }
  ~StopSignals() { ::close(fd_); }
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Parks until one of them comes, and takes it; false when the fiber is cancelled instead.
  bool wait() const {
    signalfd_siginfo signal;
    do {
      if (!runloom::net::wait_fd(fd_, runloom::net::kRead)) return false;
    } while (::read(fd_, &signal, sizeof signal) != sizeof signal);
    return true;
  }

 private:
  int fd_;
};

// Listens on 127.0.0.1, says where, serves until a signal comes, and gives the connections that
// are open then five seconds to end, or until a second signal. Returns the exit code.
inline int run(runloom::net::Server& server, const Arguments& arguments) {
  using namespace runloom;
  const StopSignals signals;
  Options options = Options::from_environment();
  options.hubs = arguments.hubs;

  Scheduler scheduler(std::move(options));
  const auto served = scheduler.run([&]() -> Result<void> {
    const auto address = server.listen(net::Address::loopback_ipv4(arguments.port));
    if (!address) return Unexpected{address.error()};
    std::printf("listening on %s\n", address->to_string().c_str());
    std::fflush(stdout);

    const auto stopper = spawn([&] {
      if (signals.wait()) server.begin_stop(Deadline::after(std::chrono::seconds(5)));
      if (signals.wait()) server.begin_stop(Deadline::now());
    });
    auto result = server.serve();
    stopper.cancel();
    return result;
  });

  if (!served) {
    std::fprintf(stderr, "%s\n", served.error().message().c_str());
    return 1;
  }
  std::printf("%s\n", net::to_string(server.stats()).c_str());
  return 0;
}

}  // namespace example
