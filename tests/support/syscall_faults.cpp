#include "support/syscall_faults.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>

#include "runloom/sched/park.hpp"

namespace runloom::test {
namespace {

struct Plan {
  std::atomic<long> calls{0};
  std::atomic<long> first{0};  // the count of the first call to fail; 0: none
  std::atomic<long> last{0};
  std::atomic<int> err{0};
  std::atomic<int> failed{0};
  std::atomic<bool> hold{false};
  std::atomic<int> held{0};
};
constinit Plan plans[kCalls];

Plan& plan_of(Call call) {
  return plans[static_cast<int>(call)];
}

}  // namespace

bool fails(Call call) {
  Plan& plan = plan_of(call);
  const long count = plan.calls.fetch_add(1) + 1;
  const long first = plan.first.load();
  const bool fail = first != 0 && count >= first && count <= plan.last.load();
  if (plan.hold.load() && !detail::on_fiber()) {
    plan.held.fetch_add(1);
    plan.hold.wait(true);
    plan.held.fetch_sub(1);
  }
  if (!fail) return false;
  plan.failed.fetch_add(1);
  errno = plan.err.load();
  return true;
}

Fault::Fault(Call call, int err, int from, int count) : call_(call) {
  Plan& plan = plan_of(call);
  plan.err = err;
  plan.failed = 0;
  const long now = plan.calls.load();
  plan.last = now + from + count - 1;
  plan.first = now + from;
}
Fault::~Fault() {
  plan_of(call_).first = 0;
}
int Fault::failed() const {
  return plan_of(call_).failed.load();
}

Hold::Hold(Call call) : call_(call) {
  plan_of(call).hold = true;
}
void Hold::release() {
  Plan& plan = plan_of(call_);
  plan.hold = false;
  plan.hold.notify_all();
}
int Hold::held() const {
  return plan_of(call_).held.load();
}

long calls(Call call) {
  if (!uring_wrapped) return 0;
  return plan_of(call).calls.load();
}

}  // namespace runloom::test

