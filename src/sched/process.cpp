#include "process.hpp"

#include <pthread.h>
#include <signal.h>

#include <cstdio>
#include <mutex>

#include "scheduler_impl.hpp"

namespace runloom::detail {
namespace {

std::mutex schedulers_mutex;
Scheduler::Impl* schedulers = nullptr;

}  // namespace

void register_scheduler(Scheduler::Impl& impl) {
  std::lock_guard hold(schedulers_mutex);
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
}

void leave_hub_thread(HubImpl&) noexcept {}
void enter_run(HubImpl&) {}
void leave_run(HubImpl&) noexcept {}

}  // namespace runloom::detail
