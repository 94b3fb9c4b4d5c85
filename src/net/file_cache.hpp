// Whether a part of a file is in memory, for calls that can't be told not to wait (sendfile,
// splice).
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace runloom::net {

// True: reading it does not wait for a device, unless memory runs short this very moment. False:
// it would, or nobody knows (a kernel before 6.5, a file of somebody else).
bool is_cached(int fd, off_t offset, std::size_t size) noexcept;

}  // namespace runloom::net
