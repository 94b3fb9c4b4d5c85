// One transfer on a descriptor that belongs to somebody else: its flags are never changed, and the
// wait is one-shot. Parks the fiber; outside of fibers blocks the thread.
#pragma once

#include <cstddef>
#include <span>

#include "runloom/net/fd.hpp"

namespace runloom::python {

// recv(2) and send(2). `buffer` is asked for memory only when something may be there.
Result<std::size_t> foreign_recv(int fd, net::RecvBuffer& buffer, int flags);
Result<std::size_t> foreign_send(int fd, std::span<const std::byte> data, int flags);
// read(2) and write(2): also pipes, terminals and files.
Result<std::size_t> foreign_read(int fd, net::RecvBuffer& buffer);
Result<std::size_t> foreign_write(int fd, std::span<const std::byte> data);

}  // namespace runloom::python
