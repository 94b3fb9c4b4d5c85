// Fd: owns one descriptor, in non-blocking mode. The foundation of every stream, listener and
// socket; programs use those.
//
// Any fiber and any OS thread may use an Fd at the same time, close() included; only moving and
// destroying it need that nobody else uses the handle itself. In each direction operations run
// one after the other, first come first served. Everything that says so parks (on an OS thread:
// blocks), is a cancel point, and ends in one outcome, by precedence: bytes moved > closed >
// cancelled > timed out. A deadline that has passed still makes one attempt.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "runloom/sched/deadline.hpp"
#include "runloom/sched/result.hpp"

namespace runloom::net {

struct PollDesc;

// Directions, as bits. The values of `wait_fd`: 1 read, 2 write.
inline constexpr unsigned kRead = 1;
inline constexpr unsigned kWrite = 2;

enum class FdKind : std::uint8_t {
  tcp,       // a TCP connection: a short transfer means that the kernel has no more
  stream,    // any other stream socket, a listening one included
  datagram,  // any other socket
  other,     // pipe, terminal, eventfd
};

// Memory for a receive that is asked for late, so that an operation that waits holds none.
class RecvBuffer {
 public:
  // Memory for what has come; empty: there is none. Neither call may park.
  virtual std::span<std::byte> take() noexcept = 0;
  // As take(), when it is known that `count` bytes have come: memory for exactly so many, or more.
  virtual std::span<std::byte> take_for(std::size_t count) noexcept {
    (void)count;
    return take();
  }
  // How many bytes take() has room for, at least; 0: that isn't known.
  virtual std::size_t room() const noexcept { return 0; }
  // So many bytes have come, 0 is the end of the stream; or nothing (-1) after all. The memory is
  // not used any more. Called before anybody else runs, so that fibers may share it. Keeps errno.
  virtual void give_back(std::ptrdiff_t count) noexcept = 0;

 protected:
  ~RecvBuffer() = default;
};

// A transfer of one direction that Fd has no call of its own for, such as recvmmsg or splice.
class Attempt {
 public:
  // Makes the system call, without blocking: what it returned, -1 and errno when it failed, EAGAIN
  // when it has to wait. May not park.
  virtual ssize_t make(int fd) noexcept = 0;
  // What it asks for, where getting less says that there was no more: the next attempt waits first.
  // 0: nothing says that.
  std::size_t wanted() const noexcept { return wanted_; }

 protected:
  explicit Attempt(std::size_t wanted = 0) noexcept : wanted_(wanted) {}
  ~Attempt() = default;

