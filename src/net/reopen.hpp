// An open file description of our own for a descriptor that others share.
#pragma once

#include "runloom/net/owned_fd.hpp"
#include "runloom/sched/result.hpp"

namespace runloom::net {

// Opens what `fd` refers to once more, non-blocking and close-on-exec, for reading or for writing
// (O_RDONLY, O_WRONLY). O_NONBLOCK belongs to the description, which a shell and all that it starts
// share with us: set on the shared one, `cat` in the next line of a script fails with EAGAIN.
//
// Fails where that gives no second description of the same thing: sockets (ENXIO), pipes of another
// user (EACCES), a FIFO whose other end is gone (ENXIO), no /proc (ENOENT). A regular file gives
// one with a position of its own, which is not what its sharers mean: don't ask for it.
Result<OwnedFd> reopen(int fd, int access);

}  // namespace runloom::net
