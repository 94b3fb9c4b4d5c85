// Pipes and FIFOs: a PipeReader and a PipeWriter. Both are Streams, of one direction: what the
// other direction would do fails with EBADF, as it does with the kernel. Writing to a pipe that
// nobody reads fails with EPIPE; no signal is raised. See pipe(7).
//
// Any fiber and any OS thread may use an end at the same time, close() included; only moving and
// destroying it need that nobody else uses the object. Destroying closes.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "runloom/net/fd.hpp"
#include "runloom/net/stream.hpp"

namespace runloom::net {

class PipeReader final : public Stream {
 public:
  PipeReader() = default;  // closed
  explicit PipeReader(Fd fd) noexcept : fd_(std::move(fd)) {}
  PipeReader(PipeReader&&) noexcept = default;
  PipeReader& operator=(PipeReader&&) noexcept = default;

  // Takes over an end for reading that somebody else made; on failure it still belongs to the
  // caller. The number stays, and leads to an open file description of our own from now on, so that
  // other processes that have the same end don't find it in non-blocking mode. Where the kernel
  // refuses that (the pipe of another user) the shared one is put into non-blocking mode until
  // detach(). Fails with EINVAL for what is no pipe, EBADF, EBUSY when a live net object owns it.
  static Result<PipeReader> adopt(int fd);

  // False once it was closed.
  explicit operator bool() const noexcept { return static_cast<bool>(fd_); }
  const Fd& fd() const noexcept { return fd_; }

  // Parks until there is something: at most what one writer wrote at once, if that fits PIPE_BUF. 0
  // when nobody can write any more.
  Result<std::size_t> read_some(std::span<std::byte> buffer, Deadline deadline = {}) override;
  Result<void> wait_readable(Deadline deadline = {}) override;
  void close() noexcept override { fd_.close(); }
  // Gives the descriptor away, in blocking mode, see Fd::release. Parks, no cancel point.
  Result<int> detach() noexcept { return fd_.release(); }

  // EBADF.
  Result<std::size_t> write_some(std::span<const std::byte> data, Deadline deadline = {}) override;
  Result<void> shutdown_write() override;

 private:
  Fd fd_;
};

class PipeWriter final : public Stream {
 public:
  PipeWriter() = default;  // closed
  explicit PipeWriter(Fd fd) noexcept : fd_(std::move(fd)) {}
  PipeWriter(PipeWriter&&) noexcept = default;
  PipeWriter& operator=(PipeWriter&&) noexcept = default;

  // As PipeReader::adopt, an end for writing.
  static Result<PipeWriter> adopt(int fd);

  explicit operator bool() const noexcept { return static_cast<bool>(fd_); }
  const Fd& fd() const noexcept { return fd_; }

  // Parks while the pipe is full. Up to PIPE_BUF bytes go at once or not at all. EPIPE when nobody
  // reads any more.
  Result<std::size_t> write_some(std::span<const std::byte> data, Deadline deadline = {}) override;
  // Nobody else's bytes come in between, of those who write through this object.
  Result<void> write_all(std::span<const std::byte> data, Deadline deadline = {},
                         std::size_t* bytes_written = nullptr) override {
    return fd_.send_all(data, deadline, bytes_written);
  }
  Result<void> writev_all(std::span<const iovec> buffers, Deadline deadline = {},
                          std::size_t* bytes_written = nullptr) override {
    return fd_.send_all(buffers, deadline, bytes_written);
  }
  Result<void> wait_writable(Deadline deadline = {});
  // Closes: a pipe has no other way to end.
  Result<void> shutdown_write() override;
  void close() noexcept override { fd_.close(); }
  Result<int> detach() noexcept { return fd_.release(); }

  // EBADF.
  Result<std::size_t> read_some(std::span<std::byte> buffer, Deadline deadline = {}) override;
  Result<void> wait_readable(Deadline deadline = {}) override;

 private:
  Fd fd_;
};

// A fresh pipe, close-on-exec. Doesn't park.
struct Pipe {
  PipeReader reader;
  PipeWriter writer;
  static Result<Pipe> make();
};

}  // namespace runloom::net
