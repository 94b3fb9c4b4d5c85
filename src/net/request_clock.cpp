#include "runloom/net/request_clock.hpp"

#include <chrono>

#include "server_counters.hpp"

namespace runloom::net {
namespace {

std::int64_t to_ns(std::chrono::milliseconds time) noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

Deadline after(std::chrono::milliseconds time) noexcept {
  return time.count() == 0 ? Deadline::never() : Deadline::after(time);
}

// What `bytes` may take at the rate.
std::int64_t time_of(std::size_t bytes, std::uint32_t rate) noexcept {
  if (rate == 0) return 0;
  return static_cast<std::int64_t>(static_cast<double>(bytes) * 1e9 / rate);
}

ServerTimeout counted(RequestClock::Expired which) noexcept {
  using Expired = RequestClock::Expired;
  switch (which) {
    case Expired::first_byte:
      return ServerTimeout::first_byte;
    case Expired::idle:
      return ServerTimeout::idle;
    case Expired::head:
      return ServerTimeout::head;
    case Expired::body:
      return ServerTimeout::body;
    case Expired::write:
    case Expired::none:
      return ServerTimeout::write;
  }
  return ServerTimeout::write;
}

}  // namespace

// ---------------------------------------------------------------- where the handler stands

void RequestClock::await_request(bool begun) noexcept {
  read_until_ = after(begun ? timeouts_.head : first_ ? timeouts_.first_byte : timeouts_.idle);
  phase_ = begun ? Phase::head : Phase::await;
  bounds_writes_ = timeouts_.write.count() != 0;
  write_left_ns_ = to_ns(timeouts_.write);
}

void RequestClock::head_done() noexcept {
  first_ = false;
  phase_ = timeouts_.body.count() == 0 ? Phase::unbounded : Phase::body;
  body_left_ns_ = to_ns(timeouts_.body);
}

void RequestClock::unbounded() noexcept {
  first_ = false;
  phase_ = Phase::unbounded;
  bounds_writes_ = false;
}

void RequestClock::expire(Expired which) noexcept {
  expired_ = which;
  counters_.add(counted(which));
}

// ---------------------------------------------------------------- reads

RequestClock::Limit RequestClock::read_limit() noexcept {
  switch (phase_) {
    case Phase::unbounded:
      return {};
    case Phase::await:
      return {read_until_, first_ ? Expired::first_byte : Expired::idle};
    case Phase::head:
      return {read_until_, Expired::head};
    case Phase::body:
      return {Deadline::at_ns(monotonic_ns() + body_left_ns_), Expired::body};
  }
  return {};
}

void RequestClock::waited(const Limit& limit, Deadline own, std::error_code error) noexcept {
  if (phase_ == Phase::body)
    body_left_ns_ = std::max<std::int64_t>(0, limit.deadline.ns() - monotonic_ns());
  if (error == Errc::timed_out && !(own < limit.deadline) && limit.deadline.passed())
    expire(limit.which);
}

void RequestClock::came(std::size_t count) noexcept {
  if (phase_ == Phase::body) body_left_ns_ += time_of(count, timeouts_.least_rate);
  if (count != 0) request_begun();
}

void RequestClock::begin_head() noexcept {
  first_ = false;
  phase_ = Phase::head;
  read_until_ = after(timeouts_.head);
}

void RequestClock::enter_idle(CancelScope& scope) noexcept {
  {
    const std::lock_guard hold(idle_mutex_);
    idle_ = &scope;
  }
  // Who set it before it could see the scope leaves the scope to us, and everybody else sees it.
  if (stopping_.load()) scope.cancel();
}

void RequestClock::leave_idle() noexcept {
  const std::lock_guard hold(idle_mutex_);
  idle_ = nullptr;
}

void RequestClock::stop_idle() noexcept {
  const std::lock_guard hold(idle_mutex_);
  if (idle_) idle_->cancel();
}

// ---------------------------------------------------------------- writes

Deadline RequestClock::write_limit(std::size_t size) noexcept {
  return Deadline::at_ns(monotonic_ns() + write_left_ns_ + time_of(size, timeouts_.least_rate));
}

void RequestClock::wrote(Deadline limit, Deadline own, std::error_code error) noexcept {
  write_left_ns_ = std::max<std::int64_t>(0, limit.ns() - monotonic_ns());
  if (error == Errc::timed_out && !(own < limit) && limit.passed()) expire(Expired::write);
}

}  // namespace runloom::net
