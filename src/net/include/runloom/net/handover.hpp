// Handover: a new process takes the listeners of a running one over, and no client notices.
//
// The running process waits for a successor at a Unix socket. The successor connects there, gets
// the listening sockets, begins to accept from them, and says that it is ready. Then the first one
// stops accepting, and ends its connections in its own time. Until then it serves as if nothing
// were: a successor that fails, or dies, has changed nothing.
//
//     // every process, in this order
//     auto predecessor = net::Predecessor::ask(at);              // none: the first one
//     if (predecessor) predecessor->give_to(server); else server.listen(...);
//     auto serving = spawn([&] { return server.serve(); });
//     if (predecessor) predecessor->ready(server);
//     net::await_successor(server, at, 30s);                     // on a fiber of its own
//
// Both ends must be the same user (or the asking one root), which the kernel tells.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <vector>

#include "runloom/net/address.hpp"
#include "runloom/net/listen_fds.hpp"
#include "runloom/net/server.hpp"
#include "runloom/net/unix_listener.hpp"
#include "runloom/net/unix_stream.hpp"
#include "runloom/sched/deadline.hpp"
#include "runloom/sched/result.hpp"

namespace runloom::net {

struct HandoverOptions {
  // Permission bits of the socket's file.
  mode_t mode = 0600;
  // How long a successor may take from its question until it is ready. Others wait meanwhile.
  std::chrono::milliseconds patience{60'000};
  // Whether TCP sockets are kept: the successor binds its own to the same ports, and both have
  // ListenOptions::reuse_port. Unix sockets are passed all the same.
  bool reuse_port = false;
};

// Waits at `at`, a Unix address, for a successor of a server that serves, or will. Returns when one
// is ready, after Server::begin_handover(Deadline::after(drain)); `at` is free then. Parks; a
// cancel point, and ends when the server is stopped otherwise only so. Fails as
// UnixListener::listen does; what goes wrong with one successor does not end it.
Result<void> await_successor(Server& server, const Address& at, std::chrono::milliseconds drain,
                             const HandoverOptions& options = {});
// Likewise with a listener that is there already, for who wants to know that a successor can come;
// it is closed when one was ready. HandoverOptions::mode is the listener's matter then.
Result<void> await_successor(Server& server, UnixListener& listener,
                             std::chrono::milliseconds drain, const HandoverOptions& options = {});

// The process that has the listeners now, as its successor sees it.
class Predecessor {
 public:
  // Connects and gets the listeners. Parks. Fails with ENOENT or ECONNREFUSED when nobody waits
  // there, with EPERM for another user, with EPROTO when it is somebody else who answers.
  static Result<Predecessor> ask(const Address& at, Deadline deadline = {});

  // The process's id, and its listeners; none of TCP with HandoverOptions::reuse_port.
  pid_t pid() const noexcept { return pid_; }
  const std::vector<ListenFd>& listeners() const noexcept { return listeners_; }
  // Hands all of them to a server that does not serve yet, see Server::listen_on. On a fiber.
  // Stops at the first that fails.
  Result<void> give_to(Server& server);
  // The server accepts now (serve() was begun): the predecessor is told to stop, and the files of
  // Unix sockets become the server's. Parks until it has answered. When this fails the predecessor
  // is gone, or did not believe us any more, and the listeners are the server's all the same.
  Result<void> ready(Server& server, Deadline deadline = {});

 private:
  UnixStream connection_;
  pid_t pid_ = 0;
  std::vector<ListenFd> listeners_;
};

}  // namespace runloom::net
