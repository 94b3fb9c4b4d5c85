#include "runloom/net/tcp_listener.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include "accept_retrying.hpp"
#include "socket_option.hpp"

namespace runloom::net {

bool is_shortage(std::error_code error) noexcept {
  if (error.category() != std::system_category()) return false;
  switch (error.value()) {
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
      return true;
    default:
      return false;
  }
}

Result<TcpListener> TcpListener::listen(const Address& address, const ListenOptions& options) {
  if (!address.is_ip()) return fail_errno(EAFNOSUPPORT);
  RUNLOOM_TRY(Fd fd, open_socket(address.family(), SOCK_STREAM, IPPROTO_TCP, FdKind::stream));
  const int number = fd.number();
  if (auto ok =
          set_options(number, {{options.reuse_address, SOL_SOCKET, SO_REUSEADDR, 1},
                               {options.reuse_port, SOL_SOCKET, SO_REUSEPORT, 1},
                               {address.is_ipv6() && options.v6_only.has_value(), IPPROTO_IPV6,
                                IPV6_V6ONLY, options.v6_only.value_or(false) ? 1 : 0}});
      !ok)
    return Unexpected{ok.error()};
  if (auto ok = apply_options(number, options.tcp); !ok) return Unexpected{ok.error()};
  if (::bind(number, address.data(), address.size()) != 0 || ::listen(number, options.backlog) != 0)
    return fail(last_errno());
  return TcpListener(std::move(fd));
}

Result<TcpListener> TcpListener::adopt(int fd) {
  int domain = 0, type = 0, protocol = 0, accepts = 0;
  for (const auto& [name, value] :
       {std::pair{SO_DOMAIN, &domain}, std::pair{SO_TYPE, &type}, std::pair{SO_PROTOCOL, &protocol},
        std::pair{SO_ACCEPTCONN, &accepts}}) {
    socklen_t size = sizeof(int);
    if (::getsockopt(fd, SOL_SOCKET, name, value, &size) != 0) return fail(last_errno());
  }
  if ((domain != AF_INET && domain != AF_INET6) || type != SOCK_STREAM || protocol != IPPROTO_TCP)
    return fail_errno(EPROTOTYPE);
  if (accepts == 0) return fail_errno(EINVAL);
  RUNLOOM_TRY(Fd owned, Fd::adopt(fd));
  return TcpListener(std::move(owned));
}

namespace {
Result<TcpStream> take(int fd) {
  auto owned = Fd::own(fd, FdKind::tcp);
  if (!owned) {
    ::close(fd);
    return Unexpected{owned.error()};
  }
  return TcpStream(std::move(*owned));
}
}  // namespace

Result<TcpStream> TcpListener::accept(Deadline deadline) {
  RUNLOOM_TRY(const int fd, fd_.accept(nullptr, nullptr, deadline));
  return take(fd);
}

Result<TcpStream> TcpListener::accept_from(Address& peer, Deadline deadline) {
  sockaddr_storage storage;
  socklen_t size = sizeof storage;
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  RUNLOOM_TRY(const int fd, fd_.accept(address, &size, deadline));
  auto stream = take(fd);
  if (auto from = Address::from_sockaddr(address, size)) peer = *from;
  return stream;
}

Result<TcpStream> TcpListener::accept_retrying(Deadline deadline) {
  return retry_shortages(fd_, deadline, [&] { return accept(deadline); });
}

Result<Address> TcpListener::local_address() const {
  return address_of(fd_, &::getsockname);
}

Result<int> TcpListener::backlog() const {
  const Fd::Use use(fd_);
  if (!use) return fail(Errc::closed);
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(use.number(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0)
    return fail(last_errno());
  return static_cast<int>(info.tcpi_sacked);  // of a listening socket: the backlog
}

}  // namespace runloom::net
