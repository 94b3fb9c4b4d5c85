#include "runloom/net/stdio.hpp"

#include <fcntl.h>
#include <limits.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>

#include "io_loop.hpp"
#include "reopen.hpp"
#include "runloom/net/fd.hpp"
#include "runloom/sched/blocking.hpp"
#include "runloom/sched/mutex.hpp"

namespace runloom::net {
namespace {

class StdioCategory final : public std::error_category {
 public:
  const char* name() const noexcept override { return "runloom.stdio"; }
  std::string message(int value) const override {
    switch (static_cast<StdioErrc>(value)) {
      case StdioErrc::closed:
        return "the standard stream is closed: its descriptor is not open in this process";
      case StdioErrc::wrong_direction:
        return "the standard stream is not open in that direction";
    }
    return "unknown error of standard streams";
  }
  std::error_condition default_error_condition(int) const noexcept override {
    return std::make_error_condition(std::errc::bad_file_descriptor);
  }
};

// How to transfer without changing the flags of a description that others share.
enum class Way : std::uint8_t {
  own,     // ours alone, and non-blocking
  socket,  // MSG_DONTWAIT
  shared,  // RWF_NOWAIT where the kernel has it, else the pool
};

class Receive final : public Attempt {
 public:
  explicit Receive(std::span<std::byte> buffer) noexcept : buffer_(buffer) {}
  ssize_t make(int fd) noexcept override {
    return ::recv(fd, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
  }

 private:
  std::span<std::byte> buffer_;
};

class Send final : public Attempt {
 public:
  explicit Send(std::span<const std::byte> data) noexcept : data_(data) {}
  ssize_t make(int fd) noexcept override {
    return ::send(fd, data_.data(), data_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }

 private:
  std::span<const std::byte> data_;
};

// Files and many devices make nobody wait, and the poller refuses them.
Result<void> wait(const Fd& fd, unsigned direction, Deadline deadline) {
  const auto ready = fd.wait_ready(direction, deadline);
  if (ready || ready.error() == errno_code(EPERM)) return {};
  return Unexpected{ready.error()};
}

// One transfer on a shared description. `now` makes it without waiting, EOPNOTSUPP: it can't;
// `whole` may wait in the kernel: it runs on the pool, once the descriptor is ready, where somebody
// who comes first stops a thread and not the hub.
template <class Now, class Whole>
Result<std::size_t> transfer_shared(const Fd& fd, unsigned direction, Deadline deadline, Now&& now,
                                    Whole&& whole) {
  const Fd::Use use(fd);
  if (!use) return fail(Errc::closed);
  const bool file = !check_pollable(use.number());
  for (;;) {
    const ssize_t moved = now(use.number());
    if (moved >= 0) return static_cast<std::size_t>(moved);
    if (errno == EINTR) continue;
    const int err = errno;
    if (!would_block(err) && err != EOPNOTSUPP) return fail_errno(err);
    if (!file)
      if (auto ready = wait(fd, direction, deadline); !ready) return Unexpected{ready.error()};
    if (!fd) return fail(Errc::closed);
    if (file || err == EOPNOTSUPP) break;
  }
  return blocking(
      [&]() -> Result<std::size_t> {
        for (;;) {
          const ssize_t moved = whole(use.number(), file);
          if (moved >= 0) return static_cast<std::size_t>(moved);
          if (errno != EINTR) return fail(last_errno());
        }
      },
      deadline);
}

Result<std::size_t> read_shared(const Fd& fd, std::span<std::byte> buffer, Deadline deadline) {
  const iovec vector{buffer.data(), buffer.size()};
  return transfer_shared(
      fd, kRead, deadline,
      [&](int number) { return ::preadv2(number, &vector, 1, -1, RWF_NOWAIT); },
      [&](int number, bool) { return ::read(number, buffer.data(), buffer.size()); });
}

Result<std::size_t> write_shared(const Fd& fd, std::span<const std::byte> data, Deadline deadline) {
  const iovec vector{const_cast<std::byte*>(data.data()), data.size()};
  return transfer_shared(
      fd, kWrite, deadline,
      [&](int number) {
        SigpipeGuard guard;
        return ::pwritev2(number, &vector, 1, -1, RWF_NOWAIT);
      },
      [&](int number, bool file) {
        SigpipeGuard guard;
        // A blocking write waits until all is taken; so much fits once the descriptor is ready.
        const std::size_t fits = file ? data.size() : PIPE_BUF;
        return ::write(number, data.data(), std::min(data.size(), fits));
      });
}

}  // namespace

const std::error_category& stdio_category() noexcept {
  static const StdioCategory category;
  return category;
}

struct StandardStream::State {
  Fd fd;  // a descriptor of our own in any case, so that close() can't hit a reused number
  int access = O_RDONLY;
  Way way = Way::shared;
  Mutex reading;  // of a shared description; else Fd keeps the order
  Mutex writing;
  bool broken = false;  // a message was cut off in the middle; guarded by writing

