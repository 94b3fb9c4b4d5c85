// The seam between streams and the kernel: one operation, whole, with one outcome. For authors of
// net types and of backends.
//
// A backend (epoll, poll, io_uring, a simulated one) implements Netpoll, one object a hub. The
// seam is the operation and not the readiness, because a readiness backend does call, EAGAIN,
// park, call again, while a completion backend submits, parks, and reaps. Contract of every
// operation, on every backend:
//
// 1. It returns only when the kernel can no longer touch the buffers; they may lie on the
//    fiber's stack.
// 2. Exactly one outcome, by precedence: bytes moved > closed > cancelled > timed out. A send
//    that moved k bytes returns k. An accepted descriptor that loses a race is closed.
// 3. Deadline, cancel and close do the same thing: mark, stop the operation, wait for its end.
// 4. A deadline that has passed still makes one attempt that does not wait.
//
// Whose job is what: the caller (Fd) holds a reference to the PollDesc, and the lock of the
// direction, so a backend sees at most one operation a direction (accept and connect count as
// read and write) besides any number of poll_desc. Close marks the PollDesc, wakes who is parked in
// it, and tells its home, from any thread; the descriptor is closed when the last reference goes.
// A backend with something in flight in the kernel that no operation waits for holds a reference
// of its own.
//
// An operation runs on the Netpoll of the hub that calls it, whichever hub the PollDesc is
// registered with. Registration is lazy: the first wait registers with the waiter's hub, its home;
// a fiber of another hub parks there with itself as waiter, and if that hub belongs to another
// scheduler, which may stop running, its own hub watches the descriptor besides.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "runloom/net/fd.hpp"
#include "runloom/sched/deadline.hpp"
#include "runloom/sched/driver.hpp"
#include "runloom/sched/park.hpp"
#include "runloom/sched/result.hpp"

namespace runloom::net {

struct PollDesc;

class ThreadWake;
class Uring;

// What a watcher waits for, and what it found: the `data` of its WaitNode. A watcher waits for
// readiness beside the operations; it is claimed with its node's own code, however it ends.
struct Watch {
  unsigned directions;
  unsigned ready = 0;                             // set before the wake
  detail::WakeCode ended = detail::kWakePending;  // or why it ended without being ready
  ThreadWake* thread = nullptr;  // of an OS thread that waits in poll(2): signalled, then scheduled
  void* operation = nullptr;     // the backend's own
};

class Netpoll : public Driver {
 public:
  // The backend for the calling fiber: its hub's, installed as the hub's driver on first use. Off
  // a fiber: one that blocks the thread in poll(2). Fails when its descriptors can't be made.
  static Result<Netpoll*> current();
  // "epoll", "poll", "io_uring", "thread", "sim".
  virtual std::string_view name() const noexcept = 0;

  virtual Result<std::size_t> recv(PollDesc& desc, std::span<std::byte> buffer, int flags,
                                   Deadline deadline) = 0;
  // As recv without flags. The memory is not held across a wait. By default: waits by poll_desc.
  virtual Result<std::size_t> recv_late(PollDesc& desc, RecvBuffer& buffer, Deadline deadline);
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
  // Descriptors that are no sockets (pipes, terminals, eventfds).
  virtual Result<std::size_t> read(PollDesc& desc, std::span<std::byte> buffer,
                                   Deadline deadline) = 0;
  virtual Result<std::size_t> write(PollDesc& desc, std::span<const std::byte> data,
                                    Deadline deadline) = 0;
  // Any other transfer of one direction, see Fd::attempt. By default: waits by poll_desc.
  virtual Result<std::size_t> attempt(PollDesc& desc, unsigned direction, Attempt& attempt,
                                      int flags, Deadline deadline);
  virtual Result<void> shutdown(PollDesc& desc, int how) = 0;
  // Waits until one of `directions` would not block (an error or hang-up counts for both);
  // returns the ready ones.
  virtual Result<unsigned> poll_desc(PollDesc& desc, unsigned directions, Deadline deadline) = 0;
  // Readiness of a descriptor that is not ours: one-shot, its flags untouched.
  virtual Result<unsigned> poll_foreign(int fd, unsigned directions, Deadline deadline) = 0;

  // For select: adds a watcher, whose node the caller has opened a wait for, and takes it away when
  // the wait is over. Events from link() on reach it; what was ready before does not. By default:
  // ENOTSUP.
  virtual Result<void> link(PollDesc& desc, detail::WaitNode& node);
  virtual void unlink(PollDesc& desc, detail::WaitNode& node) noexcept;
  virtual Result<void> link_foreign(int fd, detail::WaitNode& node);
  virtual void unlink_foreign(int fd, detail::WaitNode& node) noexcept;

  // A descriptor of a layer above that poll() watches besides, one at most: the pipe that a
  // language runtime's signal handler writes to. When it can be read, poll() calls `ready`, which
  // must read it, on the hub's thread in the hub's own context. It keeps no run alive. fd -1: none
  // any more. Only on the hub's thread. A fork forgets it.
  struct Watcher {
    int fd = -1;
    void (*ready)(void* arg) = nullptr;
    void* arg = nullptr;
  };
  virtual Result<void> watch(const Watcher& watcher);

  // The ring for operations on files, on the hub's thread; null: it has none.
  virtual Uring* file_ring() noexcept { return nullptr; }

 protected:
  Netpoll() noexcept;
};

// Makes a backend for the calling hub: the one that RUNLOOM_NETPOLL names (io_uring, epoll, poll),
// else epoll. As Options::make_driver, or later by Netpoll::current(). Where the kernel refuses
// io_uring, or lacks what the backend needs, it is epoll, and stderr says so once.
Result<std::unique_ptr<Netpoll>> make_netpoll();
// Why epoll was taken instead of the backend that was asked for; empty: it wasn't.
std::string netpoll_fallback();
// io_uring, and epoll in its place where it has to be.
Result<std::unique_ptr<Netpoll>> make_uring_or_epoll_netpoll();
// The three by themselves, for tests and measurements.
Result<std::unique_ptr<Netpoll>> make_uring_netpoll();
Result<std::unique_ptr<Netpoll>> make_epoll_netpoll();
Result<std::unique_ptr<Netpoll>> make_poll_netpoll();

// Parks (on an OS thread: blocks) until `fd`, any descriptor, is ready for `events` (kRead |
// kWrite); the ready bits, or 0 when the deadline passed. A cancel point. A number that belongs to
// a live net object parks there. Fails with cancelled, EBADF for a bad descriptor, EPERM for a
// regular file or directory, Errc::closed when it is closed through runloom meanwhile.
Result<unsigned> wait_fd(int fd, unsigned events, Deadline deadline = {});

// Wakes every fiber that waits on the number `fd` now, with Errc::closed or Errc::cancelled;
// returns how many. For whoever closes a descriptor that runloom does not own. Any thread.
// Operations of a completion backend, and OS threads that wait on such a descriptor, are not
// reached.
std::size_t end_waits(int fd, Errc error);

// Descriptors that live objects of the process own.
std::size_t live_descriptors() noexcept;

}  // namespace runloom::net
