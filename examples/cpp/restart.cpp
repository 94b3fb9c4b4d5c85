// A server that is replaced while it runs, and no client notices.
//
//     build/release/examples/example_restart --port 7000 /tmp/restart.sock
//     nc 127.0.0.1 7000
//     build/release/examples/example_restart /tmp/restart.sock        # again: the new version
//
// Each process asks at the control socket for a predecessor. The first one finds none and listens.
// Any later one is given the listening sockets, accepts from them, and says so; the predecessor
// then stops accepting, serves the clients it has until they leave, and ends. The sockets exist
// all the time, so whoever connects meanwhile is served by the one or the other. A new version that
// fails before it is ready has changed nothing.
//
// Under systemd (Type=notify, NotifyAccess=all) the successor tells the manager that it is the
// service now.
#include <cstdio>
#include <string>

#include <unistd.h>

#include "example.hpp"
#include "runloom/net/copy.hpp"
#include "runloom/net/handover.hpp"
#include "runloom/net/systemd_notify.hpp"

using namespace runloom;

// How long a process that was replaced serves those who don't leave.
static constexpr std::chrono::seconds kDrain{60};

static void serve_client(net::Connection& client) {
  const std::string greeting = "this is process " + std::to_string(::getpid()) + "\n";
  if (!client.write_all(net::bytes(greeting))) return;
  static_cast<void>(net::copy(client, client));
}

static Result<void> serve(net::Server& server, const net::Address& control,
                          const example::Arguments& arguments) {
  auto predecessor = net::Predecessor::ask(control, Deadline::after(std::chrono::seconds(10)));
  net::Address at;
  if (predecessor) {
    RUNLOOM_TRY(at, net::Address::parse(predecessor->listeners().at(0).name));
    if (auto given = predecessor->give_to(server); !given) return given;
  } else if (predecessor.error() == std::errc::no_such_file_or_directory ||
             predecessor.error() == std::errc::connection_refused) {
    RUNLOOM_TRY(at, server.listen(net::Address::loopback_ipv4(arguments.port)));
  } else {
    return Unexpected{predecessor.error()};
  }

  // From here on what fails is told, and the service goes on.
  auto serving = spawn([&] { return server.serve(); });
  const auto complain = [](const char* what, std::error_code error) {
    if (error && error != Errc::cancelled)
      std::fprintf(stderr, "%s: %s\n", what, error.message().c_str());
  };
  if (predecessor) {
    complain("the predecessor is gone", predecessor->ready(server).error());
    auto notify = net::SystemdNotify::from_environment();
    if (notify) complain("the service manager", notify->main_pid(::getpid()).error());
  }
  auto successors = net::UnixListener::listen(control, {.bind = {.mode = 0600}});
  if (!successors) complain("nobody can take over", successors.error());
  JoinHandle<Result<void>> handing;
  if (successors)
    handing = spawn([&] { return net::await_successor(server, *successors, kDrain); });
  std::printf("listening on %s\n", at.to_string().c_str());
  std::fflush(stdout);

  auto served = serving.join();
  handing.cancel();
  if (successors) complain("nobody can take over", handing.join().error());
  return served;
}

int main(int argc, char** argv) {
  const char* usage = "example_restart [--port N] [--hubs N] CONTROL_SOCKET";
  const auto arguments = example::parse(argc, argv, usage);
  std::string problem = "the path of the control socket is needed";
  const auto control =
      net::Address::from_unix_path(arguments.rest.empty() ? "" : arguments.rest[0], &problem);
  if (!control || arguments.rest.size() != 1) {
    std::fprintf(stderr, "%s\nusage: %s\n", problem.c_str(), usage);
    return 2;
  }
  const net::Signals signals({SIGINT, SIGTERM});
  net::Server server(serve_client, {.notify_systemd = true});
  server.stop_on(signals, std::chrono::seconds(5));
  Options options = Options::from_environment();
  options.hubs = arguments.hubs;
  Scheduler scheduler(std::move(options));
  const auto served = scheduler.run([&] { return serve(server, *control, arguments); });
  if (!served) {
    std::fprintf(stderr, "%s\n", served.error().message().c_str());
    return 1;
  }
  std::printf("%s\n", net::to_string(server.stats()).c_str());
  return 0;
}
