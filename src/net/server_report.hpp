// How often a server speaks of its faults, and how it says them.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>

#include "runloom/net/server_options.hpp"

namespace runloom::net {

// Lets one report a second through and counts the others. Any thread.
class ReportLimit {
 public:
  static constexpr std::int64_t kInterval = 1'000'000'000;  // ns

  // Nothing: don't report. Else: how many were left out since the last one.
  std::optional<std::uint64_t> pass(std::int64_t now_ns) noexcept {
    std::int64_t due = due_ns_.load(std::memory_order_relaxed);
    if (now_ns < due || !due_ns_.compare_exchange_strong(due, now_ns + kInterval)) {
      left_out_.fetch_add(1, std::memory_order_relaxed);
      return {};
    }
    return left_out_.exchange(0, std::memory_order_relaxed);
  }

 private:
  std::atomic<std::int64_t> due_ns_{INT64_MIN};
  std::atomic<std::uint64_t> left_out_{0};
};

// Counts the faults of one server and reports them within the limit.
class FaultLog {
 public:
  explicit FaultLog(std::function<void(const ServerReport&)> report) : report_(std::move(report)) {}

  // `exception`: of handler_exception.
  void add(ServerFault fault, std::error_code error, const Address& peer,
           const std::exception_ptr& exception = nullptr) noexcept;
  std::uint64_t count(ServerFault fault) const noexcept {
    return counts_[static_cast<std::size_t>(fault)].load(std::memory_order_relaxed);
  }

 private:
  std::function<void(const ServerReport&)> report_;
  std::array<std::atomic<std::uint64_t>, kServerFaults> counts_{};
  std::array<ReportLimit, kServerFaults> limits_;
};

}  // namespace runloom::net
