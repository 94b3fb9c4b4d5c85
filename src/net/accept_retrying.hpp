// The loop of accept_retrying, for every kind of listener.
#pragma once

#include "runloom/net/fd.hpp"
#include "runloom/net/tcp_listener.hpp"
#include "runloom/sched/fiber.hpp"

namespace runloom::net {

// Calls accept() until it gives a connection or an error that is no shortage, or the deadline
// passes.
template <class Accept>
auto retry_shortages(const Fd& listener, Deadline deadline, Accept&& accept) -> decltype(accept()) {
  AcceptBackoff backoff;
  for (;;) {
    auto stream = accept();
    if (stream || !is_shortage(stream.error())) return stream;
    // A listener is never writable: this is a pause that its close ends.
    const Deadline pause = Deadline::after(backoff.next());
    const Deadline limit = Deadline::earlier(pause, deadline);
    const auto ended = listener.wait_ready(kWrite, limit);
    if (!ended && is_shortage(ended.error())) {  // an OS thread's wait needs a descriptor itself
      if (auto slept = this_fiber::sleep_until(limit); !slept) return Unexpected{slept.error()};
    } else if (!ended && ended.error() != Errc::timed_out) {
      return Unexpected{ended.error()};
    }
    if (deadline.passed()) return stream;
  }
}

}  // namespace runloom::net
