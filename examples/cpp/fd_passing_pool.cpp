// A pool of worker processes: one process accepts TCP connections and hands each, as a descriptor
// over a Unix socket, to the worker with the least to do. The workers speak to the clients
// themselves: here they answer each line with their process number in front of it.
//
//     build/release/examples/example_fd_passing_pool --port 7003 3
//     nc 127.0.0.1 7003
//
// The workers are processes, so one that crashes takes only its own connections with it. The
// acceptor notices, because its end of the Unix socket reads the end of the stream, and starts
// another one.
#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "example.hpp"
#include "runloom/net/buffered.hpp"
#include "runloom/net/tcp_listener.hpp"
#include "runloom/net/unix_stream.hpp"
#include "runloom/sched/blocking.hpp"
#include "runloom/sched/cancel.hpp"
#include "runloom/sched/join_set.hpp"

using namespace runloom;

namespace {

constexpr std::size_t kLongestLine = 1024;

// ---------------------------------------------------------------- a worker

// The channel is descriptor 3 of a worker: one byte and one connection from the acceptor, one byte
// back for each that has ended.
constexpr int kChannel = 3;

void answer(net::TcpStream& client) {
  const std::string name = std::to_string(::getpid()) + ": ";
  net::BufferedReader reader(client);
  while (const auto line = reader.read_line(kLongestLine))
    if (!client.write_all(net::bytes(name + std::string(*line) + "\n"))) return;
}

Result<void> work() {
  RUNLOOM_TRY(auto channel, net::UnixStream::adopt(kChannel));
  JoinSet<> clients;
  for (;;) {
    std::array<std::byte, 1> byte;
    RUNLOOM_TRY(auto message, channel.recv_fds(byte, 1));
    if (message.bytes == 0) break;  // the acceptor is gone; those who are served may finish
    auto spawned = clients.spawn([&channel, fds = std::move(message.fds)]() mutable {
      for (auto& fd : fds) {
        auto client = net::TcpStream::adopt(fd.number());
        if (!client) continue;
        static_cast<void>(fd.release());
        answer(*client);
      }
      static_cast<void>(channel.write_all(net::bytes("-")));
    });
    if (!spawned) return spawned;
  }
  return clients.wait();
}

// ---------------------------------------------------------------- the acceptor

struct Worker {
  pid_t pid = -1;
  net::UnixStream channel;
  int busy = 0;
  bool alive = true;
};

// A worker is this program again: a fork of a process with threads may do no more than exec.
Result<std::shared_ptr<Worker>> start_worker(const char* program) {
  RUNLOOM_TRY(auto pair, net::UnixStream::pair());
  RUNLOOM_TRY(const int theirs, pair.second.detach());  // a blocking descriptor, closed by exec
  const pid_t pid = ::fork();
  if (pid == 0) {
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    // dup2 to itself would leave close-on-exec set.
    const int other = theirs == kChannel ? ::dup(theirs) : theirs;
    ::dup2(other, kChannel);
    ::execl(program, program, "--worker", nullptr);
    ::_exit(127);
  }
  const int err = errno;
  ::close(theirs);
  if (pid < 0) return fail_errno(err);
  auto worker = std::make_shared<Worker>();
  worker->pid = pid;
  worker->channel = std::move(pair.first);
  return worker;
}

class Pool {
 public:
  Pool(const char* program, std::size_t size) : program_(program), size_(size) {}

  Result<void> start() {
    while (workers_.size() < size_)
      if (auto added = add(); !added) return added;
    return {};
  }

  // Gives the connection to the worker with the least to do. A worker that dies just now takes
  // nothing with it: the descriptor is still ours, and another one gets it.
  Result<void> hand_over(const net::TcpStream& client) {
    const net::Fd::Use use(client.fd());
    const std::array<int, 1> fds{use.number()};
    for (;;) {
      std::shared_ptr<Worker> least;  // a share of it: it may end while we wait
      for (const auto& worker : workers_)
        if (worker->alive && (!least || worker->busy < least->busy)) least = worker;
      if (!least) return fail_errno(ECHILD);
      if (least->channel.send_fds(net::bytes("+"), fds)) {
        ++least->busy;
        return {};
      }
      least->alive = false;
    }
  }

