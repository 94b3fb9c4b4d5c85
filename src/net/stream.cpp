#include "runloom/net/stream.hpp"

#include <array>
#include <chrono>

#include "runloom/net/fd.hpp"
#include "runloom/sched/cancel.hpp"

namespace runloom::net {

Result<std::size_t> Stream::read_late(RecvBuffer& buffer, Deadline deadline) {
  for (;;) {
    if (auto ready = wait_readable(deadline); !ready) return Unexpected{ready.error()};
    const std::span<std::byte> memory = buffer.take();
    if (memory.empty()) return fail_errno(ENOMEM);
    // Without a wait, so that nobody else runs until the memory is given back. What was readable
    // may be gone, or be the part of a message that can't be read yet.
    auto count = read_some(memory, Deadline::now());
    buffer.give_back(count ? static_cast<std::ptrdiff_t>(*count) : -1);
    if (count || count.error() != Errc::timed_out || deadline.passed()) return count;
  }
}

Result<void> Stream::writev_all(std::span<const iovec> buffers, Deadline deadline,
                                std::size_t* bytes_written) {
  std::size_t total = 0;
  Result<void> result;
  for (const iovec& buffer : buffers) {
    std::size_t written = 0;
    result = write_all({static_cast<const std::byte*>(buffer.iov_base), buffer.iov_len}, deadline,
                       &written);
    total += written;
    if (!result) break;
  }
  if (bytes_written) *bytes_written = total;
  return result;
}

Result<void> Stream::write_all(std::span<const std::byte> data, Deadline deadline,
                               std::size_t* bytes_written) {
  std::size_t written = 0;
  Result<void> result;
  while (written < data.size()) {
    // Each transfer makes an attempt even past the deadline; the whole must not go on for ever.
    if (written != 0 && deadline.passed()) {
      result = fail(Errc::timed_out);
      break;
    }
    const auto count = write_some(data.subspan(written), deadline);
    if (!count) {
      result = Unexpected{count.error()};
      break;
    }
    written += *count;
  }
  if (bytes_written) *bytes_written = written;
  return result;
}

Result<std::size_t> Stream::read_full(std::span<std::byte> buffer, Deadline deadline,
                                      std::size_t* bytes_read) {
  std::size_t filled = 0;
  std::error_code error;
  while (filled < buffer.size()) {
    if (filled != 0 && deadline.passed()) {
      error = make_error_code(Errc::timed_out);
      break;
    }
    const auto count = read_some(buffer.subspan(filled), deadline);
    if (!count) error = count.error();
    if (!count || *count == 0) break;
    filled += *count;
  }
  if (bytes_read) *bytes_read = filled;
  if (error) return Unexpected{error};
  return filled;
}

void lingering_close(Stream& stream, LingerLimits limits) noexcept {
  if (limits.deadline.is_never()) limits.deadline = Deadline::after(std::chrono::seconds(5));
  std::array<std::byte, 4096> dropped;
  // A stream that has something to send before its end may have to wait for that.
  const CancelScope bound(limits.deadline);
  if (stream.shutdown_write()) {
    for (std::size_t total = 0; total < limits.bytes && !limits.deadline.passed();) {
      const auto count = stream.read_some(dropped, limits.deadline);
      if (!count || *count == 0) break;
      total += *count;
    }
  }
  stream.close();
}

}  // namespace runloom::net
