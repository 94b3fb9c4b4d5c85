// Peer: Boost.Fiber TCP echo, one thread. Boost.Fiber has no I/O of its own: here the scheduling
// algorithm's suspend_until() runs epoll, edge-triggered, with a short recv taken for "drained", so
// that the peer gets the best shape known.
// Usage: echo_boost_fiber PORT
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/fiber/algo/round_robin.hpp>
#include <boost/fiber/all.hpp>
#include <boost/fiber/context.hpp>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>

namespace fibers = boost::fibers;

namespace {

constexpr std::size_t kStackSize = 64 * 1024;
int epoll_fd = -1;

// A descriptor's readiness and the fiber that waits for it.
struct Readiness {
  bool ready = false;
  fibers::context* waiter = nullptr;

  void wait() {
    while (!ready) {
      waiter = fibers::context::active();
      waiter->suspend();
    }
    ready = false;
  }
};

class EpollScheduler : public fibers::algo::round_robin {
 public:
  void suspend_until(const std::chrono::steady_clock::time_point& until) noexcept override {
    int timeout_ms = -1;
    if (until != std::chrono::steady_clock::time_point::max()) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
      timeout_ms = left.count() > 0 ? static_cast<int>(left.count()) : 0;
    }
    epoll_event events[256];
    const int n = epoll_wait(epoll_fd, events, 256, timeout_ms);
    for (int i = 0; i < n; i++) {
      auto* readiness = static_cast<Readiness*>(events[i].data.ptr);
      readiness->ready = true;
      if (fibers::context* fiber = std::exchange(readiness->waiter, nullptr)) {
        fibers::context::active()->schedule(fiber);
      }
    }
  }
  void notify() noexcept override {}  // one thread: nobody wakes it from outside
};

void watch(int fd, Readiness& readiness) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP | EPOLLET;
  event.data.ptr = &readiness;
  epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event);
}

void echo(int fd) {
  Readiness readable;
  watch(fd, readable);
  char buffer[16384];
  for (;;) {
    const ssize_t n = recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN) {
      readable.wait();
      continue;
    }
    if (n <= 0) break;
    // The socket is a blocking one: a client that does not read holds the server up, which the load
    // generator never does.
    if (send(fd, buffer, static_cast<std::size_t>(n), MSG_NOSIGNAL) != n) break;
    if (n < static_cast<ssize_t>(sizeof buffer)) readable.wait();
  }
  epoll_ctl(epoll_fd, EPOLL_CTL_DEL, fd, nullptr);
  close(fd);
}

int listen_on(int port) {
  const int one = 1;
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      listen(fd, 4096) != 0) {
    std::perror("listen");
    std::exit(1);
  }
  return fd;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 64;
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);

  fibers::use_scheduling_algorithm<EpollScheduler>();
  epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  const int listener = listen_on(std::atoi(argv[1]));
  Readiness acceptable;
  watch(listener, acceptable);
  const int one = 1;
  for (;;) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) {
      acceptable.wait();
      continue;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fibers::fiber(std::allocator_arg, fibers::fixedsize_stack(kStackSize), echo, fd).detach();
  }
}
