#include "support/unix_test.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace runloom::test {

SocketDir::SocketDir() {
  std::array<char, 32> name{"/tmp/runloom-XXXXXX"};
  EXPECT_NE(::mkdtemp(name.data()), nullptr);
  directory_ = name.data();
}
SocketDir::~SocketDir() {
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}
std::vector<std::string> SocketDir::names() const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory_))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

UnixPair::UnixPair() {
  auto pair = net::UnixStream::pair();
  EXPECT_TRUE(pair) << pair.error().message();
  if (!pair) return;
  one = std::move(pair->first);
  two = std::move(pair->second);
}

int plain_bind(const net::Address& address, int type, int backlog) {
  const int fd = ::socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  if (::bind(fd, address.data(), address.size()) == 0 &&
      (type == SOCK_DGRAM || ::listen(fd, backlog) == 0))
    return fd;
  const int err = errno;
  ::close(fd);
  errno = err;
  return -1;
}

ssize_t plain_send_fds(int socket, std::string_view text, const std::vector<int>& fds) {
  iovec memory{const_cast<char*>(text.data()), text.size()};
  msghdr message{};
  message.msg_iov = &memory;
  message.msg_iovlen = 1;
  const std::size_t size = fds.size() * sizeof(int);
  std::vector<char> control(CMSG_SPACE(size));
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(size);
    std::memcpy(CMSG_DATA(header), fds.data(), size);
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL);
}

std::size_t open_descriptors() {
  const auto list = std::filesystem::directory_iterator("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(list), end(list)));
}

bool is_cloexec(int fd) {
  const int flags = ::fcntl(fd, F_GETFD);
  EXPECT_GE(flags, 0);
  return (flags & FD_CLOEXEC) != 0;
}

bool same_file(int a, int b) {
  struct stat one, two;
  return ::fstat(a, &one) == 0 && ::fstat(b, &two) == 0 && one.st_dev == two.st_dev &&
         one.st_ino == two.st_ino;
}

}  // namespace runloom::test
