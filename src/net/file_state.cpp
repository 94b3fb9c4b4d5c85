#include "file_state.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <mutex>

namespace runloom::net {

void FileWays::learn_flags(int flags) noexcept {
  // RWF_NOWAIT keeps such a transfer from waiting for memory, but not for the device.
  if (flags >= 0 && (flags & O_DIRECT) != 0) {
    read = Instant::never;
    write = Instant::never;
  }
}

FileState::FileState(int number, int open_flags) noexcept : fd(number), flags(open_flags) {
  ways.learn_flags(open_flags);
}

bool FileState::enter() noexcept {
  std::uint32_t word = word_.load(std::memory_order_relaxed);
  do {
    if (word & kClosed) return false;
  } while (!word_.compare_exchange_weak(word, word + 1, std::memory_order_acquire,
                                        std::memory_order_relaxed));
  return true;
}

void FileState::leave() noexcept {
  if (word_.fetch_sub(1, std::memory_order_acq_rel) != (kClosed | 1)) return;
  detail::Waiter* waiter = nullptr;
  bool orphaned;
  {
    std::lock_guard hold(lock_);
    orphaned = end_ == End::orphaned;
    if (end_ == End::awaited && detail::claim(closer_, detail::kWakeUser)) waiter = closer_.waiter;
    end_ = End::drained;
  }
  if (waiter) detail::schedule(waiter);
  if (orphaned) ::close(fd);
}

bool FileState::mark_closed() noexcept {
  return (word_.fetch_or(kClosed, std::memory_order_acq_rel) & kClosed) == 0;
}

void FileState::orphan() noexcept {
  {
    std::lock_guard hold(lock_);
    end_ = End::orphaned;
  }
  leave();
}

Result<void> FileState::drain(Deadline deadline) noexcept {
  closer_ = detail::begin_wait();
  {
    std::lock_guard hold(lock_);
    end_ = End::awaited;
  }
  leave();
  const auto code = detail::wait(closer_, {.reason = WaitReason::io_close,
                                           .object = reinterpret_cast<void*>(std::intptr_t{fd}),
                                           .deadline = deadline,
                                           .cancellable = false,
                                           .external = true});
  if (code == detail::kWakeUser) return {};
  std::lock_guard hold(lock_);
  if (end_ == End::drained) return {};  // at the last moment
  end_ = End::orphaned;
  return fail(detail::wake_error(code));
}

}  // namespace runloom::net
