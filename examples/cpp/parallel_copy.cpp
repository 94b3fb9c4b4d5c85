// Copies files and trees, several files at a time, with a progress bar.
//
//     build/release/examples/example_parallel_copy --jobs 8 ~/Pictures /mnt/backup
//
// One fiber walks the tree and makes directories, others copy the files that it finds. Copies keep
// the permissions. A file appears under its name only when it is whole. The first error ends all.
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "example.hpp"
#include "runloom/net/directory.hpp"
#include "runloom/net/file.hpp"
#include "runloom/sched/blocking.hpp"
#include "runloom/sched/cancel.hpp"
#include "runloom/sched/channel.hpp"
#include "runloom/sched/join_set.hpp"

using namespace runloom;
using namespace std::chrono_literals;

namespace {

struct Job {
  std::string from;
  std::string to;
  net::FileStatus status;
};

struct Progress {
  std::atomic<std::uint64_t> found_files{0};
  std::atomic<std::uint64_t> found_bytes{0};
  std::atomic<std::uint64_t> files{0};
  std::atomic<std::uint64_t> bytes{0};

  void draw() const {
    constexpr int kWidth = 40;
    const std::uint64_t all = found_bytes;
    const std::uint64_t done = bytes;
    const int filled = all == 0 ? kWidth : static_cast<int>(done * kWidth / all);
    const std::string bar = std::string(static_cast<std::size_t>(filled), '#') +
                            std::string(static_cast<std::size_t>(kWidth - filled), '.');
    std::fprintf(stderr, "\r[%s] %llu of %llu files, %llu of %llu MB", bar.c_str(),
                 static_cast<unsigned long long>(files.load()),
                 static_cast<unsigned long long>(found_files.load()),
                 static_cast<unsigned long long>(done / 1'000'000),
                 static_cast<unsigned long long>(all / 1'000'000));
  }
};

Result<void> named(Result<void> result, const std::string& path) {
  if (!result && result.error() != Errc::cancelled)
    std::fprintf(stderr, "\n%s: %s\n", path.c_str(), result.error().message().c_str());
  return result;
}

// ---- copying ----

Result<void> copy_content(const net::File& from, const net::File& to, std::uint64_t size,
                          Progress& progress) {
  constexpr std::uint64_t kPiece = 8 * 1024 * 1024;
  std::uint64_t copied = 0;
  for (;;) {
    const auto at = static_cast<off_t>(copied);
    RUNLOOM_TRY(const std::uint64_t count, net::copy_range(from, at, to, at, kPiece));
    if (count == 0) break;
    copied += count;
    progress.bytes += count;
  }
  // It may have grown or shrunk since it was found.
  progress.found_bytes += copied - size;
  return {};
}

Result<void> copy_file(const Job& job, Progress& progress) {
  RUNLOOM_TRY(const net::File from, net::File::open(job.from));
  const std::string unfinished = job.to + ".unfinished";
  RUNLOOM_TRY(net::File to, net::File::open(unfinished, O_WRONLY | O_CREAT | O_TRUNC, 0600));
  auto done = copy_content(from, to, job.status.size, progress);
  if (done && ::fchmod(to.number(), job.status.mode) != 0) done = fail(last_errno());
  // A full disk may tell only now.
  if (auto closed = to.close(); done && !closed) done = closed;
  if (done) done = net::rename_file(unfinished, job.to);
  if (!done) {
    const Shield shield;
    (void)net::remove_file(unfinished, Deadline::after(1s));
    return done;
  }
  ++progress.files;
  return {};
}

Result<void> copy_link(const std::string& from, const std::string& to) {
  return blocking([&]() -> Result<void> {
    std::array<char, PATH_MAX> target;
    const ssize_t size = ::readlink(from.c_str(), target.data(), target.size() - 1);
    if (size < 0) return fail(last_errno());
    target[static_cast<std::size_t>(size)] = '\0';
    if (::symlink(target.data(), to.c_str()) != 0) return fail(last_errno());
    return {};
  });
}

// ---- finding ----

Result<void> walk(const std::string& from, const std::string& to, Channel<Job>& jobs,
                  Progress& progress) {
  const auto status = net::file_status(from, false);
  if (!status) return named(fail(status.error()), from);
  switch (status->type) {
    case net::FileType::regular:
      ++progress.found_files;
      progress.found_bytes += status->size;
      return jobs.send(Job{from, to, *status});
    case net::FileType::link:
      return named(copy_link(from, to), from);
    case net::FileType::directory:
      break;
    default:
      std::fprintf(stderr, "\n%s: is no file, left out\n", from.c_str());
      return {};
  }
  if (auto made = net::make_directory(to, status->mode | 0700u);
      !made && made.error() != std::errc::file_exists)
    return named(made, to);
  auto directory = net::Directory::open(from);
  if (!directory) return named(fail(directory.error()), from);
  for (;;) {
    RUNLOOM_TRY(const auto entry, directory->next());
    if (!entry) return {};
    if (auto walked = walk(from + '/' + entry->name, to + '/' + entry->name, jobs, progress);
        !walked)
      return walked;
  }
}

Result<void> copy_tree(const std::string& from, const std::string& to, int workers,
                       Progress& progress) {
  Channel<Job> jobs(64);
  JoinSet<> all;
  auto started = all.spawn([&]() -> Result<void> {
    auto walked = walk(from, to, jobs, progress);
    (void)jobs.close();
    return walked;
  });
  for (int i = 0; started && i < workers; ++i)
    started = all.spawn([&]() -> Result<void> {
      for (;;) {
        const auto job = jobs.recv();
        if (!job) return job.error() == Errc::closed ? Result<void>() : fail(job.error());
        if (auto copied = named(copy_file(*job, progress), job->from); !copied) return copied;
      }
    });
  if (!started) return started;
  return all.wait();
}

Result<void> copy_with_bar(const std::string& from, const std::string& to, int workers) {
  Progress progress;
  const bool shown = ::isatty(STDERR_FILENO) != 0;
  auto painter = spawn([&] {
    while (shown && this_fiber::sleep_for(100ms))
      progress.draw();
  });
  auto copied = copy_tree(from, to, workers, progress);
  painter.cancel();
  (void)painter.join();
  if (shown) {
    progress.draw();
    std::fputc('\n', stderr);
  }
  std::printf("copied %llu files, %llu bytes\n",
              static_cast<unsigned long long>(progress.files.load()),
              static_cast<unsigned long long>(progress.bytes.load()));
  return copied;
}

}  // namespace

int main(int argc, char** argv) {
  int workers = 8;
  std::vector<std::string> paths;
  bool understood = true;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--jobs" && i + 1 < argc) {
      const std::string_view text = argv[++i];
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), workers);
      understood = error == std::errc() && end == text.data() + text.size() && workers > 0;
    } else if (name.starts_with("--")) {
      understood = false;
    } else {
      paths.emplace_back(name);
    }
  }
  if (!understood || paths.size() != 2) {
    std::fputs("usage: example_parallel_copy [--jobs N] FROM TO\n", stderr);
    return 2;
  }
  const auto copied = run([&] { return copy_with_bar(paths[0], paths[1], workers); });
  return copied ? 0 : 1;
}