  Result<std::size_t> read(std::span<std::byte> buffer, Deadline deadline) {
    switch (way) {
      case Way::own:
        return fd.read(buffer, deadline);
      case Way::socket: {
        Receive receive(buffer);
        return fd.attempt(kRead, receive, 0, deadline);
      }
      case Way::shared:
        break;
    }
    if (auto locked = reading.lock(deadline); !locked) return Unexpected{locked.error()};
    const std::lock_guard hold(reading, std::adopt_lock);
    return read_shared(fd, buffer, deadline);
  }

  Result<std::size_t> write(std::span<const std::byte> data, Deadline deadline) {
    switch (way) {
      case Way::own:
        return fd.write(data, deadline);
      case Way::socket: {
        Send send(data);
        return fd.attempt(kWrite, send, 0, deadline);
      }
      case Way::shared:
        break;
    }
    return write_shared(fd, data, deadline);
  }
};

// ---------------------------------------------------------------- making

StandardStream::StandardStream(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
StandardStream::StandardStream(StandardStream&&) noexcept = default;
StandardStream& StandardStream::operator=(StandardStream&&) noexcept = default;
StandardStream::~StandardStream() = default;

Result<StandardStream> StandardStream::open(int fd, int access) {
  struct stat status;
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fstat(fd, &status) != 0) return fail(make_error_code(StdioErrc::closed));
  const int mode = flags & O_ACCMODE;
  if (mode != O_RDWR && mode != access) return fail(make_error_code(StdioErrc::wrong_direction));
  auto state = std::make_unique<State>();
  state->access = access;
  if (S_ISSOCK(status.st_mode)) state->way = Way::socket;
  OwnedFd own;
  // A file has one position, which all who share it move.
  if (S_ISFIFO(status.st_mode) || S_ISCHR(status.st_mode)) {
    if (auto again = reopen(fd, access)) {
      own = std::move(*again);
      state->way = Way::own;
    }
  }
  if (!own) own.reset(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
  if (!own) return fail(last_errno());
  const auto kind = S_ISSOCK(status.st_mode) ? FdKind::stream : FdKind::other;
  RUNLOOM_TRY(state->fd, Fd::own(own.number(), kind));
  static_cast<void>(own.release());
  return StandardStream(std::move(state));
}

Result<StandardStream> stdin_stream() {
  return StandardStream::open(STDIN_FILENO, O_RDONLY);
}
Result<StandardStream> stdout_stream() {
  return StandardStream::open(STDOUT_FILENO, O_WRONLY);
}
Result<StandardStream> stderr_stream() {
  return StandardStream::open(STDERR_FILENO, O_WRONLY);
}

// ---------------------------------------------------------------- transfers

Result<std::size_t> StandardStream::read_some(std::span<std::byte> buffer, Deadline deadline) {
  if (state_->access != O_RDONLY) return fail_errno(EBADF);
  if (buffer.empty()) return std::size_t{0};
  return state_->read(buffer, deadline);
}

Result<void> StandardStream::wait_readable(Deadline deadline) {
  if (state_->access != O_RDONLY) return fail_errno(EBADF);
  return wait(state_->fd, kRead, deadline);
}

Result<std::size_t> StandardStream::write_some(std::span<const std::byte> data, Deadline deadline) {
  State& state = *state_;
  if (state.access != O_WRONLY) return fail_errno(EBADF);
  if (data.empty()) return std::size_t{0};
  if (auto locked = state.writing.lock(deadline); !locked) return Unexpected{locked.error()};
  const std::lock_guard hold(state.writing, std::adopt_lock);
  if (state.broken) return fail_errno(EPIPE);
  return state.write(data, deadline);
}

Result<void> StandardStream::write_all(std::span<const std::byte> data, Deadline deadline,
                                       std::size_t* bytes_written) {
  State& state = *state_;
  if (bytes_written) *bytes_written = 0;
  if (state.access != O_WRONLY) return fail_errno(EBADF);
  if (data.empty()) return {};
  if (auto locked = state.writing.lock(deadline); !locked) return locked;
  const std::lock_guard hold(state.writing, std::adopt_lock);
  if (state.broken) return fail_errno(EPIPE);
  std::size_t written = 0;
  std::error_code error;
  while (written < data.size() && !error) {
    if (written != 0 && deadline.passed()) {
      error = make_error_code(Errc::timed_out);
    } else if (const auto count = state.write(data.subspan(written), deadline)) {
      written += *count;
    } else {
      error = count.error();
    }
  }
  if (bytes_written) *bytes_written = written;
  if (!error) return {};
  state.broken =
      written != 0 && !bytes_written && (error == Errc::timed_out || error == Errc::cancelled);
  return Unexpected{error};
}

Result<void> StandardStream::shutdown_write() {
  if (state_->access != O_WRONLY) return fail_errno(EBADF);
  if (!state_->fd) return fail(Errc::closed);
  state_->fd.close();
  return {};
}

void StandardStream::close() noexcept {
  if (state_) state_->fd.close();
}

bool StandardStream::reopened() const noexcept {
  return state_->way == Way::own;
}

}  // namespace runloom::net