  // Workers end with their channel, and are waited for.
  void stop() {
    stopping_ = true;
    for (const auto& worker : workers_)
      worker->channel.close();
    static_cast<void>(watchers_.wait());
  }

 private:
  Result<void> add() {
    RUNLOOM_TRY(const auto worker, start_worker(program_));
    std::printf("worker %d started\n", static_cast<int>(worker->pid));
    std::fflush(stdout);
    workers_.push_back(worker);
    return watchers_.spawn([this, worker] { watch(*worker); });
  }

  // Counts what the worker has finished, until it is gone; then starts another one.
  void watch(Worker& worker) {
    std::array<std::byte, 64> bytes;
    for (;;) {
      const auto count = worker.channel.read_some(bytes);
      if (!count || *count == 0) break;
      worker.busy -= static_cast<int>(*count);
    }
    worker.alive = false;
    worker.channel.close();
    const pid_t pid = worker.pid;
    Shield shield;  // it is waited for, whatever happens to us
    static_cast<void>(blocking([&]() -> Result<void> {
      while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
      }
      return {};
    }));
    std::erase_if(workers_, [&](const auto& each) { return each.get() == &worker; });
    std::printf("worker %d ended\n", static_cast<int>(pid));
    std::fflush(stdout);
    if (!stopping_ && !add()) std::fprintf(stderr, "no worker can be started\n");
  }

  const char* program_;
  std::size_t size_;
  bool stopping_ = false;
  std::vector<std::shared_ptr<Worker>> workers_;
  JoinSet<> watchers_;
};

Result<void> serve(const example::Arguments& arguments, Pool& pool) {
  RUNLOOM_TRY(auto listener, net::TcpListener::listen(net::Address::loopback_ipv4(arguments.port)));
  if (auto started = pool.start(); !started) return started;
  RUNLOOM_TRY(const auto address, listener.local_address());
  std::printf("listening on %s\n", address.to_string().c_str());
  std::fflush(stdout);
  for (;;) {
    RUNLOOM_TRY(const auto client, listener.accept_retrying());
    if (!pool.hand_over(client)) std::fprintf(stderr, "nobody can take a connection\n");
    // Our copy of the descriptor is closed here; the connection lives on in the worker.
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--worker") {
    const auto worked = run(work);
    if (!worked) std::fprintf(stderr, "worker: %s\n", worked.error().message().c_str());
    return worked ? 0 : 1;
  }
  const auto arguments = example::parse(argc, argv, "example_fd_passing_pool [--port N] [WORKERS]");
  std::size_t size = 2;
  if (!arguments.rest.empty())
    size = std::max<std::size_t>(1, std::strtoul(arguments.rest[0].c_str(), nullptr, 10));

  const net::Signals signals({SIGINT, SIGTERM});
  Options options = Options::from_environment();
  options.hubs = 1;  // the pool's members are used by one hub's fibers only, without locks
  Scheduler scheduler(std::move(options));
  const auto served = scheduler.run([&]() -> Result<void> {
    Pool pool("/proc/self/exe", size);
    auto serving = spawn([&] { return serve(arguments, pool); });
    const auto stopper = spawn([&, handle = serving.handle()]() mutable {
      if (signals.wait()) handle.cancel();
    });
    auto result = serving.join();
    stopper.cancel();
    pool.stop();
    if (!result && result.error() == Errc::cancelled) return {};
    return result;
  });
  if (!served) {
    std::fprintf(stderr, "%s\n", served.error().message().c_str());
    return 1;
  }
  return 0;
}
