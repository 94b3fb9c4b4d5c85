// Reading: ciphertext from the stream below to the engine, data from the engine to the caller.
#include <algorithm>
#include <cerrno>

#include "core.hpp"

namespace runloom::tls {
namespace {

// Room for ciphertext, taken when there is some.
class Arrival final : public net::RecvBuffer {
 public:
  std::span<std::byte> take() noexcept override { return take_for(kLargeChunk); }
  std::span<std::byte> take_for(std::size_t count) noexcept override {
    if (!chunk_) chunk_ = take_chunk(count);
    if (!chunk_) return {};
    return {chunk_->data(), chunk_->capacity};
  }
  std::size_t room() const noexcept override { return kLargeChunk; }
  void give_back(std::ptrdiff_t count) noexcept override {
    const int err = errno;
    if (count > 0 && chunk_) {
      chunk_->end = static_cast<std::uint32_t>(count);
    } else {
      chunk_.reset();
    }
    errno = err;
  }
  ChunkPtr release() noexcept { return std::move(chunk_); }

 private:
  ChunkPtr chunk_;
};

}  // namespace

Result<void> Stream::Core::fill(Deadline deadline) {
  if (read_error) return Unexpected{read_error};
  if (ended) return Unexpected{tls_error(TlsErrc::unexpected_eof)};
  for (auto pause = kFirstRetry;; pause = std::min(pause * 2, kLastRetry)) {
    Deadline until = deadline;
    ReadWait waiting;
    {
      Hold hold(lock);
      Outbox& out = engine.port().out;
      out.try_flush(hold, *below);
      if (out.waiting() != 0 && !out.error() && !out.sending())
        until = Deadline::earlier(deadline, Deadline::after(pause));
      engine.rest();
      read_wait = &waiting;
    }
    Arrival arrival;
    const auto count = below->read_late(arrival, until);
    {
      const Hold hold(lock);
      read_wait = nullptr;
      if (count && *count != 0) {
        engine.port().in.feed(arrival.release());
        return {};
      }
    }
    if (count) {
      ended = true;
      return Unexpected{tls_error(TlsErrc::unexpected_eof)};
    }
    if (closed) return fail(Errc::closed);
    if (count.error() == Errc::timed_out) {
      // By the wait for another try to send, and not by what the caller is bounded by.
      if ((until.passed() || waiting.asked) && !deadline.passed()) continue;
      blocked_on = net::kRead;
    }
    // Without memory nothing was taken, and the next call may have some.
    if (!ends_the_call_only(count.error()) && count.error() != errno_code(ENOMEM))
      read_error = count.error();
    return Unexpected{count.error()};
  }
}

Result<std::size_t> Stream::Core::read_result(Step step, std::size_t count) {
  if (step == Step::done) return count;
  if (step == Step::end) return std::size_t{0};
  const Hold hold(lock);
  return Unexpected{engine.error()};
}

Result<std::size_t> Stream::Core::read_some(std::span<std::byte> buffer, Deadline deadline) {
  if (auto ok = handshake(deadline); !ok) return Unexpected{ok.error()};
  const Turn turn(read_turn, deadline);
  if (!turn) return Unexpected{turn.error()};
  std::size_t count = 0;
  const auto step = pump([&] { return engine.read(buffer, count); }, deadline);
  if (step) return read_result(*step, count);
  if (step.error() == TlsErrc::unexpected_eof && engine.context()->ignore_truncation)
    return std::size_t{0};
  return Unexpected{step.error()};
}

Result<std::size_t> Stream::Core::read_late(net::RecvBuffer& buffer, Deadline deadline) {
  if (auto ok = handshake(deadline); !ok) return Unexpected{ok.error()};
  const Turn turn(read_turn, deadline);
  if (!turn) return Unexpected{turn.error()};
  std::size_t count = 0;
  bool no_memory = false;
  // Takes the memory when the engine has data, and gives it back before the lock: nobody runs
  // between.
  const auto attempt = [&] {
    std::size_t pending = 0;
    Step step = engine.peek(pending);
    if (step != Step::done) return step;
    const std::size_t room = buffer.room();
    const std::size_t wanted = room == 0 ? pending : std::min(pending, room);
    const std::span<std::byte> memory = buffer.take_for(wanted);
    no_memory = memory.empty();
    if (no_memory) return Step::done;
    step = engine.read(memory, count);
    buffer.give_back(step == Step::done ? static_cast<std::ptrdiff_t>(count) : -1);
    return step;
  };
  const auto step = pump(attempt, deadline);
  if (no_memory) return fail_errno(ENOMEM);
  if (step) return read_result(*step, count);
  if (step.error() == TlsErrc::unexpected_eof && engine.context()->ignore_truncation)
    return std::size_t{0};
  return Unexpected{step.error()};
}

Result<void> Stream::Core::wait_readable(Deadline deadline) {
  if (auto ok = handshake(deadline); !ok) return ok;
  const Turn turn(read_turn, deadline);
  if (!turn) return Unexpected{turn.error()};
  std::size_t pending = 0;
  const auto step = pump([&] { return engine.peek(pending); }, deadline);
  // An end or an error is there to be read.
  if (step || !(ends_the_call_only(step.error()) || step.error() == Errc::closed)) return {};
  return Unexpected{step.error()};
}

}  // namespace runloom::tls
