// close_lingering: ends a stream so that the peer can read what we wrote last.
//
// A server that answers early (a request that is too large, a method that it does not know) and
// then closes while the client still sends makes the kernel answer the next segment with a
// reset, and the reset throws away the reply that the client has not read yet. So our direction
// is ended first, what still comes is thrown away for a while, and only then the stream is
// closed.
#pragma once

#include <chrono>
#include <cstddef>

#include "runloom/net/stream.hpp"

namespace runloom::net {

// What a peer that never stops sending may cost.
struct LingerLimits {
  std::size_t bytes = 64 * 1024 * 1024;
  std::chrono::milliseconds time{5000};
};

// Shuts our direction down, discards until the peer ends its own, a limit is reached or an error
// comes, and closes. Parks; a cancelled fiber closes at once.
void close_lingering(Stream& stream, const LingerLimits& limits = {});

}  // namespace runloom::net
