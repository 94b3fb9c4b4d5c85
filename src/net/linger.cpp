#include "runloom/net/linger.hpp"

#include <algorithm>
#include <array>

#include "runloom/sched/deadline.hpp"

namespace runloom::net {

void close_lingering(Stream& stream, const LingerLimits& limits) {
  const Deadline deadline = Deadline::after(limits.time);
  if (stream.shutdown_write()) {
    std::array<std::byte, 8 * 1024> waste;
    for (std::size_t left = limits.bytes; left > 0;) {
      const std::size_t room = std::min(left, waste.size());
      const auto count = stream.read_some(std::span(waste).first(room), deadline);
      if (!count || *count == 0) break;
      left -= *count;
    }
  }
  stream.close();
}

}  // namespace runloom::net
