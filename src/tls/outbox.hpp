// Outbox: ciphertext that is to be sent, in order, and the role of the one who sends it.
//
// The engine appends under the connection's lock. Whoever needs bytes sent calls flush(): when
// nobody is sending, the caller takes the role, sends what is queued outside of the lock (it may
// park there) and wakes the others; else it waits until the sender has sent so far, or has left,
// and then takes over. So ciphertext leaves in the order in which it was made whoever sends it, and
// a sender that is cancelled hands the rest over. What it did not send stays queued.
//
// States: idle -> sending -> idle; failed for good when the stream below has failed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <system_error>

#include "chunk.hpp"
#include "runloom/net/stream.hpp"
#include "runloom/sched/cond_var.hpp"
#include "runloom/sched/deadline.hpp"
#include "runloom/sched/mutex.hpp"
#include "runloom/sched/result.hpp"

namespace runloom::tls {

// True for what a later call may repeat: the stream itself is as good as before.
bool ends_the_call_only(std::error_code error) noexcept;

// Used under the connection's lock only.
class Outbox {
 public:
  Outbox() = default;
  ~Outbox() { drop(); }
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  // False without memory; a part may have been taken. Doesn't park.
  bool append(std::span<const std::byte> data) noexcept;
  // Bytes appended and sent so far, and those between.
  std::uint64_t queued() const noexcept { return queued_; }
  std::uint64_t sent() const noexcept { return sent_; }
  std::size_t waiting() const noexcept { return static_cast<std::size_t>(queued_ - sent_); }
  bool sending() const noexcept { return sending_; }
  // Why nothing can be sent any more.
  std::error_code error() const noexcept { return error_; }

  // Returns when all of the first `target` bytes were sent. `hold` holds the lock, and does so
  // again when it returns. The deadline and cancellation of the caller end it, nothing is lost.
  Result<void> flush(std::unique_lock<Mutex>& hold, net::Stream& below, std::uint64_t target,
                     Deadline deadline);
  // Sends what the stream below takes at once, when nobody else is sending. Doesn't park.
  void try_flush(std::unique_lock<Mutex>& hold, net::Stream& below);

 private:
  void consume(std::size_t count) noexcept;
  void drop() noexcept;

  Chunk* first_ = nullptr;
  Chunk* last_ = nullptr;
  std::uint64_t queued_ = 0;
  std::uint64_t sent_ = 0;
  bool sending_ = false;
  std::error_code error_;
  CondVar progress_;
};

}  // namespace runloom::tls
