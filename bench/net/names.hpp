// names.hpp: what both subjects of the suite `dns` do. Each looks up names that nobody asked for
// before, so many at a time, at a server that answers at once, with an address of each family. The
// server is a process of its own on the second core; the subject runs on the first. Both find it
// where /etc/resolv.conf says, in a network and mount namespace of their own, for which they must
// be root.
#pragma once

#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "../peers/micro.hpp"

namespace names {

inline constexpr int kAtOnce = 32;
inline constexpr int kNames = 20'000;
inline constexpr int kNumbers = 200'000;

[[noreturn]] inline void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

// A name that is new every time.
inline std::string next_name() {
  static std::atomic<int> count{0};
  return "h" + std::to_string(count.fetch_add(1)) + ".bench.test";
}

inline void stay_on(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(cpu), &set);
  ::sched_setaffinity(0, sizeof set, &set);
}

// Answers every question for ever: an address of the family that is asked for.
[[noreturn]] inline void serve(int fd) {
  static const unsigned char a[] = {0xc0, 12, 0, 1, 0, 1, 0, 0, 1, 44, 0, 4, 127, 0, 0, 9};
  static const unsigned char aaaa[] = {0xc0, 12, 0, 28, 0, 1, 0, 0, 1, 44, 0, 16, 0, 0,
                                       0,    0,  0, 0,  0, 0, 0, 0, 0, 0,  0, 0,  0, 1};
  for (;;) {
    unsigned char message[1500];
    sockaddr_in peer{};
    socklen_t peer_size = sizeof peer;
    ssize_t size = ::recvfrom(fd, message, 600, 0, reinterpret_cast<sockaddr*>(&peer), &peer_size);
    if (size < 18) continue;
    message[2] = 0x81;
    message[3] = 0x80;
    message[7] = 1;
    const bool is_a = message[size - 3] == 1;
    const std::size_t more = is_a ? sizeof a : sizeof aaaa;
    std::memcpy(message + size, is_a ? a : aaaa, more);
    ::sendto(fd, message, static_cast<std::size_t>(size) + more, 0,
             reinterpret_cast<sockaddr*>(&peer), peer_size);
  }
}

class World {
 public:
  World() {
    cpu_set_t set;
    ::sched_getaffinity(0, sizeof set, &set);
    int cpus[2] = {-1, -1};
    for (int cpu = 0, found = 0; cpu < CPU_SETSIZE && found < 2; ++cpu)
      if (CPU_ISSET(static_cast<std::size_t>(cpu), &set)) cpus[found++] = cpu;
    if (::unshare(CLONE_NEWNS | CLONE_NEWNET) != 0) fail("a namespace (only root may make one)");
    if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) fail("mount");
    put("/etc/resolv.conf", "nameserver 127.0.0.1\n");
    put("/etc/hosts", "127.0.0.1 localhost\n");
    put("/etc/nsswitch.conf", "hosts: files dns\n");
    if (std::system("ip link set lo up") != 0) fail("ip");
    const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_in local{};
    local.sin_family = AF_INET;
    local.sin_port = htons(53);
    local.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::bind(fd, reinterpret_cast<sockaddr*>(&local), sizeof local) != 0) fail("bind");
    server_ = ::fork();
    if (server_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (cpus[1] >= 0) stay_on(cpus[1]);
      serve(fd);
    }
    ::close(fd);
    stay_on(cpus[0]);
  }
  ~World() {
    ::kill(server_, SIGKILL);
    ::waitpid(server_, nullptr, 0);
  }

 private:
  static void put(const char* path, const char* text) {
    const std::string copy = "/tmp/runloom-bench-names-" + std::to_string(::getpid());
    std::ofstream(copy) << text;
    if (::mount(copy.c_str(), path, nullptr, MS_BIND, nullptr) != 0) fail(path);
    ::unlink(copy.c_str());
  }
  int server_ = -1;
};

// Runs `body(n)` three times, and reports what one of its names costs at best, and how many there
// are in a second.
template <class Body>
void measure(const char* name, int n, Body body) {
  double cpu = 1e18, wall = 1e18;
  for (int repetition = 0; repetition < 3; ++repetition) {
    const double cpu_start = micro::now_ns(micro::Clock::kCpu);
    const double wall_start = micro::now_ns(micro::Clock::kWall);
    body(n);
    cpu = std::min(cpu, (micro::now_ns(micro::Clock::kCpu) - cpu_start) / n);
    wall = std::min(wall, (micro::now_ns(micro::Clock::kWall) - wall_start) / n);
  }
  micro::report(name, cpu, "CPU ns");
  micro::report(name, 1e9 / wall, "names/s");
}

}  // namespace names
