// The seam between streams and the kernel: one operation, whole, with one outcome. For authors of
// net types and of backends.
//
// A backend (epoll, poll, io_uring, a simulated one) implements Netpoll. The seam is the
// operation and not the readiness, because a readiness backend does call, EAGAIN, park, call
// again, while a completion backend submits, parks, and reaps. Contract of every operation, on
// every backend:
//
// 1. It returns only when the kernel can no longer touch the buffers; they may lie on the
//    fiber's stack.
// 2. Exactly one outcome, by precedence: bytes moved > closed > cancelled > timed out. A send
//    that moved k bytes returns k. An accepted descriptor that loses a race is closed.
// 3. Deadline, cancel and close do the same thing: mark, stop the operation, wait for its end.
// 4. A deadline that has passed still makes one attempt that does not wait.
//
// An operation may be called from any hub, and from an OS thread that is no hub (it blocks). The
// PollDesc is registered with the hub that adopted it (its home); a fiber of another hub parks at
// home with itself as waiter.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "runloom/sched/deadline.hpp"
#include "runloom/sched/driver.hpp"
#include "runloom/sched/park.hpp"
#include "runloom/sched/result.hpp"

namespace runloom::net {

struct PollDesc;

// Directions and conditions, as bits. The values of `wait_fd`: 1 read, 2 write.
enum : unsigned { kRead = 1, kWrite = 2 };

class Netpoll : public Driver {
 public:
  // The calling hub's backend, installed as its driver on first use: the one that
  // RUNLOOM_NETPOLL names (epoll, poll), else epoll. Fails when its descriptors can't be made.
  static Result<Netpoll*> current();
  // "epoll", "poll", "io_uring", "sim".
  virtual std::string_view name() const noexcept = 0;

  // Takes a non-blocking descriptor under this backend. Only on its hub's thread.
  virtual Result<void> attach(PollDesc& desc) = 0;
  // Ends every operation on `desc` with Errc::closed and forgets it; parks until none is in
  // flight. Called once, from any thread, before the descriptor is closed.
  virtual void detach(PollDesc& desc) noexcept = 0;

  virtual Result<std::size_t> recv(PollDesc& desc, std::span<std::byte> buffer, int flags,
                                   Deadline deadline) = 0;
  virtual Result<std::size_t> send(PollDesc& desc, std::span<const std::byte> data, int flags,
                                   Deadline deadline) = 0;
  virtual Result<std::size_t> recvmsg(PollDesc& desc, msghdr& message, int flags,
                                      Deadline deadline) = 0;
  virtual Result<std::size_t> sendmsg(PollDesc& desc, const msghdr& message, int flags,
                                      Deadline deadline) = 0;
  // A non-blocking, close-on-exec descriptor.
  virtual Result<int> accept(PollDesc& desc, sockaddr* peer, socklen_t* peer_size,
                             Deadline deadline) = 0;
  virtual Result<void> connect(PollDesc& desc, const sockaddr* peer, socklen_t peer_size,
                               Deadline deadline) = 0;
  // Descriptors that are no sockets (pipes, ttys, eventfds).
  virtual Result<std::size_t> read(PollDesc& desc, std::span<std::byte> buffer,
                                   Deadline deadline) = 0;
  virtual Result<std::size_t> write(PollDesc& desc, std::span<const std::byte> data,
                                    Deadline deadline) = 0;
  // Waits until one of `directions` would not block (an error or hang-up counts for both);
  // returns the ready ones.
  virtual Result<unsigned> poll_desc(PollDesc& desc, unsigned directions, Deadline deadline) = 0;
  // Readiness of a descriptor that is not ours: one-shot, level-triggered, its flags untouched.
  virtual Result<unsigned> poll_foreign(int fd, unsigned directions, Deadline deadline) = 0;
};

// wait_fd of the reference: parks until `fd` is ready for `events` (kRead | kWrite); the ready
// bits, or 0 when the deadline passed. A number that belongs to a live net object parks there.
// EBADF for a bad descriptor, EPERM for a regular file or directory, Errc::closed when it is
// closed through runloom meanwhile.
Result<unsigned> wait_fd(int fd, unsigned events, Deadline deadline = {});

}  // namespace runloom::net
