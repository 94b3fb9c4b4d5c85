#include "stack_capture.hpp"

#include <execinfo.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <ctime>

#include "runloom/sched/deadline.hpp"

namespace runloom::detail {
namespace {

constexpr int kMostFrames = 64;
constexpr std::int64_t kAnswerNs = 1'000'000'000;

// The one capture under way. kFree -> kAsked (asker) -> kFilling -> kDone (handler) -> kFree.
enum CaptureState : std::uint32_t { kFree, kAsked, kFilling, kDone };
struct Capture {
  std::atomic<std::uint32_t> state{kFree};  // futex
  std::atomic<pid_t> tid{0};
  int count = 0;
  void* frames[kMostFrames] = {};
  void* interrupted = nullptr;  // the program counter
};
constinit Capture capture;

void* program_counter(void* context) noexcept {
  const mcontext_t& machine = static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  return reinterpret_cast<void*>(machine.gregs[REG_RIP]);
#elif defined(__aarch64__)
  return reinterpret_cast<void*>(machine.pc);
#else
  (void)machine;
  return nullptr;
#endif
}

void on_capture(int, siginfo_t*, void* context) {
  const int saved = errno;
  std::uint32_t asked = kAsked;
  if (capture.tid.load(std::memory_order_relaxed) == ::gettid() &&
      capture.state.compare_exchange_strong(asked, kFilling, std::memory_order_acquire)) {
    capture.count = ::backtrace(capture.frames, kMostFrames);
    capture.interrupted = program_counter(context);
    capture.state.store(kDone, std::memory_order_release);
    ::syscall(SYS_futex, &capture.state, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  }
  errno = saved;
}

// Takes the last real-time signal that nobody handles; 0 when there is none.
int install_signal() noexcept {
  // The first call loads the unwinder, which a signal handler must not do.
  void* frames[2];
  ::backtrace(frames, 2);
  for (int signal = SIGRTMAX; signal >= SIGRTMIN; --signal) {
    struct sigaction now {};
    if (::sigaction(signal, nullptr, &now) != 0 || (now.sa_flags & SA_SIGINFO) != 0 ||
        now.sa_handler != SIG_DFL)
      continue;
    struct sigaction ours {};
    ours.sa_sigaction = &on_capture;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    sigemptyset(&ours.sa_mask);
    if (::sigaction(signal, &ours, nullptr) == 0) return signal;
  }
  return 0;
}

int capture_signal() noexcept {
  static const int signal = install_signal();
  return signal;
}

// True when the handler is done.
bool wait_done() noexcept {
  const std::int64_t end = monotonic_ns() + kAnswerNs;
  for (;;) {
    const std::uint32_t state = capture.state.load(std::memory_order_acquire);
    if (state == kDone) return true;
    const std::int64_t left = end - monotonic_ns();
    if (left <= 0) return false;
    const timespec limit{left / 1'000'000'000, left % 1'000'000'000};
    ::syscall(SYS_futex, &capture.state, FUTEX_WAIT_PRIVATE, state, &limit, nullptr, 0);
  }
}

}  // namespace

void allow_stack_capture() noexcept {
  const int signal = capture_signal();
  if (signal == 0) return;
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

std::vector<void*> capture_stack(pid_t tid) noexcept {
  const int signal = capture_signal();
  std::uint32_t state = kFree;
  if (signal == 0 || tid == 0 ||
      !capture.state.compare_exchange_strong(state, kAsked, std::memory_order_acquire))
    return {};
  capture.tid.store(tid, std::memory_order_relaxed);
  std::vector<void*> frames;
  const bool sent = ::syscall(SYS_tgkill, ::getpid(), tid, signal) == 0;
  if (!sent || !wait_done()) {
    state = kAsked;
    if (capture.state.compare_exchange_strong(state, kFree, std::memory_order_relaxed)) return {};
    if (!wait_done()) return {};  // stuck in the handler: no capture any more
  }
  // The handler's own frames stand above the place that it interrupted.
  void** end = capture.frames + capture.count;
  void** first = std::find(capture.frames, end, capture.interrupted);
  frames.assign(first == end ? capture.frames : first, end);
  capture.state.store(kFree, std::memory_order_release);
  return frames;
}

void forget_stack_capture() noexcept {
  capture.state.store(kFree, std::memory_order_relaxed);
}

}  // namespace runloom::detail
