// Reads and writes of files, whoever owns them: on the calling thread as far as that does not wait
// for a device, the rest by the engine.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <span>

#include "file_state.hpp"
#include "runloom/sched/deadline.hpp"
#include "runloom/sched/result.hpp"

namespace runloom::net {

struct FileTarget {
  int fd;
  FileWays& ways;
  const FileUse* use = nullptr;  // null: the caller keeps the number open
};

// Fill the buffers in order, resp. write them out, from `offset` on (-1: at the position of the
// descriptor, which nobody else may use meanwhile). Fewer bytes only where read(2) or write(2)
// gives fewer: at the end of the file, when the device is full, when a cancel, the deadline or an
// error ends it after some bytes.
Result<std::size_t> read_file(const FileTarget& target, std::span<const iovec> buffers,
                              off_t offset, Deadline deadline);
Result<std::size_t> write_file(const FileTarget& target, std::span<const iovec> buffers,
                               off_t offset, Deadline deadline);

// One transfer that does not wait: what preadv2 (pwritev2) returns, EAGAIN when it would.
ssize_t transfer_now(bool write, const FileTarget& target, std::span<const iovec> buffers,
                     off_t offset) noexcept;

// A transfer of at most so many bytes is made at once.
inline constexpr std::size_t kWholeHere = 256 * 1024;
// After each transfer that did not wait: lets others run when there were many in a row.
void take_turns(std::size_t bytes) noexcept;

}  // namespace runloom::net
