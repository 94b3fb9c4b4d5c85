#include "runloom/net/signals.hpp"

#include <pthread.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "runloom/net/netpoll.hpp"
#include "runloom/sched/error.hpp"

namespace runloom::net {

Signals::Signals(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals)
    sigaddset(&set, signal);
  pthread_sigmask(SIG_BLOCK, &set, &before_);
  fd_.reset(::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!fd_) {
    const auto error = last_errno();
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    throw std::system_error(error, "signalfd");
  }
}

Signals::~Signals() {
  fd_.reset();
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

// The descriptor is waited for as one that we don't own, one-shot: a signalfd in a poller reports
// the signals of the thread that registered it, which for the signals of a process is the same.
Result<int> Signals::wait(Deadline deadline) const {
  for (;;) {
    signalfd_siginfo signal;
    const ssize_t size = ::read(fd_.number(), &signal, sizeof signal);
    if (size == static_cast<ssize_t>(sizeof signal)) return static_cast<int>(signal.ssi_signo);
    if (size < 0 && errno != EAGAIN && errno != EINTR) return fail(last_errno());
    if (size < 0 && errno == EINTR) continue;
    RUNLOOM_TRY(const unsigned ready, wait_fd(fd_.number(), kRead, deadline));
    if (ready == 0) return fail(Errc::timed_out);
  }
}

}  // namespace runloom::net
