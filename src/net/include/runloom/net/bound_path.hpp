// BoundPath: the file of a bound Unix socket, from bind to unlink. UnixListener and UnixDatagram
// have one each.
//
// A file is replaced only when it is a socket to which nobody is bound any more, and removed only
// when it is the one that was made here, by the process that made it. Abstract names have no file,
// and no file-system call is made for them.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "runloom/net/address.hpp"
#include "runloom/sched/deadline.hpp"
#include "runloom/sched/result.hpp"

namespace runloom::net {

struct BindOptions {
  // Permission bits of the socket's file, which nobody can reach with others; connecting takes
  // write permission (unix(7)). None: 0777 less the umask.
  std::optional<mode_t> mode{};
  // Whether the file of a socket that is gone, as a process that was killed leaves it, is replaced.
  bool replace_stale = true;
};

class BoundPath {
 public:
  BoundPath() = default;  // none
  BoundPath(BoundPath&& other) noexcept = default;
  BoundPath& operator=(BoundPath&& other) noexcept;
  ~BoundPath() { remove(); }

  // Binds `fd`, a Unix socket that is not bound yet. Makes a few calls to the file system on the
  // calling thread; parks only while somebody else replaces the same file. Fails with bind(2)'s
  // error; with EADDRINUSE when a live socket has the name, or the file is none of a socket.
  static Result<BoundPath> bind(int fd, const Address& address, const BindOptions& options = {},
                                Deadline deadline = {});

  // The file of a socket that another process has bound. It is removed here from claim() on.
  // Doesn't park. None for a name without a file, or whose file isn't there.
  static BoundPath adopt(const Address& address);

  // Removes the file, if it is still the one that was made. Idempotent; any thread. Call it before
  // the socket is closed: while the socket lives nobody takes the file for a stale one.
  void remove() noexcept;
  // Leaves the file where it is from now on.
  void forget() noexcept;
  // The file is ours to remove from now on: forget() and adopt() taken back. Any thread.
  void claim() noexcept;

 private:
  struct File {
    std::string path;
    dev_t device;
    ino_t inode;
    pid_t maker;
    std::atomic<bool> done{false};
  };
  std::unique_ptr<File> file_;
};

}  // namespace runloom::net
