// The backends where others get in their way: filters of system calls, and code that closes
// descriptors that are not its own.
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <string>
#include <string_view>

#include "runloom/net/file.hpp"
#include "runloom/net/netpoll.hpp"
#include "support/child.hpp"
#include "support/files.hpp"
#include "support/net_test.hpp"

namespace runloom::test {
namespace {

using namespace std::chrono_literals;
using net::bytes;
using net::Fd;
using net::TcpStream;

// From now on the system call fails with `err`, in this thread and those that it starts.
bool refuse_call(unsigned number, unsigned err) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (err & SECCOMP_RET_DATA)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{4, program};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

// Waits in vain for 50 ms, and returns how often the hub looked for events meanwhile.
std::uint64_t polls_of_a_wait() {
  int end[2];
  if (::pipe(end) != 0) return 0;
  Fd reader = Fd::adopt(end[0]).value();
  const std::uint64_t before = Scheduler::current()->stats().polls;
  const auto ready = reader.wait_ready(net::kRead, Deadline::after(50ms));
  const std::uint64_t polls = Scheduler::current()->stats().polls - before;
  ::close(end[1]);
  return ready.error() == Errc::timed_out ? polls : 0;
}

constexpr int kNoFilter = 77;

// Old container runtimes answer EPERM to calls that they don't know, instead of ENOSYS.
TEST(EpollHostile, PollsWithMillisecondsWhereTheNewCallIsRefused) {
  for (const unsigned err : {ENOSYS, EPERM}) {
    const ChildEnd end = run_child([err] {
      if (!refuse_call(SYS_epoll_pwait2, err)) return kNoFilter;
      std::uint64_t polls = 0;
      Scheduler scheduler({.make_driver = driver_maker(&net::make_epoll_netpoll)});
      if (!scheduler.run([&] { polls = polls_of_a_wait(); })) return 1;
      return polls > 0 && polls < 20 ? 0 : 2;
    });
    if (end.exited && end.code == kNoFilter) GTEST_SKIP() << "filters may not be installed here";
    EXPECT_TRUE(end.exited && end.code == 0) << end.code << " " << end.out;
  }
}

void close_all() {
  for (int fd = 3; fd < 2048; ++fd)
    ::close(fd);
}

// A connection that is made, used and waited on works. Zero, or which step failed.
int use_a_connection() {
  Listening listening;
  auto accepted = spawn([&] { return listening.listener.accept(); });
  auto client = TcpStream::connect(listening.address, {}, Deadline::after(5s));
  auto server = accepted.join();
  if (!client || !server) return 10;
  auto reader = spawn([&] { return read_text(*server, 1, Deadline::after(5s)); });
  this_fiber::yield();
  if (!client->write_all(bytes("x"))) return 11;
  return reader.join().value_or("") == "x" ? 0 : 12;
}

// A program that closes all descriptors, to become a daemon, say. The poller goes on with new ones.
void survives_a_close_of_all(Result<std::unique_ptr<net::Netpoll>> (*make)()) {
  const ChildEnd end = run_child([make] {
    Scheduler scheduler({.make_driver = driver_maker(make)});
    int failed = 1;
    auto ran = scheduler.run([&] {
      if (polls_of_a_wait() == 0) return;
      close_all();
      failed = use_a_connection();  // before the hub has polled
      if (failed != 0) return;
      close_all();
      if (!this_fiber::sleep_for(1ms)) failed = 2;  // a poll finds out
      const std::uint64_t polls = polls_of_a_wait();
      if (polls == 0 || polls > 20) failed = 3;
      if (failed == 0) failed = use_a_connection();
    });
    return ran ? failed : 4;
  });
  EXPECT_TRUE(end.exited && end.code == 0) << end.code << " " << end.out;
}
TEST(EpollHostile, SurvivesACloseOfAllDescriptors) {
  survives_a_close_of_all(&net::make_epoll_netpoll);
}
TEST(PollHostile, SurvivesACloseOfAllDescriptors) {
  survives_a_close_of_all(&net::make_poll_netpoll);
}

TEST(UringHostile, SurvivesACloseOfAllDescriptors) {
  survives_a_close_of_all(&net::make_uring_netpoll);
}

// Where io_uring is forbidden it is epoll, and one line says so.
TEST(UringHostile, FallsBackToEpoll) {
  for (const unsigned err : {ENOSYS, EPERM, ENOMEM}) {
    const ChildEnd end = run_child([err] {
      if (!refuse_call(SYS_io_uring_setup, err)) return kNoFilter;
      int failed = 1;
      Options options;
      options.hubs = 2;
      options.make_driver = driver_maker(&net::make_uring_or_epoll_netpoll);
      auto ran = runloom::run(
          [&] {
            const int used = use_a_connection();
            if (used != 0) {
              failed = used;
            } else if (net::Netpoll::current().value()->name() != "epoll") {
              failed = 2;
            } else {
              failed = net::netpoll_fallback().find("io_uring_setup") == std::string::npos ? 3 : 0;
            }
          },
          options);
      return ran ? failed : 4;
    });
    if (end.exited && end.code == kNoFilter) GTEST_SKIP() << "filters may not be installed here";
    EXPECT_TRUE(end.exited && end.code == 0) << end.code << " " << end.out;
    const auto line = end.out.find("using epoll");
    EXPECT_NE(line, std::string::npos) << end.out;
    EXPECT_EQ(line, end.out.rfind("using epoll")) << "twice: " << end.out;
    EXPECT_EQ(end.out.find("RLIMIT_MEMLOCK") != std::string::npos, err == ENOMEM) << end.out;
  }
}

// Reads that are never answered by the page cache, one after the other. 0, or where it failed.
int read_directly(const std::string& path) {
  for (int i = 0; i < 3; ++i) {
    auto file = net::File::open(path, O_RDONLY | O_DIRECT);
    if (!file || ::fcntl(file->number(), F_SETFL, 0) != 0) return 10;
    drop_cache(path);
    std::string text(100, '\0');
    const auto count = file->read_at(writable(text), 5);
    if (!count || *count != 100 || text != pattern(100, 5)) return 11;
  }
  return 0;
}

TEST(EpollHostile, FilesSurviveACloseOfAllDescriptors) {
  const TempDirectory directory;
  make_file(directory / "a", pattern(10'000));
  const ChildEnd end = run_child([&] {
    Options options;
    options.make_driver = driver_maker(&net::make_epoll_netpoll);
    int failed = 1;
    auto ran = runloom::run(
        [&] {
          failed = read_directly(directory / "a");
          if (failed != 0) return;
          ::close_range(3, ~0u, 0);
          failed = read_directly(directory / "a");
        },
        options);
    return ran ? failed : 4;
  });
  EXPECT_TRUE(end.exited && end.code == 0) << end.code << " " << end.out;
}

// Where io_uring is forbidden files are on threads, and one line says so.
TEST(EpollHostile, FilesFallBackToThreads) {
  const TempDirectory directory;
  make_file(directory / "a", pattern(10'000));
  const ChildEnd end = run_child([&] {
    if (!refuse_call(SYS_io_uring_setup, EPERM)) return kNoFilter;
    Options options;
    options.hubs = 2;
    options.make_driver = driver_maker(&net::make_epoll_netpoll);
    int failed = 1;
    auto ran = runloom::run(
        [&] {
          failed = spawn([&] { return read_directly(directory / "a"); }, {.hub = 1}).join().value();
          if (failed == 0) failed = read_directly(directory / "a");
          if (net::file_ring_refusal().find("io_uring_setup") == std::string::npos) failed = 3;
        },
        options);
    return ran ? failed : 4;
  });
  if (end.exited && end.code == kNoFilter) GTEST_SKIP() << "filters may not be installed here";
  EXPECT_TRUE(end.exited && end.code == 0) << end.code << " " << end.out;
  const auto line = end.out.find("files are on threads");
  EXPECT_NE(line, std::string::npos) << end.out;
  EXPECT_EQ(line, end.out.rfind("files are on threads")) << "twice: " << end.out;
}

// A wait that was under way on a descriptor that is still open goes on.
void waits_go_on_with_a_new_poller(Result<std::unique_ptr<net::Netpoll>> (*make)()) {
  const ChildEnd end = run_child([make] {
    Scheduler scheduler({.make_driver = driver_maker(make)});
    int failed = 1;
    auto ran = scheduler.run([&] {
      TcpPair pair;
      int pipe[2];
      if (::pipe(pipe) != 0) return;
      auto reader = spawn([&] { return read_text(pair.server, 1); });
      auto waiter = spawn([&] { return net::wait_fd(pipe[0], net::kRead); });
      until_parked(reader.handle(), WaitReason::io_read);
      until_parked(waiter.handle(), WaitReason::io_poll);
      for (int fd = 3; fd < 2048; ++fd) {
        char target[64] = {};
        const std::string link = "/proc/self/fd/" + std::to_string(fd);
        if (::readlink(link.c_str(), target, sizeof target - 1) > 0 &&
            std::string_view(target).starts_with("anon_inode:[event"))
          ::close(fd);
      }
      if (!this_fiber::sleep_for(1ms) || waiter.done() || reader.done()) return;
      if (!pair.client.write_all(bytes("x")) || ::write(pipe[1], "y", 1) != 1) return;
      failed = reader.join().value_or("") == "x" && waiter.join() ? 0 : 2;
    });
    return ran ? failed : 4;
  });
  EXPECT_TRUE(end.exited && end.code == 0) << end.code << " " << end.out;
}

TEST(EpollHostile, WaitsGoOnWithANewPoller) {
  waits_go_on_with_a_new_poller(&net::make_epoll_netpoll);
}
TEST(UringHostile, WaitsGoOnWithANewPoller) {
  waits_go_on_with_a_new_poller(&net::make_uring_netpoll);
}

}  // namespace
}  // namespace runloom::test
