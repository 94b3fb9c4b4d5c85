// Servers: in which order the name servers are asked. One that was silent while a question waited,
// or that could not be reached, goes to the end for a while (D20); c-ares 1.18 has no such memory.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <mutex>
#include <vector>

#include "runloom/net/address.hpp"

namespace runloom::dns {

class Servers {
 public:
  // Any thread, all of it. `now` in nanoseconds.
  explicit Servers(std::chrono::nanoseconds dead_for) noexcept : dead_ns_(dead_for.count()) {}

  // The servers in the order to ask them, and a number that changes with it.
  struct Order {
    std::vector<net::Address> servers;
    std::uint64_t version = 0;
  };
  Order order(const std::vector<net::Address>& configured, std::int64_t now);
  // Whether an order() of this version still holds. Cheap.
  bool holds(std::uint64_t version, std::int64_t now) const noexcept;

  void silent(const net::Address& server, std::int64_t now);
  void answered(const net::Address& server);
  std::vector<net::Address> dead(std::int64_t now) const;

 private:
  struct Dead {
    net::Address server;
    std::int64_t until;
  };
  void expire(std::int64_t now);

  const std::int64_t dead_ns_;
  std::atomic<std::uint64_t> version_{1};
  std::atomic<std::int64_t> next_expiry_{std::numeric_limits<std::int64_t>::max()};
  mutable std::mutex mutex_;
  std::vector<Dead> dead_;  // guarded by mutex_; at most a few
};

}  // namespace runloom::dns
