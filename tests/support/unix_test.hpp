// What tests of Unix sockets share: a directory of their own for sockets, and plain kernel sockets
// for peers.
#pragma once

#include <sys/socket.h>

#include <string>
#include <string_view>
#include <vector>

#include "runloom/net/address.hpp"
#include "runloom/net/unix_stream.hpp"

namespace runloom::test {

// A fresh directory with a short name, removed with all that is in it.
class SocketDir {
 public:
  SocketDir();
  ~SocketDir();
  SocketDir(const SocketDir&) = delete;
  SocketDir& operator=(const SocketDir&) = delete;
  std::string path(std::string_view name) const { return directory_ + '/' + std::string(name); }
  net::Address address(std::string_view name) const {
    return net::Address::from_unix_path(path(name)).value();
  }
  // The names in it.
  std::vector<std::string> names() const;

 private:
  std::string directory_;
};

// Two ends of a connection. Fails the test when they can't be had.
struct UnixPair {
  UnixPair();
  net::UnixStream one, two;
};

// A plain socket bound to the address, listening if it can. -1 on failure, with errno.
int plain_bind(const net::Address& address, int type = SOCK_STREAM, int backlog = 8);
// sendmsg with descriptors, by plain means. Returns what sendmsg did.
ssize_t plain_send_fds(int socket, std::string_view text, const std::vector<int>& fds);
// Descriptors that the process has open now.
std::size_t open_descriptors();
bool is_cloexec(int fd);
// Whether two descriptors lead to the same file.
bool same_file(int a, int b);

}  // namespace runloom::test
