// SystemdNotify: what a service tells the manager that started it, as sd_notify(3) has it, without
// libsystemd. The socket is named by NOTIFY_SOCKET, a path or "@" and an abstract name.
//
// A Server does this by itself with ServerOptions::notify_systemd.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "runloom/net/address.hpp"
#include "runloom/net/fd.hpp"
#include "runloom/sched/deadline.hpp"
#include "runloom/sched/result.hpp"

namespace runloom::net {

class SystemdNotify {
 public:
  // Nobody is told, and all calls succeed.
  SystemdNotify() = default;
  // As the environment says: NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID. Without the first nobody
  // is told. `unset` takes the variables away, that children don't see them; see listen_fds() for
  // when that is safe. Doesn't park. Fails with AddressErrc or EINVAL for what can't be read, with
  // EAFNOSUPPORT for a socket that is none of AF_UNIX.
  static Result<SystemdNotify> from_environment(bool unset = false);

  // Whether anybody is told.
  explicit operator bool() const noexcept { return static_cast<bool>(socket_); }
  // How often the manager wants watchdog() at least: send it twice as often. None: not at all.
  std::optional<std::chrono::microseconds> watchdog_interval() const noexcept { return watchdog_; }

  // Each is one datagram. They park only while the manager's queue is full; 5 s at most unless the
  // deadline says otherwise. Cancel points. Fail with the kernel's error.
  Result<void> ready(Deadline deadline = {}) { return send("READY=1", deadline); }
  Result<void> stopping(Deadline deadline = {}) { return send("STOPPING=1", deadline); }
  // The service reads its configuration again; ready() ends it.
  Result<void> reloading(Deadline deadline = {});
  Result<void> watchdog(Deadline deadline = {}) { return send("WATCHDOG=1", deadline); }
  // So much longer may the start or the stop take, from now.
  Result<void> extend_timeout(std::chrono::microseconds by, Deadline deadline = {});
  // A line for people; what is no printable text in it becomes '?'.
  Result<void> status(std::string_view text, Deadline deadline = {});
  // The process that the manager is to watch from now on: after a hand-over.
  Result<void> main_pid(pid_t pid, Deadline deadline = {});
  // "NAME=value" lines.
  Result<void> send(std::string_view lines, Deadline deadline = {});

 private:
  Fd socket_;
  Address to_;
  std::optional<std::chrono::microseconds> watchdog_{};
};

}  // namespace runloom::net
