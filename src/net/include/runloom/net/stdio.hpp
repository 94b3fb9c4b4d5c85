// The standard streams, as Streams that park. Whatever stands behind them: a terminal, a pipe, a
// file, a socket, /dev/null.
//
// The descriptor's own flags are never changed, because other processes share them. A terminal, a
// pipe, a device is opened once more, for a description of our own that may be non-blocking; what
// can't be (a socket, the pipe of another user) is used without waiting in the kernel, and where
// that isn't possible either (a file) on the blocking pool. See fd_ops.hpp.
//
// Nothing is buffered here: use BufferedReader to read lines. stdio and iostreams have buffers of
// their own, so what goes through both mixes.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <system_error>

#include "runloom/net/stream.hpp"

namespace runloom::net {

// Why there is no such stream. Both compare equal to std::errc::bad_file_descriptor.
enum class StdioErrc {
  closed = 1,       // the process was started without it, or has closed it
  wrong_direction,  // standard input is open for writing only, or the others for reading only
};
const std::error_category& stdio_category() noexcept;
inline std::error_code make_error_code(StdioErrc e) noexcept {
  return {static_cast<int>(e), stdio_category()};
}

// A standard stream. Destroying or closing it leaves descriptors 0, 1 and 2 open: they are the
// process's. Any fiber and any OS thread may use it at the same time, close() included.
class StandardStream final : public Stream {
 public:
  StandardStream(StandardStream&&) noexcept;
  StandardStream& operator=(StandardStream&&) noexcept;
  ~StandardStream() override;

  // Reading, of standard input; EBADF on the others. A terminal gives a line at a time.
  Result<std::size_t> read_some(std::span<std::byte> buffer, Deadline deadline = {}) override;
  Result<void> wait_readable(Deadline deadline = {}) override;
  // Writing, of standard output and error; EBADF on standard input. EPIPE, without a signal, when
  // nobody reads any more. One writer at a time writes whole.
  Result<std::size_t> write_some(std::span<const std::byte> data, Deadline deadline = {}) override;
  Result<void> write_all(std::span<const std::byte> data, Deadline deadline = {},
                         std::size_t* bytes_written = nullptr) override;
  // Closes our side only; whoever else has the descriptor may go on writing.
  Result<void> shutdown_write() override;
  // Ends waits with Errc::closed. A transfer that is on the blocking pool is waited for.
  void close() noexcept override;

  // Whether it has a description of its own, and so never needs the pool.
  bool reopened() const noexcept;

 private:
  struct State;
  explicit StandardStream(std::unique_ptr<State> state) noexcept;
  static Result<StandardStream> open(int fd, int access);
  friend Result<StandardStream> stdin_stream();
  friend Result<StandardStream> stdout_stream();
  friend Result<StandardStream> stderr_stream();
  std::unique_ptr<State> state_;
};

// Make one. They don't park. Fail with StdioErrc, EMFILE, ENOMEM. Several of one descriptor may
// exist.
Result<StandardStream> stdin_stream();
Result<StandardStream> stdout_stream();
Result<StandardStream> stderr_stream();

}  // namespace runloom::net

template <>
struct std::is_error_code_enum<runloom::net::StdioErrc> : std::true_type {};
