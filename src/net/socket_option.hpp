// Sockets, their options and addresses, as Results. Nothing here parks.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <initializer_list>
#include <utility>

#include "runloom/net/address.hpp"
#include "runloom/net/fd.hpp"

namespace runloom::net {

inline Result<void> set_option(int fd, int level, int name, int value) noexcept {
  if (::setsockopt(fd, level, name, &value, sizeof value) != 0) return fail(last_errno());
  return {};
}

// One that is set where it is wanted.
struct SocketOption {
  bool wanted;
  int level, name, value;
};
inline Result<void> set_options(int fd, std::initializer_list<SocketOption> options) noexcept {
  for (const SocketOption& option : options)
    if (option.wanted)
      if (auto ok = set_option(fd, option.level, option.name, option.value); !ok) return ok;
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

// Two Unix sockets that are connected to each other.
inline Result<std::pair<Fd, Fd>> open_pair(int type, FdKind kind) {
  std::array<int, 2> ends;
  if (::socketpair(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return fail(last_errno());
  auto first = Fd::own(ends[0], kind);
  auto second = first ? Fd::own(ends[1], kind) : Unexpected{first.error()};
  if (!first) ::close(ends[0]);
  if (!second) {
    ::close(ends[1]);
    return Unexpected{second.error()};
  }
  return std::pair(std::move(*first), std::move(*second));
}

// That `fd` is a Unix socket of the type, listening or not: else EPROTOTYPE, or EINVAL.
inline Result<void> check_socket(int fd, int type, bool listening) noexcept {
  int domain = 0, found = 0, accepts = 0;
  socklen_t size = sizeof(int);
  if (::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0 ||
      ::getsockopt(fd, SOL_SOCKET, SO_TYPE, &found, &size) != 0 ||
      ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &accepts, &size) != 0)
    return fail(last_errno());
  if (domain != AF_UNIX || found != type) return fail_errno(EPROTOTYPE);
  if ((accepts != 0) != listening) return fail_errno(EINVAL);
  return {};
}

}  // namespace runloom::net
