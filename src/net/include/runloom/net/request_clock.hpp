// RequestClock: the deadlines of a connection whose protocol speaks in requests, see Connection,
// which has one. For who reads the connection's socket by other means than the Connection: a
// language binding, whose sockets are objects of its own.
//
// The deadlines are absolute: no byte that the peer sends or takes starts one afresh. Until the
// head is there only the peer can be slow, so they are points in time, set once. In a body, and in
// writes, the handler may take its time between two calls: there only the time inside the calls
// counts, out of an allowance that every byte adds a little to. Either way no timer is set for more
// than the call that waits.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "runloom/net/server_options.hpp"
#include "runloom/sched/cancel.hpp"
#include "runloom/sched/deadline.hpp"
#include "runloom/sched/result.hpp"

namespace runloom::net {

struct ServerCounters;

// One fiber at a time reads, one writes; the calls that tell where the handler stands are made when
// no other fiber is inside a call.
class RequestClock {
 public:
  // Which of the deadlines ended a call.
  enum class Expired : std::uint8_t { none, first_byte, idle, head, body, write };

  // All three outlive it. `stopping`: the server's, set before stop_idle().
  RequestClock(const ServerTimeouts& timeouts, ServerCounters& counters,
               const std::atomic<bool>& stopping) noexcept
      : timeouts_(timeouts), counters_(counters), stopping_(stopping) {}
  RequestClock(const RequestClock&) = delete;
  RequestClock& operator=(const RequestClock&) = delete;

  // As the members of Connection of these names.
  void await_request(bool begun = false) noexcept;
  void head_done() noexcept;
  void unbounded() noexcept;
  Expired expired() const noexcept { return expired_; }
  bool stopping() const noexcept { return stopping_.load(); }

  // Makes a read, `call(Deadline) -> Result<std::size_t>` with the count of its bytes, within
  // `deadline` and what is due.
  template <class Call>
  Result<std::size_t> read(Deadline deadline, Call&& call) {
    if (phase_ == Phase::unbounded) return call(deadline);
    const Limit limit = read_limit();
    auto count = until_stop(Deadline::earlier(deadline, limit.deadline), call);
    waited(limit, deadline, count.has_value() ? std::error_code() : count.error());
    if (count) came(*count);
    return count;
  }
  // Waits for something to read: `call(Deadline) -> Result<void>`.
  template <class Call>
  Result<void> wait(Deadline deadline, Call&& call) {
    if (phase_ == Phase::unbounded) return call(deadline);
    const Limit limit = read_limit();
    auto ready = until_stop(Deadline::earlier(deadline, limit.deadline), call);
    waited(limit, deadline, ready.has_value() ? std::error_code() : ready.error());
    return ready;
  }
  // Makes a write of `size` bytes: `call(Deadline)` returns some Result.
  template <class Call>
  auto write(std::size_t size, Deadline deadline, Call&& call) {
    if (!bounds_writes_) return call(deadline);
    const Deadline limit = write_limit(size);
    auto result = call(Deadline::earlier(deadline, limit));
    wrote(limit, deadline, result.has_value() ? std::error_code() : result.error());
    return result;
  }

  // The first byte of a request came by a read that was not made here: out of what a protocol in
  // between, such as TLS, had read ahead.
  void request_begun() noexcept {
    if (phase_ == Phase::await) begin_head();
  }

  // Ends a wait for a further request with Errc::closed. Any thread.
  void stop_idle() noexcept;

 private:
  enum class Phase : std::uint8_t { unbounded, await, head, body };
  struct Limit {
    Deadline deadline{};
    Expired which = Expired::none;
  };
  Limit read_limit() noexcept;
  // A read is over: what is left of its allowance, and whether its time was up.
  void waited(const Limit& limit, Deadline own, std::error_code error) noexcept;
  void came(std::size_t count) noexcept;
  void begin_head() noexcept;
  Deadline write_limit(std::size_t size) noexcept;
  void wrote(Deadline limit, Deadline own, std::error_code error) noexcept;
  void expire(Expired which) noexcept;

  // A wait for a further request, which the server's stop ends. A request that is there when the
  // stop comes is read: bytes win over a cancel.
  template <class Call>
  auto until_stop(Deadline deadline, Call&& call) {
    if (phase_ != Phase::await || first_) return call(deadline);
    CancelScope scope;
    enter_idle(scope);
    auto result = call(deadline);
    leave_idle();
    if (!result && result.error() == Errc::cancelled && scope.cancelled())
      result = fail(Errc::closed);
    return result;
  }
  void enter_idle(CancelScope& scope) noexcept;
  void leave_idle() noexcept;

  const ServerTimeouts& timeouts_;
  ServerCounters& counters_;
  const std::atomic<bool>& stopping_;
  std::mutex idle_mutex_;
  CancelScope* idle_ = nullptr;  // of the wait for a further request; guarded by the mutex

  Phase phase_ = Phase::unbounded;
  bool first_ = true;  // no request was awaited yet
  Expired expired_ = Expired::none;
  bool bounds_writes_ = false;
  Deadline read_until_{};          // await, head
  std::int64_t body_left_ns_ = 0;  // of waiting
  std::int64_t write_left_ns_ = 0;
};

}  // namespace runloom::net
