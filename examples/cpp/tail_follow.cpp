// Writes what is appended to files, as tail -F does: through truncation and rotation.
//
//     build/release/examples/example_tail_follow --lines 10 /var/log/syslog
//
// A fiber a file. It reads to the end and waits for inotify to tell that something has changed in
// the file's directory; what has changed it finds out by looking. A file that is not there yet is
// waited for. SIGINT or SIGTERM ends it.
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "example.hpp"
#include "runloom/net/fd_ops.hpp"
#include "runloom/net/file.hpp"
#include "runloom/net/netpoll.hpp"
#include "runloom/sched/join_set.hpp"
#include "runloom/sched/mutex.hpp"

using namespace runloom;

namespace {

// The output of all files, one piece after the other.
class Output {
 public:
  explicit Output(bool with_names) : with_names_(with_names) {}

  Result<void> write(const std::string& path, std::span<const std::byte> data) {
    if (auto locked = mutex_.lock(Deadline::never()); !locked) return locked;
    const std::lock_guard hold(mutex_, std::adopt_lock);
    if (with_names_ && last_ != path) {
      const std::string title = (last_.empty() ? "==> " : "\n==> ") + path + " <==\n";
      last_ = path;
      if (auto written = net::fd_write_all(STDOUT_FILENO, net::bytes(title)); !written)
        return written;
    }
    return net::fd_write_all(STDOUT_FILENO, data);
  }

 private:
  const bool with_names_;
  Mutex mutex_;
  std::string last_;  // whose output came last; guarded by mutex_
};

// Tells when something changes in the directory of a file.
class Watch {
 public:
  explicit Watch(const std::string& path) : fd_(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
    const std::size_t slash = path.rfind('/');
    const std::string directory =
        slash == std::string::npos ? "." : path.substr(0, std::max<std::size_t>(slash, 1));
    constexpr unsigned kChanges =
        IN_MODIFY | IN_ATTRIB | IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO;
    if (fd_ >= 0 && ::inotify_add_watch(fd_, directory.c_str(), kChanges) < 0) {
      ::close(fd_);
      fd_ = -1;
    }
  }
  ~Watch() {
    if (fd_ >= 0) ::close(fd_);
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
  explicit operator bool() const noexcept { return fd_ >= 0; }

  // Parks until there is a change since the last call.
  Result<void> wait() const {
    if (const auto ready = net::wait_fd(fd_, net::kRead); !ready) return fail(ready.error());
    std::array<char, 4096> events;
    while (::read(fd_, events.data(), events.size()) > 0) {
    }
    return {};
  }

 private:
  int fd_;
};

class Follower {
 public:
  Follower(std::string path, Output& output) : path_(std::move(path)), output_(output) {}

  // Until it is cancelled.
  Result<void> follow(std::size_t lines) {
    const Watch watch(path_);  // before the first look, so that no change is missed
    if (!watch) return fail(last_errno());
    if (auto opened = open(); !opened) return opened;
    if (file_) {
      if (auto found = seek_lines(lines); !found) return found;
    }
    for (;;) {
      if (auto looked = look(); !looked) return looked;
      if (auto changed = watch.wait(); !changed) return changed;
    }
  }

 private:
  // What stands at the path now, if anything does.
  Result<void> open() {
    auto opened = net::File::open(path_);
    if (!opened) {
      if (opened.error() == std::errc::no_such_file_or_directory) return {};
      return fail(opened.error());
    }
    file_ = std::move(*opened);
    RUNLOOM_TRY(const auto status, file_.status());
    inode_ = status.inode;
    device_ = status.device;
    return {};
  }

