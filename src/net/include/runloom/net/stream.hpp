// Stream: a connected byte stream. TCP, Unix and pipe streams implement it, and protocols that
// stack on one (TLS) both take and give it.
//
// All calls but close() may park the fiber (or block the OS thread) and are cancel points; any
// fiber and any OS thread may make them. One reader and one writer use a stream at the same time,
// further ones queue in order. Every call ends in one outcome, by precedence: bytes moved >
// closed > cancelled > timed out.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <span>
#include <string_view>

#include "runloom/sched/deadline.hpp"
#include "runloom/sched/result.hpp"

namespace runloom::net {

class RecvBuffer;

class Stream {
 public:
  virtual ~Stream() = default;

  // One transfer: waits until at least one byte is there, returns how many were read into
  // `buffer`; 0 is the end of the stream (and the answer to an empty buffer).
  virtual Result<std::size_t> read_some(std::span<std::byte> buffer, Deadline deadline = {}) = 0;
  // As read_some, but takes the memory only when something may be there, so that a wait holds
  // none. ENOMEM when there is none. See fd.hpp.
  virtual Result<std::size_t> read_late(RecvBuffer& buffer, Deadline deadline = {});
  // One transfer: returns how many bytes the stream took, at least one unless `data` is empty.
  virtual Result<std::size_t> write_some(std::span<const std::byte> data,
                                         Deadline deadline = {}) = 0;
  // Write the data, or the buffers in order, whole. The deadline bounds the whole call. When it
  // fails a part was sent, which `bytes_written` tells. Without it a stream that was cut off by a
  // deadline or a cancel in the middle of a message takes no more writes (EPIPE).
  virtual Result<void> write_all(std::span<const std::byte> data, Deadline deadline = {},
                                 std::size_t* bytes_written = nullptr);
  virtual Result<void> writev_all(std::span<const iovec> buffers, Deadline deadline = {},
                                  std::size_t* bytes_written = nullptr);
  // Waits until read_some would not park: bytes, the end, or an error is there. Holds no buffer
  // meanwhile.
  virtual Result<void> wait_readable(Deadline deadline = {}) = 0;
  // Ends our direction; the peer reads the end of the stream. What was written arrives first.
  virtual Result<void> shutdown_write() = 0;
  // Wakes every fiber that waits on the stream with Errc::closed and releases it. Idempotent,
  // doesn't park.
  virtual void close() noexcept = 0;

  // Fills `buffer`; fewer bytes only at the end of the stream: returns how many. The deadline
  // bounds the whole call. When it fails, `bytes_read` tells how many had come.
  Result<std::size_t> read_full(std::span<std::byte> buffer, Deadline deadline = {},
                                std::size_t* bytes_read = nullptr);
};

struct LingerLimits {
  Deadline deadline{};              // 5 s from now when there is none
  std::size_t bytes = 1024 * 1024;  // most bytes to take from the peer
};
// Ends a stream whose peer may still be sending, so that it can read what we wrote: ends our
// direction, reads and drops what comes until the peer ends its own, or a limit is reached, then
// closes. A plain close with unread bytes resets the connection, and the peer may lose our last
// words. Parks.
void lingering_close(Stream& stream, LingerLimits limits = {}) noexcept;

// Text as bytes.
inline std::span<const std::byte> bytes(std::string_view text) noexcept {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace runloom::net
