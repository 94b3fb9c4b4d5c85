#include "process.hpp"

#include <pthread.h>
#include <signal.h>

#include <cstdio>
#include <mutex>

#include "scheduler_impl.hpp"
#include "watchdog.hpp"

namespace runloom::detail {
namespace {

// Trivially destructible: a scheduler may outlive static destruction.
constinit std::mutex schedulers_mutex;
Scheduler::Impl* schedulers = nullptr;
[[maybe_unused]] Scheduler::Impl* leaked = nullptr;  // read by leak checkers

}  // namespace

void register_scheduler(Scheduler::Impl& impl) {
  std::lock_guard hold(schedulers_mutex);
  static bool fork_handlers = false, crash_report = false;
  if (!std::exchange(fork_handlers, true)) install_fork_handlers();
  if (impl.options.crash_report && !std::exchange(crash_report, true)) install_crash_report();
  impl.next = schedulers;
  schedulers = &impl;
}

void unregister_scheduler(Scheduler::Impl& impl) noexcept {
  std::lock_guard hold(schedulers_mutex);
  for (Scheduler::Impl** link = &schedulers; *link; link = &(*link)->next) {
    if (*link != &impl) continue;
    *link = impl.next;
    return;
  }
}

void keep_leaked(Scheduler::Impl& impl) noexcept {
  std::lock_guard hold(schedulers_mutex);
  impl.next = leaked;
  leaked = &impl;
}

std::thread start_thread(std::function<void()> body) {
  sigset_t blocked, before;
  sigfillset(&blocked);
  for (int synchronous : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGABRT, SIGSYS})
    sigdelset(&blocked, synchronous);
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  struct Restore {
    sigset_t& mask;
    ~Restore() { pthread_sigmask(SIG_SETMASK, &mask, nullptr); }
  } restore{before};
  return std::thread(std::move(body));
}

void prepare_hub_thread(HubImpl& hub) {
  char name[16];
  std::snprintf(name, sizeof name, "runloom-hub%d", hub.index());
  pthread_setname_np(pthread_self(), name);
  enter_run(hub);
}

void enter_run(HubImpl& hub) {
  if (hub.impl.options.crash_report || hub.impl.watchdog) provide_signal_stack();
  if (hub.impl.watchdog) hub.impl.watchdog->watch_this_thread(hub);
}

void fork_schedulers(ForkStage stage) noexcept {
  if (stage == ForkStage::prepare) {
    schedulers_mutex.lock();
    for (Scheduler::Impl* impl = schedulers; impl; impl = impl->next)
      impl->mutex.lock();
    return;
  }
  for (Scheduler::Impl* impl = schedulers; impl; impl = impl->next) {
    impl->mutex.unlock();
    if (stage == ForkStage::child) impl->after_fork();
  }
  schedulers_mutex.unlock();
}

}  // namespace runloom::detail
