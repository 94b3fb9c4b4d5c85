#include "server_notify.hpp"

#include <algorithm>

#include "runloom/sched/fiber.hpp"
#include "runloom/sched/scheduler.hpp"

namespace runloom::net {

using namespace std::chrono_literals;

ServerNotify::ServerNotify(bool wanted, FaultLog& faults) : faults_(faults) {
  if (!wanted) return;
  auto made = SystemdNotify::from_environment();
  if (made) {
    notify_ = std::move(*made);
  } else {
    faults_.add(ServerFault::notify, made.error(), {});
  }
}

void ServerNotify::check(const Result<void>& told) {
  if (!told) faults_.add(ServerFault::notify, told.error(), {});
}

void ServerNotify::ready(JoinSet<>& helpers) {
  if (!notify_) return;
  check(notify_.ready(Deadline::now()));
  if (!notify_.watchdog_interval()) return;
  const auto started = helpers.spawn([this] { feed_watchdog(); }, {.name = "watchdog"});
  if (!started) faults_.add(ServerFault::notify, started.error(), {});
}

void ServerNotify::stopping(Deadline drain, std::chrono::milliseconds grace) {
  if (!notify_) return;
  std::string lines = "STOPPING=1";
  const auto left = std::chrono::nanoseconds(
      drain.is_never()
          ? 0
          : std::max<std::int64_t>(0, drain.passed() ? 0 : drain.ns() - monotonic_ns()));
  // A second more, for what comes after the handlers.
  const auto usec = std::chrono::duration_cast<std::chrono::microseconds>(left + grace + 1s);
  if (drain.is_never()) {
    lines += "\nEXTEND_TIMEOUT_USEC=18446744073709551615";
  } else {
    lines += "\nEXTEND_TIMEOUT_USEC=" + std::to_string(usec.count());
  }
  check(notify_.send(lines, Deadline::now()));
}

// A hub that is stuck runs no fiber: so one is run on each, before the manager hears that all is
// well. The deadline of the whole is the manager's.
void ServerNotify::feed_watchdog() {
  const auto pause = *notify_.watchdog_interval() / 2;
  for (;;) {
    {
      JoinSet<> rounds;
      for (int hub = 0; hub < Scheduler::current()->hubs(); ++hub)
        if (!rounds.spawn([] {}, {.name = "watchdog", .hub = hub})) return;
      if (!rounds.wait()) return;
    }
    check(notify_.watchdog(Deadline::now()));
    if (!this_fiber::sleep_for(pause)) return;
  }
}

}  // namespace runloom::net