 private:
  const std::size_t wanted_;
};

class Fd {
 public:
  Fd() = default;
  // Takes `fd` over and puts it into non-blocking mode. On failure it still belongs to the caller:
  // EBADF, EBUSY when a live Fd owns it, EPERM for a regular file or directory, ENOMEM.
  static Result<Fd> adopt(int fd);
  // As adopt, for a descriptor of ours that is non-blocking already and of a known kind. release()
  // hands it out in blocking mode.
  static Result<Fd> own(int fd, FdKind kind);
  Fd(Fd&& other) noexcept
      : desc_(std::exchange(other.desc_, nullptr)), generation_(other.generation_) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      close();
      desc_ = std::exchange(other.desc_, nullptr);
      generation_ = other.generation_;
    }
    return *this;
  }
  ~Fd() { close(); }

  // False once it was closed.
  explicit operator bool() const noexcept { return number() >= 0; }
  // The descriptor's number; -1 once it was closed. It may be closed by others at any time: Use
  // keeps it open.
  int number() const noexcept;

  // Keeps the descriptor open, and its number its own, for a system call that does not wait.
  class Use {
   public:
    explicit Use(const Fd& fd) noexcept;
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    explicit operator bool() const noexcept { return desc_ != nullptr; }
    int number() const noexcept;
    PollDesc& desc() const noexcept { return *desc_; }

   private:
    PollDesc* desc_ = nullptr;
  };

  // Ends every operation in flight with Errc::closed; the last one to leave closes the
  // descriptor. Idempotent, doesn't park.
  void close() noexcept;
  // As close(); returns when the descriptor is closed and its port free, or at `deadline`. Parks,
  // but is no cancel point. Where parking is forbidden it returns at once. An OS thread waits for a
  // second at most: the fibers that use the descriptor may belong to a scheduler that nobody runs.
  void close_wait(Deadline deadline = {}) noexcept;
  // Ends every operation in flight with Errc::closed, waits until they have left, and hands the
  // descriptor over in the mode it had when it was adopted. Parks, no cancel point. Off a fiber,
  // and where parking is forbidden: EBUSY while anybody else uses the descriptor, and nothing has
  // happened to it.
  Result<int> release() noexcept;

  // A weak name of the descriptor: it may outlive the Fd, and does nothing then.
  class Weak {
   public:
    Weak() = default;
    explicit Weak(const Fd& fd) noexcept : desc_(fd.desc_), generation_(fd.generation_) {}
    // As Fd::close(). Any thread.
    void close() const noexcept { Fd(desc_, generation_).close(); }

   private:
    PollDesc* desc_ = nullptr;
    std::uint32_t generation_ = 0;
  };

  // One transfer each. They park.
  //
  // On a stream, MSG_WAITALL fills the buffer; fewer bytes when the stream ends, or when the
  // deadline or a cancel ends the wait after some had come. MSG_DONTWAIT never parks: EAGAIN.
  Result<std::size_t> recv(std::span<std::byte> buffer, int flags, Deadline deadline) const;
  // As recv without flags, but takes the memory only when something may be there, and never holds
  // it while parked. ENOMEM when there is none.
  Result<std::size_t> recv_late(RecvBuffer& buffer, Deadline deadline) const;
  Result<std::size_t> send(std::span<const std::byte> data, int flags, Deadline deadline) const;
  Result<std::size_t> recvmsg(msghdr& message, int flags, Deadline deadline) const;
  Result<std::size_t> sendmsg(const msghdr& message, int flags, Deadline deadline) const;
  Result<std::size_t> read(std::span<std::byte> buffer, Deadline deadline) const;
  Result<std::size_t> write(std::span<const std::byte> data, Deadline deadline) const;
  // Makes the attempt in one direction (kRead or kWrite), again and again while it has to wait for
  // the descriptor. MSG_DONTWAIT in `flags`: once, EAGAIN.
  Result<std::size_t> attempt(unsigned direction, Attempt& attempt, int flags,
                              Deadline deadline) const;
  // Sends the data, or the buffers in order, whole (writes it, where the descriptor is no socket);
  // nobody else's bytes come in between.
  // The deadline bounds the whole call. `bytes_sent` is set whatever the outcome. Without it
  // nobody can tell how far a message got that a deadline or a cancel cut off in the middle, so
  // every later write fails with EPIPE.
  Result<void> send_all(std::span<const std::byte> data, Deadline deadline,
                        std::size_t* bytes_sent = nullptr) const;
  Result<void> send_all(std::span<const iovec> buffers, Deadline deadline,
                        std::size_t* bytes_sent = nullptr) const;
  // Sends up to `count` bytes of the file `in`, from `offset`, without copying them through user
  // space; fewer at the end of the file: returns how many. What the page cache has not is read on
  // the blocking pool.
  Result<std::size_t> send_file(int in, off_t offset, std::size_t count, Deadline deadline,
                                std::size_t* bytes_sent = nullptr) const;
  // A non-blocking, close-on-exec descriptor. `peer` may be null.
  Result<int> accept(sockaddr* peer, socklen_t* peer_size, Deadline deadline) const;
  Result<void> connect(const sockaddr* peer, socklen_t peer_size, Deadline deadline) const;
  // Waits until one of `directions` would not block, an error or hang-up counts for both; returns
  // the ready ones. Holds no direction: others may read and write meanwhile.
  Result<unsigned> wait_ready(unsigned directions, Deadline deadline) const;
  // shutdown(2). Doesn't park.
  Result<void> shutdown(int how) const;

 private:
  Fd(PollDesc* desc, std::uint32_t generation) noexcept : desc_(desc), generation_(generation) {}
  bool begin_close(bool only_if_unused = false) noexcept;
  PollDesc* desc_ = nullptr;
  std::uint32_t generation_ = 0;
};

}  // namespace runloom::net
