// Transfers on plain descriptor numbers, such as a socket that another library made. They park the
// fiber (on an OS thread: block) until the transfer is possible, and are cancel points; outcomes
// by precedence: bytes moved > closed > cancelled > timed out.
//
// A descriptor that no live net object owns is left as it is: its flags are not changed, and it is
// registered with the poller only while a call waits on it. Where neither MSG_DONTWAIT nor
// RWF_NOWAIT keeps the kernel from blocking (terminals, files that are not in memory) the transfer
// runs on the blocking pool; a FIFO is opened anew for it. Files are read and written whole, fewer
// bytes only as File::read_at says (file.hpp). A number that a net object owns is used through that
// object, in turn with its other users.
//
// The caller keeps the number open during the call. Every wait looks at the number afresh, so
// one that is closed meanwhile ends with EBADF only at the next look.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>

#include "runloom/sched/deadline.hpp"
#include "runloom/sched/result.hpp"

namespace runloom::net {

// read(2) and write(2), one transfer. A read of 0 bytes is the end.
Result<std::size_t> fd_read(int fd, std::span<std::byte> buffer, Deadline deadline = {});
Result<std::size_t> fd_write(int fd, std::span<const std::byte> data, Deadline deadline = {});
// pread(2) and pwrite(2) of a file that somebody else opened, see File::read_at. ESPIPE for what
// has no position.
Result<std::size_t> fd_read_at(int fd, std::span<std::byte> buffer, off_t offset,
                               Deadline deadline = {});
Result<std::size_t> fd_write_at(int fd, std::span<const std::byte> data, off_t offset,
                                Deadline deadline = {});
// Writes all of it. The deadline bounds the whole call; `bytes_written` is set whatever the
// outcome.
Result<void> fd_write_all(int fd, std::span<const std::byte> data, Deadline deadline = {},
                          std::size_t* bytes_written = nullptr);

// recv(2) and send(2), one transfer. With MSG_DONTWAIT they never park: EAGAIN.
Result<std::size_t> fd_recv(int fd, std::span<std::byte> buffer, int flags = 0,
                            Deadline deadline = {});
Result<std::size_t> fd_send(int fd, std::span<const std::byte> data, int flags = 0,
                            Deadline deadline = {});
Result<void> fd_send_all(int fd, std::span<const std::byte> data, int flags = 0,
                         Deadline deadline = {}, std::size_t* bytes_sent = nullptr);

}  // namespace runloom::net
