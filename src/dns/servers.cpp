#include "servers.hpp"

#include <algorithm>

namespace runloom::dns {

bool Servers::holds(std::uint64_t version, std::int64_t now) const noexcept {
  return version == version_.load(std::memory_order_relaxed) &&
         now < next_expiry_.load(std::memory_order_relaxed);
}

// With mutex_ held.
void Servers::expire(std::int64_t now) {
  const auto gone = std::erase_if(dead_, [now](const Dead& dead) { return dead.until <= now; });
  if (gone > 0) version_.fetch_add(1, std::memory_order_relaxed);
  std::int64_t next = std::numeric_limits<std::int64_t>::max();
  for (const Dead& dead : dead_)
    next = std::min(next, dead.until);
  next_expiry_.store(next, std::memory_order_relaxed);
}

Servers::Order Servers::order(const std::vector<net::Address>& configured, std::int64_t now) {
  std::lock_guard hold(mutex_);
  expire(now);
  Order out;
  out.version = version_.load(std::memory_order_relaxed);
  out.servers = configured;
  const auto is_alive = [&](const net::Address& server) {
    return std::none_of(dead_.begin(), dead_.end(),
                        [&](const Dead& dead) { return dead.server == server; });
  };
  std::stable_partition(out.servers.begin(), out.servers.end(), is_alive);
  return out;
}

void Servers::silent(const net::Address& server, std::int64_t now) {
  std::lock_guard hold(mutex_);
  const auto it = std::find_if(dead_.begin(), dead_.end(),
                               [&](const Dead& dead) { return dead.server == server; });
  if (it != dead_.end()) {
    it->until = now + dead_ns_;
  } else {
    dead_.push_back({server, now + dead_ns_});
    version_.fetch_add(1, std::memory_order_relaxed);
  }
  expire(now);
}

void Servers::answered(const net::Address& server) {
  if (next_expiry_.load(std::memory_order_relaxed) == std::numeric_limits<std::int64_t>::max())
    return;  // none is dead
  std::lock_guard hold(mutex_);
  const auto gone = std::erase_if(dead_, [&](const Dead& dead) { return dead.server == server; });
  if (gone > 0) version_.fetch_add(1, std::memory_order_relaxed);
}

std::vector<net::Address> Servers::dead(std::int64_t now) const {
  std::lock_guard hold(mutex_);
  std::vector<net::Address> out;
  for (const Dead& dead : dead_)
    if (dead.until > now) out.push_back(dead.server);
  return out;
}

}  // namespace runloom::dns
