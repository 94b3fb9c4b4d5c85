// OwnedFd: a plain descriptor that closes itself, such as one that came over a Unix socket. What
// parks on a descriptor is Fd; release() and Fd::adopt() lead there.
#pragma once

#include <unistd.h>

#include <utility>

namespace runloom::net {

class OwnedFd {
 public:
  OwnedFd() = default;  // none
  // Takes `fd` over; -1: none.
  explicit OwnedFd(int fd) noexcept : fd_(fd) {}
  OwnedFd(OwnedFd&& other) noexcept : fd_(other.release()) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~OwnedFd() { reset(); }

  explicit operator bool() const noexcept { return fd_ >= 0; }
  int number() const noexcept { return fd_; }
  // Hands it out; the caller closes it.
  [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }
  void reset(int fd = -1) noexcept {
    if (const int old = std::exchange(fd_, fd); old >= 0) ::close(old);
  }

 private:
  int fd_ = -1;
};

}  // namespace runloom::net
