// What a resolver counts: written by any hub, read by stats().
#pragma once

#include <atomic>
#include <cstdint>

namespace runloom::dns {

class Counter {
 public:
  void add(std::uint64_t count = 1) noexcept { value_.fetch_add(count, std::memory_order_relaxed); }
  void sub(std::uint64_t count = 1) noexcept { value_.fetch_sub(count, std::memory_order_relaxed); }
  std::uint64_t get() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

struct Counters {
  Counter lookups, numeric, from_files, from_cache, queries, coalesced, timeouts, tcp_connections,
      dropped, failed, in_flight, reloads, system_calls;
};

}  // namespace runloom::dns
