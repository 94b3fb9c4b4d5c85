#include "file_watch.hpp"

#include <limits.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>

namespace runloom::dns {
namespace {

constexpr int kMostLinks = 8;

std::string directory_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string name_of(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

}  // namespace

bool FileWatch::add(const std::string& path) noexcept {
  constexpr unsigned kEvents = IN_MODIFY | IN_ATTRIB | IN_CLOSE_WRITE | IN_CREATE | IN_DELETE |
                               IN_MOVED_FROM | IN_MOVED_TO | IN_DELETE_SELF | IN_MOVE_SELF;
  return ::inotify_add_watch(fd_.number(), path.c_str(), kEvents) >= 0;
}

bool FileWatch::watch(const std::vector<std::string>& paths) {
  net::OwnedFd fresh(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  fd_ = std::move(fresh);
  if (!fd_) return false;
  names_.clear();
  for (std::string path : paths) {
    for (int links = 0; links < kMostLinks; ++links) {
      // Without its directory a file is not there, and appears with it: then the one above is
      // watched.
      for (std::string directory = directory_of(path); !add(directory) && directory != "/";) {
        names_.push_back(name_of(directory));
        directory = directory_of(directory);
      }
      names_.push_back(name_of(path));
      add(path);
      char target[PATH_MAX];
      const ssize_t size = ::readlink(path.c_str(), target, sizeof target);
      if (size <= 0 || size == static_cast<ssize_t>(sizeof target)) break;
      std::string next(target, static_cast<std::size_t>(size));
      if (next.front() != '/') next.insert(0, directory_of(path).append("/"));
      path = std::move(next);
    }
  }
  return true;
}

bool FileWatch::changed() noexcept {
  alignas(inotify_event) char buffer[4096];
  bool any = false;
  for (;;) {
    const ssize_t size = ::read(fd_.number(), buffer, sizeof buffer);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return any;
    for (ssize_t at = 0; at < size;) {
      const auto* event = reinterpret_cast<const inotify_event*>(buffer + at);
      at += static_cast<ssize_t>(sizeof *event + event->len);
      // An event without a name is a watched file's own, or a lost one.
      const std::string_view name = event->len > 0 ? std::string_view(event->name) : "";
      any = any || name.empty() || std::find(names_.begin(), names_.end(), name) != names_.end();
    }
  }
}

}  // namespace runloom::dns
