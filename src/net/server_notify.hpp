// What a server tells the service manager about its own life.
#pragma once

#include <chrono>

#include "runloom/net/systemd_notify.hpp"
#include "runloom/sched/join_set.hpp"
#include "server_report.hpp"

namespace runloom::net {

class ServerNotify {
 public:
  // Nothing is told unless `wanted`. What can't be told is a fault, and no more than that.
  ServerNotify(bool wanted, FaultLog& faults);

  // It serves. From now on the watchdog is fed, by a fiber in `helpers`.
  void ready(JoinSet<>& helpers);
  // It stops, which may take until the drain deadline, and `grace` longer. Parks never.
  void stopping(Deadline drain, std::chrono::milliseconds grace);

 private:
  void check(const Result<void>& told);
  void feed_watchdog();

  SystemdNotify notify_;
  FaultLog& faults_;
};

}  // namespace runloom::net
