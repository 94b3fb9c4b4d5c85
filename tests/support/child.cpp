#include "support/child.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <system_error>

namespace runloom::test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kHang = std::chrono::seconds(10);

int left_ms(Clock::time_point end) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
  return left.count() > 0 ? static_cast<int>(left.count()) : 0;
}

ChildEnd reap(int pid, int status) {
  ChildEnd end;
  if (::waitpid(pid, &status, 0) != pid) throw std::system_error(errno, std::system_category());
  end.exited = WIFEXITED(status);
  if (end.exited) end.code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) end.signal = WTERMSIG(status);
  return end;
}

}  // namespace

ChildEnd run_child(const std::function<int()>& body) {
  int pipe[2];
  if (::pipe2(pipe, 0) != 0) throw std::system_error(errno, std::system_category());
  const int pid = ::fork();
  if (pid < 0) throw std::system_error(errno, std::system_category());
  if (pid == 0) {
    ::close(pipe[0]);
    ::dup2(pipe[1], 1);
    ::dup2(pipe[1], 2);
    ::close(pipe[1]);
    const int code = body();
    ::fflush(nullptr);
    ::_exit(code);
  }
  ::close(pipe[1]);
  const auto end = Clock::now() + kHang;
  std::string out;
  for (;;) {
    pollfd readable{pipe[0], POLLIN, 0};
    const int ready = ::poll(&readable, 1, left_ms(end));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) {
      ::kill(pid, SIGKILL);
      break;
    }
    char buffer[4096];
    const ssize_t n = ::read(pipe[0], buffer, sizeof buffer);
    if (n <= 0) break;
    out.append(buffer, static_cast<std::size_t>(n));
  }
  ::close(pipe[0]);
  ChildEnd ended = wait_child(pid);
  ended.out = std::move(out);
  return ended;
}

ChildEnd wait_child(int pid) {
  const auto end = Clock::now() + kHang;
  siginfo_t info{};
  for (;;) {
    info.si_pid = 0;
    if (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0)
      throw std::system_error(errno, std::system_category());
    if (info.si_pid == pid) return reap(pid, 0);
    if (left_ms(end) == 0) ::kill(pid, SIGKILL);
    ::poll(nullptr, 0, 2);
  }
}

}  // namespace runloom::test
