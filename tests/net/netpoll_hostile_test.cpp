// The epoll backend where others get in its way: filters of system calls, and code that closes
// descriptors that are not its own.
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>

#include "support/child.hpp"
#include "support/net_test.hpp"

namespace runloom::test {
namespace {

using namespace std::chrono_literals;
using net::Fd;

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

// A program that closes all descriptors, to become a daemon, say: better an end with a reason than
// a hub that spins for ever.
TEST(EpollHostile, EndsTheProcessWhenItsDescriptorsAreClosed) {
  const ChildEnd end = run_child([] {
    const rlimit none{0, 0};
    ::setrlimit(RLIMIT_CORE, &none);
    Scheduler scheduler({.make_driver = driver_maker(&net::make_epoll_netpoll)});
    (void)scheduler.run([] {
      if (polls_of_a_wait() == 0) ::_exit(1);
      for (int fd = 3; fd < 64; ++fd)
        ::close(fd);
      (void)this_fiber::sleep_for(1ms);
    });
    return 2;
  });
  EXPECT_EQ(end.signal, SIGABRT) << end.code << " " << end.out;
  EXPECT_NE(end.out.find("was it closed by other code?"), std::string::npos) << end.out;
}

}  // namespace
}  // namespace runloom::test
