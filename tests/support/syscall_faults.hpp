// Makes system calls of this process fail. A test that uses it links wrappers of the C library's
// functions, which count the calls and fail the chosen ones.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>

namespace runloom::test {

enum class Call : std::uint8_t {
  accept4,
  connect,
  recv,
  send,
  recvmsg,
  sendmsg,
  recvmmsg,
  sendmmsg,
  socket,
  bind,
  setsockopt,
  epoll_create1,
  epoll_ctl,
  epoll_wait,
  eventfd,
  ppoll,
  socketpair,
  listen,
  open,
  fchmod,
  chmod,
  unlink,
  flock,
  pipe2,
  dup3,
  close,
  openat,
  preadv2,
  pwritev2,
  fsync,
  fdatasync,
  fallocate,
  ftruncate,
  statx,
  fstat,
  fcntl,
  rename,
  unlinkat,
  mkdir,
  copy_file_range,
  splice,
  sendfile,
  io_uring_setup,
  io_uring_enter,
};
inline constexpr int kCalls = static_cast<int>(Call::io_uring_enter) + 1;  // the last one

// While it lives, the `from`-th call from now (counted from 1), and `count` - 1 after it, fail with
// `err` without being made. One for each Call at a time; any thread's calls count.
class Fault {
 public:
  Fault(Call call, int err, int from = 1, int count = 1);
  ~Fault();
  Fault(const Fault&) = delete;
  Fault& operator=(const Fault&) = delete;
  // How many calls it has failed.
  int failed() const;

 private:
  Call call_;
};

// While it lives, calls that are made by other threads than a hub's for its fibers wait: those on
// the blocking pool. They have failed already when a Fault says so.
class Hold {
 public:
  explicit Hold(Call call);
  ~Hold() { release(); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  // Lets all of them go on.
  void release();
  // How many wait.
  int held() const;

 private:
  Call call_;
};

// How often the call was made by this process so far, failed ones included.
long calls(Call call);

// --- for wrappers ---
// In the other file of wrappers, so that the linker takes it, too.
extern const bool uring_wrapped;
// Counts a call. True when it is to fail; errno is set then.
bool fails(Call call);
// The C library's own function.
template <class Function>
Function* next_of(const char* name) {
  void* found = ::dlsym(RTLD_NEXT, name);
  if (!found) std::abort();
  return reinterpret_cast<Function*>(found);
}

}  // namespace runloom::test
