// Signals: signals as something that a fiber can wait for, by signalfd(2).
//
//     int main() {
//       const net::Signals signals({SIGINT, SIGTERM});   // before the first thread
//       ...
//       auto signal = signals.wait();                    // on a fiber
//
// The signals are blocked in the thread that makes the object and in the threads that it starts
// later; one that is sent to the process stays pending until somebody waits. In a thread that was
// started earlier they would still be delivered, and end the process. A program that is started by
// exec inherits what is blocked: set its mask before.
#pragma once

#include <csignal>
#include <initializer_list>

#include "runloom/net/owned_fd.hpp"
#include "runloom/sched/deadline.hpp"
#include "runloom/sched/result.hpp"

namespace runloom::net {

class Signals {
 public:
  // Doesn't park. Throws std::system_error when no descriptor can be had.
  explicit Signals(std::initializer_list<int> signals);
  // On the thread that made it: what the object blocked is delivered again, pending signals too.
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  // Parks until one of the signals comes, and takes it; returns its number. Several fibers may
  // wait, each signal is taken by one of them. A cancel point. Signals of one kind that come
  // while one is pending are one.
  Result<int> wait(Deadline deadline = {}) const;

 private:
  OwnedFd fd_;
  sigset_t before_;
};

}  // namespace runloom::net
