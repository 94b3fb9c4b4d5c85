// Sockets, their options and addresses, as Results. Nothing here parks.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include "runloom/net/address.hpp"
#include "runloom/net/fd.hpp"

namespace runloom::net {

inline Result<void> set_option(int fd, int level, int name, int value) noexcept {
  if (::setsockopt(fd, level, name, &value, sizeof value) != 0) return fail(last_errno());
  return {};
}

inline Result<void> set_option(const Fd& fd, int level, int name, int value) noexcept {
  const Fd::Use use(fd);
  if (!use) return fail(Errc::closed);
  return set_option(use.number(), level, name, value);
}

// What getsockname or getpeername say.
inline Result<Address> address_of(const Fd& fd, int (*call)(int, sockaddr*, socklen_t*)) noexcept {
  const Fd::Use use(fd);
  if (!use) return fail(Errc::closed);
  sockaddr_storage storage;
  socklen_t size = sizeof storage;
  if (call(use.number(), reinterpret_cast<sockaddr*>(&storage), &size) != 0)
    return fail(last_errno());
  return Address::from_sockaddr(reinterpret_cast<sockaddr*>(&storage), size);
}

// A fresh non-blocking, close-on-exec socket. It is handed out as blocking by Fd::release().
inline Result<Fd> open_socket(int family, int type, int protocol, FdKind kind) {
  const int fd = ::socket(family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, protocol);
  if (fd < 0) return fail(last_errno());
  auto owned = Fd::own(fd, kind);
  if (!owned) ::close(fd);
  return owned;
}

}  // namespace runloom::net
