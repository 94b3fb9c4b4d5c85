// Deadline: an absolute point on CLOCK_MONOTONIC in nanoseconds. It is the last, defaulted
// argument of everything that parks. Absolute, so that a deadline given to a sequence of calls
// bounds their sum.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>

namespace runloom {

// Nanoseconds of CLOCK_MONOTONIC now. Under a simulated driver this is the simulated time of the
// calling hub.
std::int64_t monotonic_ns() noexcept;

class Deadline {
 public:
  // No deadline.
  constexpr Deadline() noexcept = default;
  static constexpr Deadline never() noexcept { return Deadline(); }
  // Already passed: the call does what it can without parking.
  static constexpr Deadline now() noexcept { return Deadline(kPast); }
  // `after` from now, rounded up to a nanosecond; saturates. Zero or negative has passed already.
  template <class Rep, class Period>
  static Deadline after(std::chrono::duration<Rep, Period> after) noexcept {
    using Seconds = std::chrono::duration<double>;
    if (!(after > after.zero())) return now();  // no number included
    if (std::chrono::duration_cast<Seconds>(after).count() > 9.0e9) return never();
    const std::int64_t ns = std::chrono::ceil<std::chrono::nanoseconds>(after).count();
    return at_ns(monotonic_ns() + ns);
  }
  static constexpr Deadline at_ns(std::int64_t ns) noexcept { return Deadline(ns); }

  constexpr std::int64_t ns() const noexcept { return ns_; }
  constexpr bool is_never() const noexcept { return ns_ == kNever; }
  // True when the deadline is at or before `now_ns`.
  constexpr bool passed_at(std::int64_t now_ns) const noexcept { return ns_ <= now_ns; }
  // True when it has passed; reads the clock only for a real deadline.
  bool passed() const noexcept { return ns_ != kNever && (ns_ == kPast || ns_ <= monotonic_ns()); }
  friend constexpr bool operator==(Deadline a, Deadline b) noexcept { return a.ns_ == b.ns_; }
  friend constexpr bool operator<(Deadline a, Deadline b) noexcept { return a.ns_ < b.ns_; }
  static constexpr Deadline earlier(Deadline a, Deadline b) noexcept { return b < a ? b : a; }

 private:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  static constexpr std::int64_t kPast = std::numeric_limits<std::int64_t>::min();
  explicit constexpr Deadline(std::int64_t ns) noexcept : ns_(ns) {}
  std::int64_t ns_ = kNever;
};

}  // namespace runloom