// The wrappers take the place of the C library's functions in this executable.
#define RUNLOOM_WRAP(name, parameters, arguments)                                               \
  extern "C"                                                                                    \
      __attribute__((visibility("default"))) auto name parameters->decltype(::name arguments) { \
    static auto* const next =                                                                   \
        ::runloom::test::next_of<decltype(::name arguments) parameters>(#name);                 \
    if (::runloom::test::fails(::runloom::test::Call::name)) return -1;                         \
    return next arguments;                                                                      \
  }

// NOLINTBEGIN
RUNLOOM_WRAP(accept4, (int fd, sockaddr* address, socklen_t* size, int flags),
             (fd, address, size, flags))
RUNLOOM_WRAP(connect, (int fd, const sockaddr* address, socklen_t size), (fd, address, size))
RUNLOOM_WRAP(recv, (int fd, void* buffer, size_t size, int flags), (fd, buffer, size, flags))
RUNLOOM_WRAP(send, (int fd, const void* data, size_t size, int flags), (fd, data, size, flags))
RUNLOOM_WRAP(recvmsg, (int fd, msghdr* message, int flags), (fd, message, flags))
RUNLOOM_WRAP(sendmsg, (int fd, const msghdr* message, int flags), (fd, message, flags))
RUNLOOM_WRAP(recvmmsg, (int fd, mmsghdr* messages, unsigned count, int flags, timespec* timeout),
             (fd, messages, count, flags, timeout))
RUNLOOM_WRAP(sendmmsg, (int fd, mmsghdr* messages, unsigned count, int flags),
             (fd, messages, count, flags))
RUNLOOM_WRAP(socket, (int family, int type, int protocol), (family, type, protocol))
RUNLOOM_WRAP(bind, (int fd, const sockaddr* address, socklen_t size), (fd, address, size))
RUNLOOM_WRAP(setsockopt, (int fd, int level, int name, const void* value, socklen_t size),
             (fd, level, name, value, size))
RUNLOOM_WRAP(epoll_create1, (int flags), (flags))
RUNLOOM_WRAP(epoll_ctl, (int epoll, int op, int fd, epoll_event* event), (epoll, op, fd, event))
RUNLOOM_WRAP(epoll_wait, (int epoll, epoll_event* events, int count, int timeout),
             (epoll, events, count, timeout))
RUNLOOM_WRAP(eventfd, (unsigned value, int flags), (value, flags))
RUNLOOM_WRAP(ppoll,
             (pollfd * requests, nfds_t count, const timespec* timeout, const sigset_t* mask),
             (requests, count, timeout, mask))
RUNLOOM_WRAP(socketpair, (int family, int type, int protocol, int* ends),
             (family, type, protocol, ends))
RUNLOOM_WRAP(listen, (int fd, int backlog), (fd, backlog))
extern "C" __attribute__((visibility("default"))) int open(const char* path, int flags, ...) {
  static auto* const next = ::runloom::test::next_of<int(const char*, int, ...)>("open");
  if (::runloom::test::fails(::runloom::test::Call::open)) return -1;
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & (O_CREAT | __O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return next(path, flags, mode);
}
RUNLOOM_WRAP(fchmod, (int fd, mode_t mode), (fd, mode))
RUNLOOM_WRAP(chmod, (const char* path, mode_t mode), (path, mode))
RUNLOOM_WRAP(unlink, (const char* path), (path))
RUNLOOM_WRAP(flock, (int fd, int operation), (fd, operation))
RUNLOOM_WRAP(pipe2, (int* ends, int flags), (ends, flags))
RUNLOOM_WRAP(dup3, (int from, int to, int flags), (from, to, flags))
RUNLOOM_WRAP(close, (int fd), (fd))
RUNLOOM_WRAP(preadv2, (int fd, const iovec* buffers, int count, off_t offset, int flags),
             (fd, buffers, count, offset, flags))
RUNLOOM_WRAP(pwritev2, (int fd, const iovec* buffers, int count, off_t offset, int flags),
             (fd, buffers, count, offset, flags))
RUNLOOM_WRAP(fsync, (int fd), (fd))
RUNLOOM_WRAP(fdatasync, (int fd), (fd))
RUNLOOM_WRAP(fallocate, (int fd, int mode, off_t offset, off_t size), (fd, mode, offset, size))
RUNLOOM_WRAP(ftruncate, (int fd, off_t size), (fd, size))
RUNLOOM_WRAP(statx, (int fd, const char* path, int flags, unsigned mask, struct statx* status),
             (fd, path, flags, mask, status))
RUNLOOM_WRAP(fstat, (int fd, struct stat* status), (fd, status))
RUNLOOM_WRAP(rename, (const char* from, const char* to), (from, to))
RUNLOOM_WRAP(unlinkat, (int fd, const char* path, int flags), (fd, path, flags))
RUNLOOM_WRAP(mkdir, (const char* path, mode_t mode), (path, mode))
RUNLOOM_WRAP(copy_file_range,
             (int from, off_t* from_offset, int to, off_t* to_offset, size_t size, unsigned flags),
             (from, from_offset, to, to_offset, size, flags))
RUNLOOM_WRAP(splice,
             (int from, off_t* from_offset, int to, off_t* to_offset, size_t size, unsigned flags),
             (from, from_offset, to, to_offset, size, flags))
RUNLOOM_WRAP(sendfile, (int to, int from, off_t* offset, size_t size), (to, from, offset, size))

// Those with an argument that may be missing.
extern "C" __attribute__((visibility("default"))) int openat(int fd, const char* path, int flags,
                                                             ...) {
  static auto* const next = ::runloom::test::next_of<int(int, const char*, int, mode_t)>("openat");
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode =
      (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  if (::runloom::test::fails(::runloom::test::Call::openat)) return -1;
  return next(fd, path, flags, mode);
}
extern "C" __attribute__((visibility("default"))) int fcntl(int fd, int command, ...) {
  static auto* const next = ::runloom::test::next_of<int(int, int, void*)>("fcntl");
  va_list arguments;
  va_start(arguments, command);
  void* const argument = va_arg(arguments, void*);
  va_end(arguments);
  if (::runloom::test::fails(::runloom::test::Call::fcntl)) return -1;
  return next(fd, command, argument);
}
// NOLINTEND
