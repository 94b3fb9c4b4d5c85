// copy(): moves a stream's bytes into another one, or back into itself. The heart of a proxy.
#pragma once

#include <chrono>
#include <cstdint>

#include "runloom/net/stream.hpp"

namespace runloom::net {

struct CopyOptions {
  Deadline deadline{};  // of the whole call
  // The longest that nothing may move, neither read nor written; 0: any time.
  std::chrono::nanoseconds idle{0};
};

// Writes to `to` all that `from` brings, until its end; returns how many bytes. The end is not
// passed on: call to.shutdown_write(). A slow receiver holds up its sender: nothing piles up here.
//
// A copy that waits for bytes holds no buffer; it takes one of 64 KiB from its hub's when there is
// something to read, until the receiver has it.
//
// Parks; a cancel point. Errors: of the read or the write; Errc::timed_out, Errc::cancelled.
// `bytes_copied` tells, also after a failure, how many `to` took.
Result<std::uint64_t> copy(Stream& from, Stream& to, const CopyOptions& options = {},
                           std::uint64_t* bytes_copied = nullptr);

}  // namespace runloom::net
