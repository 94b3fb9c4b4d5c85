// What a server counts. Relaxed: each number is right by itself, and none orders anything.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "runloom/net/server_options.hpp"

namespace runloom::net {

struct ServerCounters {
  using Count = std::atomic<std::uint64_t>;
  static void add(Count& count) noexcept { count.fetch_add(1, std::memory_order_relaxed); }
  void add(ServerTimeout which) noexcept { add(timeouts[static_cast<std::size_t>(which)]); }

  Count accepted{0};
  Count active{0};
  Count rejected{0};
  Count cancelled{0};
  Count rejected_peers{0};
  Count untrusted{0};
  Count proxied{0};
  Count handshakes{0};
  Count lingered{0};
  Count taken_at_stop{0};
  Count closed_at_stop{0};
  std::array<Count, kServerTimeouts> timeouts{};
};

}  // namespace runloom::net
