// Socket activation: the listening sockets that a service manager opened and left to this process,
// as sd_listen_fds(3) has it. The variables are LISTEN_PID, LISTEN_FDS and LISTEN_FDNAMES.
#pragma once

#include <string>
#include <vector>

#include "runloom/net/owned_fd.hpp"
#include "runloom/sched/result.hpp"

namespace runloom::net {

struct ListenFd {
  OwnedFd fd;              // close-on-exec; TcpListener::adopt(fd.number()) and its like take it
  std::string name{};      // from LISTEN_FDNAMES; "unknown" where there is none
  int family = 0;          // AF_INET, AF_INET6, AF_UNIX; AF_UNSPEC: no socket (a FIFO, a device)
  int type = 0;            // SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET; 0: no socket
  bool listening = false;  // accepts connections
};

// What was passed to this process, in its order; empty when nothing was, or to another process (a
// parent's variables, inherited). Each descriptor is given out once: so `unset` takes the
// variables away, that children and later calls don't see them. Setting variables while other
// threads read any is not safe in C: call it early in main().
//
// Doesn't park. Fails with EINVAL when the variables are no numbers, or fewer descriptors are open
// than they say: then nothing is taken over.
Result<std::vector<ListenFd>> listen_fds(bool unset = true);

}  // namespace runloom::net
