// UnixListener: accepts connections on a Unix socket.
//
// Any number of fibers, on any hubs, and OS threads may accept from one listener: each connection
// wakes one of them, first come first served. Destroying closes.
#pragma once

#include <utility>

#include "runloom/net/address.hpp"
#include "runloom/net/bound_path.hpp"
#include "runloom/net/fd.hpp"
#include "runloom/net/unix_stream.hpp"

namespace runloom::net {

struct UnixListenOptions {
  // Connections that may wait to be accepted; the kernel lowers it to net.core.somaxconn.
  int backlog = 1024;
  BindOptions bind{};
  // Whether close() removes the socket's file.
  bool remove_file = true;
};

class UnixListener {
 public:
  UnixListener() = default;  // closed
  explicit UnixListener(Fd fd, BoundPath path = {}) noexcept
      : fd_(std::move(fd)), path_(std::move(path)) {}
  UnixListener(UnixListener&&) noexcept = default;
  UnixListener& operator=(UnixListener&& other) noexcept {
    if (this != &other) {
      path_ = std::move(other.path_);  // removes our file while the socket lives
      fd_ = std::move(other.fd_);
    }
    return *this;
  }

  // Binds, see BoundPath::bind, and listens. An unnamed address lets the kernel choose a name.
  static Result<UnixListener> listen(const Address& address, const UnixListenOptions& options = {},
                                     Deadline deadline = {});
  // Takes a listening Unix stream socket over, such as one of listen_fds(). Its file, if any, is
  // its maker's, until claim_file(). EPROTOTYPE for another kind of socket, EINVAL when it does not
  // listen.
  static Result<UnixListener> adopt(int fd);

  // False once it was closed.
  explicit operator bool() const noexcept { return static_cast<bool>(fd_); }
  const Fd& fd() const noexcept { return fd_; }

  // Parks until there is a connection. Fails with a shortage (see is_shortage in tcp_listener.hpp;
  // the connection stays in the backlog), with Errc::closed, with EINVAL after shutdown().
  Result<UnixStream> accept(Deadline deadline = {});
  // As accept; tells the name that the peer is bound to, which is mostly none.
  Result<UnixStream> accept_from(Address& peer, Deadline deadline = {});
  // As accept, but waits out shortages.
  Result<UnixStream> accept_retrying(Deadline deadline = {});

  // Where it listens. Doesn't park; fails with closed.
  Result<Address> local_address() const;
  // Ends accepting: present and future accepts fail with EINVAL; the name stays taken.
  Result<void> shutdown() { return fd_.shutdown(SHUT_RD); }
  // Removes the file, ends every accept with Errc::closed, and returns when the name is free.
  // Parks, but is no cancel point. Idempotent.
  void close() noexcept {
    path_.remove();
    fd_.close_wait();
  }
  // Leaves the file where it is from now on: it is another process's. Any thread.
  void leave_file() noexcept { path_.forget(); }
  // close() removes the file from now on: its maker has left it to this process. Any thread.
  void claim_file() noexcept { path_.claim(); }
  // Both parts, for whoever keeps them himself. The listener is closed then.
  std::pair<Fd, BoundPath> take() noexcept { return {std::move(fd_), std::move(path_)}; }

 private:
  Fd fd_;
  BoundPath path_;  // after fd_, so that the file goes first
};

}  // namespace runloom::net
