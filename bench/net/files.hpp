// files.hpp: random reads of 4 KiB of a file that the page cache has: the work of all subjects of
// the suite `files`. CPU time of the process per read: what other processes do does not count.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace files {

inline constexpr std::size_t kSize = 64 << 20;
inline constexpr std::size_t kRead = 4096;
inline constexpr int kReads = 400'000;
inline constexpr int kDepth = 32;

[[noreturn]] inline void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

// A file of kSize bytes at `path`, read once.
class Work {
 public:
  explicit Work(const char* path) : path_(path), fd_(::open(path, O_RDWR | O_CREAT, 0600)) {
    if (fd_ < 0) fail(path);
    std::string block(1 << 20, 'x');
    for (std::size_t at = 0; at < kSize; at += block.size())
      if (::pwrite(fd_, block.data(), block.size(), static_cast<off_t>(at)) !=
          static_cast<ssize_t>(block.size()))
        fail("pwrite");
  }
  ~Work() {
    ::close(fd_);
    ::unlink(path_.c_str());
  }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
  int fd() const noexcept { return fd_; }
  const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
  int fd_;
};

// Where to read next.
class Offsets {
 public:
  explicit Offsets(std::uint64_t seed) noexcept : state_(seed * 0x9e3779b97f4a7c15 + 1) {}
  off_t next() noexcept {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<off_t>(state_ % (kSize / kRead) * kRead);
  }

 private:
  std::uint64_t state_;
};

}  // namespace files
