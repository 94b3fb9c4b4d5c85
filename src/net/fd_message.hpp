// The control part of a message: descriptors in and out. See cmsg(3).
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <span>

#include "runloom/net/unix_socket.hpp"

namespace runloom::net {

// Room for kMostFds descriptors, and for the credentials that come in front of them on sockets
// with SO_PASSCRED.
class FdControl {
 public:
  // For a message that carries `fds`, kMostFds at most.
  void attach(msghdr& message, std::span<const int> fds) noexcept {
    if (fds.empty()) return;
    message.msg_control = bytes_.data();
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    std::memset(bytes_.data(), 0, message.msg_controllen);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }

  // For a receive that expects up to `most`. The kernel hands out as many as there is room for, so
  // there is little more. With no room it closes them itself.
  void expect(msghdr& message, std::size_t most) noexcept {
    if (most == 0) return;
    message.msg_control = bytes_.data();
    message.msg_controllen = kCredentials + CMSG_LEN(most * sizeof(int));
  }

  // What has come: takes what fits into out's capacity and closes the rest. True: some were closed.
  static bool take(msghdr& message, std::vector<OwnedFd>& out) noexcept {
    bool closed = false;
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header;
         header = CMSG_NXTHDR(&message, header)) {
      if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
      const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < count; ++i) {
        int fd;
        std::memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
        OwnedFd owned(fd);
        if (out.size() < out.capacity()) {
          out.push_back(std::move(owned));
        } else {
          closed = true;
        }
      }
    }
    return closed;
  }

 private:
  static constexpr std::size_t kCredentials = CMSG_SPACE(sizeof(ucred));
  alignas(cmsghdr) std::array<char, kCredentials + CMSG_SPACE(kMostFds * sizeof(int))> bytes_;
};

}  // namespace runloom::net
