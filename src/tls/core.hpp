// Stream::Core: a TLS connection, and who may do what at which time.
//
// - `lock` guards the engine with its inbox and outbox. It is held for one OpenSSL call at a time,
//   never while a fiber is parked, and never across a call into the stream below.
// - `read_turn`, `write_turn`, `handshake_turn` are roles. Their holder may park: the reader alone
//   reads the stream below and fills the inbox, the writer alone makes records of data, and while
//   there is a handshake its maker alone does both. They are taken before `lock`, and only
//   handshake_turn before another turn.
// - Sending ciphertext is a role of its own (outbox.hpp), because readers make some, too: answers
//   to key updates, alerts.
//
// The pump. A call asks the engine, under the lock. What the engine then wants decides:
//
//     done          the result. Writers and handshakes flush the outbox, and may park for that
//     wants_input   flush (only try, on the reading side), read the stream below, feed, ask again
//     end, failed   the end of reading; the connection has failed for good
//
// A reader never waits for the stream below to take bytes: a peer that sends all it has before
// it reads would be waited for by a side that it waits for. So the reader tries to send, and while
// something is left that nobody is sending, its wait ends now and then to try again. A writer that
// leaves something behind ends the wait of a reader for that.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <system_error>

#include "engine.hpp"
#include "runloom/net/stream.hpp"
#include "runloom/sched/cancel.hpp"
#include "runloom/sched/deadline.hpp"
#include "runloom/sched/mutex.hpp"
#include "runloom/sched/result.hpp"
#include "runloom/tls/stream.hpp"

namespace runloom::tls {

// How long a reader waits before it tries again to send what the stream below did not take, while
// nobody else does: doubled from the first to the last.
inline constexpr std::chrono::milliseconds kFirstRetry{5};
inline constexpr std::chrono::milliseconds kLastRetry{1000};

// A turn, for as long as it lives.
class Turn {
 public:
  Turn(Mutex& mutex, Deadline deadline) : mutex_(mutex), got_(mutex.lock(deadline)) {}
  ~Turn() {
    if (got_) mutex_.unlock();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  explicit operator bool() const noexcept { return got_.has_value(); }
  std::error_code error() const noexcept { return got_.error(); }

 private:
  Mutex& mutex_;
  Result<void> got_;
};

// A reader that waits for the stream below, and that a writer may want to send what he left.
// Guarded by the connection's lock, but for the scope's own part.
struct ReadWait {
  CancelScope scope;
  bool asked = false;  // once: a later deadline in the scope would hide the earlier one
};

struct Stream::Core {
  using Step = Engine::Step;
  using Hold = std::unique_lock<Mutex>;

  static Result<std::unique_ptr<Core>> make(std::unique_ptr<net::Stream> below,
                                            std::shared_ptr<const Context::State> context,
                                            const std::string& host,
                                            const std::shared_ptr<const Session::State>& session,
                                            std::string received);

  // --- handshake.cpp ---
  Result<void> handshake(Deadline deadline);
  Result<void> run_handshake(Deadline deadline);
  bool first_words_wanted();
  Result<void> handshake_done(Hold& hold, Deadline deadline);
  Result<void> ask_handler(Hold& hold);

  // --- read.cpp ---
  // Reads the stream below into the inbox, once. By the holder of the turn that reads. Succeeds
  // without bytes when it woke to send what is left.
  Result<void> fill(Deadline deadline);
  // Waits until `attempt(hold)` ends in something else than wants_input.
  template <class Attempt>
  Result<Step> pump(Attempt attempt, Deadline deadline);
  Result<std::size_t> read_result(Step step, std::size_t count);
  Result<std::size_t> read_some(std::span<std::byte> buffer, Deadline deadline);
  Result<std::size_t> read_late(net::RecvBuffer& buffer, Deadline deadline);
  Result<void> wait_readable(Deadline deadline);

  // --- write.cpp ---
  // Sends all that is queued.
  Result<void> flush(Hold& hold, Deadline deadline);
  Result<void> may_write() const noexcept;
  Result<std::size_t> write_some(std::span<const std::byte> data, Deadline deadline);
  Result<void> writev_all(std::span<const iovec> buffers, Deadline deadline,
                          std::size_t* bytes_written);
  Result<void> write_records(std::span<const std::byte> data, Deadline deadline,
                             std::size_t& written);
  Result<void> shutdown_write(Deadline deadline);
  Result<void> shutdown(Deadline deadline);
  Result<void> update_keys(bool peer_too, Deadline deadline);

  void close() noexcept;

  std::unique_ptr<net::Stream> below;
  std::atomic<bool> closed{false};
  std::atomic<bool> established{false};
  std::atomic<unsigned> blocked_on{0};

  Mutex handshake_turn;
  Mutex read_turn;
  Mutex write_turn;

  // Of the holder of the turn that reads.
  std::error_code read_error;  // the stream below has failed, or ended without close_notify
  bool ended = false;
  // Of the holder of the handshake's turn.
  std::error_code handshake_error;
  std::error_code handshake_write_error;
  // Of the writer: a message was cut off, and nobody can tell where.
  bool cut_off = false;

  mutable Mutex lock;
  // Guarded by lock.
  Engine engine;
  ReadWait* read_wait = nullptr;  // of a fill() that waits
};

template <class Attempt>
Result<Engine::Step> Stream::Core::pump(Attempt attempt, Deadline deadline) {
  for (bool filled = false;; filled = true) {
    Step step;
    {
      Hold hold(lock);
      if (closed) return fail(Errc::closed);
      step = attempt();
      // Alerts, and answers to key updates.
      engine.port().out.try_flush(hold, *below);
    }
    if (step != Step::wants_input) return step;
    // A peer that sends a byte now and then, or nothing but empty messages, extends no deadline.
    if (filled && deadline.passed()) {
      blocked_on = net::kRead;
      return fail(Errc::timed_out);
    }
    if (auto more = fill(deadline); !more) return Unexpected{more.error()};
  }
}

}  // namespace runloom::tls
