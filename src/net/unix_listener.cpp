#include "runloom/net/unix_listener.hpp"

#include "accept_retrying.hpp"
#include "socket_option.hpp"

namespace runloom::net {
namespace {

Result<UnixStream> take_stream(int fd) {
  auto owned = Fd::own(fd, FdKind::stream);
  if (!owned) {
    ::close(fd);
    return Unexpected{owned.error()};
  }
  return UnixStream(std::move(*owned));
}

}  // namespace

Result<UnixListener> UnixListener::listen(const Address& address, const UnixListenOptions& options,
                                          Deadline deadline) {
  if (!address.is_unix()) return fail_errno(EAFNOSUPPORT);
  RUNLOOM_TRY(Fd fd, open_socket(AF_UNIX, SOCK_STREAM, 0, FdKind::stream));
  RUNLOOM_TRY(BoundPath path, BoundPath::bind(fd.number(), address, options.bind, deadline));
  // Nobody could connect so far: until now it was bound, and did not listen.
  if (::listen(fd.number(), options.backlog) != 0) {
    const auto error = last_errno();
    path.remove();
    return Unexpected{error};
  }
  if (!options.remove_file) path.forget();
  return UnixListener(std::move(fd), std::move(path));
}

Result<UnixListener> UnixListener::adopt(int fd) {
  if (auto ok = check_socket(fd, SOCK_STREAM, true); !ok) return Unexpected{ok.error()};
  Address bound;
  socklen_t size = Address::kMostSize;
  if (::getsockname(fd, bound.fill(), &size) != 0) return fail(last_errno());
  bound.filled(size);
  RUNLOOM_TRY(Fd owned, Fd::adopt(fd));
  return UnixListener(std::move(owned), BoundPath::adopt(bound));
}

Result<UnixStream> UnixListener::accept(Deadline deadline) {
  RUNLOOM_TRY(const int fd, accept_unix(fd_, nullptr, nullptr, deadline));
  return take_stream(fd);
}

Result<UnixStream> UnixListener::accept_from(Address& peer, Deadline deadline) {
  sockaddr_storage storage;
  socklen_t size = sizeof storage;
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  RUNLOOM_TRY(const int fd, accept_unix(fd_, address, &size, deadline));
  auto stream = take_stream(fd);
  if (auto from = Address::from_sockaddr(address, size)) peer = *from;
  return stream;
}

Result<UnixStream> UnixListener::accept_retrying(Deadline deadline) {
  return retry_shortages(fd_, deadline, [&] { return accept(deadline); });
}

Result<Address> UnixListener::local_address() const {
  return address_of(fd_, &::getsockname);
}

}  // namespace runloom::net
