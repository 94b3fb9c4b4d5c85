// FileWatch: tells whether one of some files may have changed, by inotify(7), without waiting for
// it and without anything that runs while nobody asks.
//
// A file is watched itself (it may be written in place, and a mount over it is seen nowhere else),
// and so is each directory on the way to it, behind symbolic links too: files are replaced by
// renaming, and links by other links.
#pragma once

#include <string>
#include <vector>

#include "runloom/net/owned_fd.hpp"

namespace runloom::dns {

class FileWatch {
 public:
  FileWatch() = default;
  // Starts to watch, or starts afresh: before the files are read, so that no change is missed.
  // Opens directories: not on a hub's thread. False: the kernel gives no watch.
  bool watch(const std::vector<std::string>& paths);
  explicit operator bool() const noexcept { return static_cast<bool>(fd_); }
  // Whether anything happened since the last call. One system call.
  bool changed() noexcept;
  void abandon() noexcept { fd_.reset(); }

 private:
  bool add(const std::string& path) noexcept;
  net::OwnedFd fd_;
  std::vector<std::string> names_;  // of entries of directories that count
};

}  // namespace runloom::dns