  // To the beginning of the last lines.
  Result<void> seek_lines(std::size_t lines) {
    std::array<std::byte, 8192> block;
    RUNLOOM_TRY(off_t at, file_.seek(0, SEEK_END));
    const off_t end = at;
    while (at > 0) {
      const off_t from = std::max<off_t>(0, at - static_cast<off_t>(block.size()));
      RUNLOOM_TRY(std::size_t count,
                  file_.read_at(std::span(block).first(static_cast<std::size_t>(at - from)), from));
      while (count > 0) {
        --count;
        const off_t here = from + static_cast<off_t>(count);
        // The line break that ends the last line begins none.
        if (block[count] == std::byte{'\n'} && here != end - 1 && lines-- <= 1)
          return seek(here + 1);
        if (lines == 0) return seek(end);
      }
      at = from;
    }
    return seek(0);
  }

  Result<void> seek(off_t to) {
    const auto sought = file_.seek(to);
    return sought ? Result<void>() : fail(sought.error());
  }

  // Writes what there is, and finds out whether the file was cut or replaced.
  Result<void> look() {
    for (;;) {
      if (file_) {
        if (auto drained = drain(); !drained) return drained;
      }
      const auto now = net::file_status(path_);
      if (!now) {
        if (now.error() == std::errc::no_such_file_or_directory) return {};  // for the time being
        return fail(now.error());
      }
      if (file_ && now->inode == inode_ && now->device == device_) return {};
      // Rotated. What was written to the old file before it was moved away has been drained, but
      // for what came since.
      if (file_) {
        std::fprintf(stderr, "%s was replaced\n", path_.c_str());
        if (auto drained = drain(); !drained) return drained;
      }
      if (auto opened = open(); !opened || !file_) return opened;
    }
  }

  Result<void> drain() {
    RUNLOOM_TRY(const auto status, file_.status());
    RUNLOOM_TRY(const off_t position, file_.position());
    if (static_cast<off_t>(status.size) < position) {
      std::fprintf(stderr, "%s was truncated\n", path_.c_str());
      if (auto sought = seek(0); !sought) return sought;
    }
    std::vector<std::byte> buffer(64 * 1024);
    for (;;) {
      RUNLOOM_TRY(const std::size_t count, file_.read(buffer));
      if (count == 0) return {};
      if (auto written = output_.write(path_, std::span(buffer).first(count)); !written)
        return written;
    }
  }

  const std::string path_;
  Output& output_;
  net::File file_;
  std::uint64_t inode_ = 0;
  std::uint64_t device_ = 0;
};

Result<void> follow_all(const std::vector<std::string>& paths, std::size_t lines,
                        const net::Signals& signals) {
  Output output(paths.size() > 1);
  JoinSet<> followers;
  for (const std::string& path : paths) {
    auto started = followers.spawn([&, path]() -> Result<void> {
      auto followed = Follower(path, output).follow(lines);
      if (!followed && followed.error() != Errc::cancelled)
        std::fprintf(stderr, "%s: %s\n", path.c_str(), followed.error().message().c_str());
      return followed;
    });
    if (!started) return started;
  }
  auto stopper = spawn([&] {
    if (signals.wait()) followers.cancel();
  });
  auto ended = followers.wait();
  stopper.cancel();
  if (!ended && ended.error() == Errc::cancelled) return {};
  return ended;
}

}  // namespace

int main(int argc, char** argv) {
  const char* const usage = "usage: example_tail_follow [--lines N] FILE...\n";
  std::size_t lines = 10;
  std::vector<std::string> paths;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--lines" && i + 1 < argc) {
      const std::string_view text = argv[++i];
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), lines);
      if (error != std::errc() || end != text.data() + text.size()) {
        std::fputs(usage, stderr);
        return 2;
      }
    } else if (name.starts_with("--")) {
      std::fputs(usage, stderr);
      return 2;
    } else {
      paths.emplace_back(name);
    }
  }
  if (paths.empty()) {
    std::fputs(usage, stderr);
    return 2;
  }
  const net::Signals signals({SIGINT, SIGTERM});
  const auto ran = run([&] { return follow_all(paths, lines, signals); });
  return ran ? 0 : 1;
}
