// FileState: what the handle of a file and its operations share: the descriptor, who uses it, and
// what was learned of it.
//
//     word: closed:1 | users:31
//
// The handle counts as one user until it closes, each operation as another one, also one that its
// fiber has left. The last user leads to the close: it tells the closer who waits for that, or
// closes itself when nobody does. So the number can't be reused under an operation.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "runloom/sched/deadline.hpp"
#include "runloom/sched/mutex.hpp"
#include "runloom/sched/park.hpp"
#include "runloom/sched/result.hpp"
#include "runloom/sched/spin_lock.hpp"

namespace runloom::net {

// Whether a transfer on the calling thread might wait for a device.
enum class Instant : std::uint8_t {
  try_it,  // RWF_NOWAIT says so
  always,  // no: the file system is memory
  never,   // nobody knows: leave it to the engine
};
struct FileWays {
  // Those of open(2).
  void learn_flags(int flags) noexcept;
  std::atomic<Instant> read{Instant::try_it};
  std::atomic<Instant> write{Instant::try_it};
};

struct FileState {
  static constexpr std::uint32_t kClosed = 1u << 31;

  FileState(int number, int open_flags) noexcept;
  FileState(const FileState&) = delete;
  FileState& operator=(const FileState&) = delete;

  bool enter() noexcept;
  // For who keeps it open already.
  void enter_again() noexcept { word_.fetch_add(1, std::memory_order_relaxed); }
  void leave() noexcept;
  // False: it was closed already.
  bool mark_closed() noexcept;
  bool closed() const noexcept { return (word_.load(std::memory_order_acquire) & kClosed) != 0; }
  // After mark_closed, by who did it: gives the handle's use back. The last user closes the
  // descriptor.
  void orphan() noexcept;
  // The same, but waits until the descriptor has no user any more, and leaves it to the caller.
  // Fails when the deadline passed first, or where it may not wait: then as orphan().
  Result<void> drain(Deadline deadline) noexcept;

  const int fd;
  const int flags;
  FileWays ways;
  Mutex position;                  // held by operations at the position
  std::atomic<int> late_error{0};  // an errno that nobody has been told yet

 private:
  std::atomic<std::uint32_t> word_{1};
  detail::SpinLock lock_{detail::LockRank::primitive};  // guards what follows
  enum class End : std::uint8_t { open, awaited, orphaned, drained };
  End end_ = End::open;
  detail::WaitToken closer_;  // while awaited
};

// A use of a file; empty: it is closed.
class FileUse {
 public:
  FileUse() noexcept = default;
  explicit FileUse(const std::shared_ptr<FileState>& state) noexcept {
    if (state && state->enter()) state_ = state;
  }
  FileUse(FileUse&& other) noexcept : state_(std::move(other.state_)) {}
  FileUse& operator=(FileUse&& other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }
  ~FileUse() {
    if (state_) state_->leave();
  }

  explicit operator bool() const noexcept { return state_ != nullptr; }
  FileState& state() const noexcept { return *state_; }
  int number() const noexcept { return state_->fd; }
  // Another one, also of a file that was closed meanwhile.
  FileUse again() const noexcept {
    FileUse other;
    if (state_) state_->enter_again();
    other.state_ = state_;
    return other;
  }

 private:
  std::shared_ptr<FileState> state_;
};

}  // namespace runloom::net
