// Writing: data to records in the outbox, ciphertext to the stream below; and the goodbyes.
#include <algorithm>
#include <array>
#include <cerrno>

#include "core.hpp"

namespace runloom::tls {
namespace {

// Ciphertext that a writer lets pile up before it sends: as much as goes in one system call.
constexpr std::size_t kMark = 4 * SSL3_RT_MAX_PLAIN_LENGTH;
// But the first record goes at once, so that the peer works on it while we make the next ones.
constexpr std::size_t kFirstMark = 1;
// What buffers of a writev_all are gathered into when they are small, so that each does not become
// a record of its own.
constexpr std::size_t kGather = 4096;

}  // namespace

Result<void> Stream::Core::flush(Hold& hold, Deadline deadline) {
  Outbox& out = engine.port().out;
  const auto sent = out.flush(hold, *below, out.queued(), deadline);
  if (sent) return sent;
  if (closed) return fail(Errc::closed);
  if (sent.error() == Errc::timed_out) blocked_on = net::kWrite;
  // Nobody is left to send it but a reader, who may be waiting for the answer to it.
  if (out.waiting() != 0 && !out.error() && !out.sending() && read_wait && !read_wait->asked) {
    read_wait->asked = true;
    read_wait->scope.set_deadline(Deadline::after(kFirstRetry));
  }
  return sent;
}

Result<void> Stream::Core::may_write() const noexcept {
  if (closed) return fail(Errc::closed);
  if (engine.port().out.error()) return Unexpected{engine.port().out.error()};
  if (cut_off) return fail_errno(EPIPE);
  if (engine.error()) return Unexpected{engine.error()};
  if (engine.close_notify_sent()) return Unexpected{tls_error(TlsErrc::write_ended)};
  return {};
}

Result<std::size_t> Stream::Core::write_some(std::span<const std::byte> data, Deadline deadline) {
  if (data.empty()) return std::size_t{0};
  if (auto ok = handshake(deadline); !ok) return Unexpected{ok.error()};
  const Turn turn(write_turn, deadline);
  if (!turn) return Unexpected{turn.error()};
  Hold hold(lock);
  if (auto ok = may_write(); !ok) return Unexpected{ok.error()};
  if (auto ok = flush(hold, deadline); !ok) return Unexpected{ok.error()};
  if (auto ok = may_write(); !ok) return Unexpected{ok.error()};
  std::size_t count = 0;
  if (engine.write(data, count) != Step::done) return Unexpected{engine.error()};
  engine.rest();
  const auto sent = flush(hold, deadline);
  // The bytes are part of the stream, whoever sends what is left of them.
  if (sent || ends_the_call_only(sent.error())) return count;
  return Unexpected{sent.error()};
}

// The writer's turn is held.
Result<void> Stream::Core::write_records(std::span<const std::byte> data, Deadline deadline,
                                         std::size_t& written) {
  Hold hold(lock);
  for (bool sent_before = false;; sent_before = true) {
    if (auto ok = may_write(); !ok) return ok;
    // Each transfer makes an attempt even past the deadline; the whole must not go on for ever.
    if (sent_before && deadline.passed()) {
      blocked_on = net::kWrite;
      return fail(Errc::timed_out);
    }
    Outbox& out = engine.port().out;
    const std::size_t mark = sent_before ? kMark : kFirstMark;
    while (!data.empty() && out.waiting() < mark) {
      std::size_t count = 0;
      if (engine.write(data, count) != Step::done) return Unexpected{engine.error()};
      written += count;
      data = data.subspan(count);
    }
    if (data.empty()) engine.rest();
    if (auto ok = flush(hold, deadline); !ok) return ok;
    if (data.empty()) return {};
  }
}

Result<void> Stream::Core::writev_all(std::span<const iovec> buffers, Deadline deadline,
                                      std::size_t* bytes_written) {
  std::size_t written = 0;
  if (bytes_written) *bytes_written = 0;
  if (auto ok = handshake(deadline); !ok) return ok;
  const Turn turn(write_turn, deadline);
  if (!turn) return Unexpected{turn.error()};
  Result<void> result;
  std::size_t wanted = 0;
  for (const iovec& buffer : buffers)
    wanted += buffer.iov_len;
  if (buffers.size() <= 1 || wanted > kGather) {
    if (wanted == 0) result = write_records({}, deadline, written);
    for (const iovec& buffer : buffers) {
      if (buffer.iov_len == 0) continue;
      result = write_records({static_cast<const std::byte*>(buffer.iov_base), buffer.iov_len},
                             deadline, written);
      if (!result) break;
    }
  } else {
    std::array<std::byte, kGather> gathered;
    std::size_t count = 0;
    for (const iovec& buffer : buffers) {
      const auto* from = static_cast<const std::byte*>(buffer.iov_base);
      std::copy_n(from, buffer.iov_len, gathered.data() + count);
      count += buffer.iov_len;
    }
    result = write_records(std::span(gathered).first(count), deadline, written);
    OPENSSL_cleanse(gathered.data(), count);
  }
  if (bytes_written) *bytes_written = written;
  if (!result && !bytes_written && written != 0) cut_off = true;
  return result;
}

// ---------------------------------------------------------------- goodbyes

// close_notify: none -> queued, behind all data -> sent. Nothing can be written from `queued` on;
// a call that was cut off between is repeated to send it.
Result<void> Stream::Core::shutdown_write(Deadline deadline) {
  if (closed) return fail(Errc::closed);
  if (!established) return Unexpected{tls_error(TlsErrc::not_established)};
  const Turn turn(write_turn, deadline);
  if (!turn) return Unexpected{turn.error()};
  Hold hold(lock);
  if (closed) return fail(Errc::closed);
  // A half message is no end.
  if (cut_off) return fail_errno(EPIPE);
  if (engine.send_close_notify() != Step::done) return Unexpected{engine.error()};
  return flush(hold, deadline);
}

Result<void> Stream::Core::shutdown(Deadline deadline) {
  if (auto ok = shutdown_write(deadline); !ok) return ok;
  const Turn turn(read_turn, deadline);
  if (!turn) return Unexpected{turn.error()};
  std::array<std::byte, 1> byte;
  std::size_t count = 0;
  const auto step = pump([&] { return engine.read(byte, count); }, deadline);
  OPENSSL_cleanse(byte.data(), byte.size());
  if (!step) {
    if (step.error() == TlsErrc::unexpected_eof && engine.context()->ignore_truncation) return {};
    return Unexpected{step.error()};
  }
  if (*step == Step::end) return {};
  if (*step == Step::done) return Unexpected{tls_error(TlsErrc::data_after_close_notify)};
  const Hold hold(lock);
  return Unexpected{engine.error()};
}

Result<void> Stream::Core::update_keys(bool peer_too, Deadline deadline) {
  if (!established) return Unexpected{tls_error(TlsErrc::not_established)};
  const Turn turn(write_turn, deadline);
  if (!turn) return Unexpected{turn.error()};
  Hold hold(lock);
  if (auto ok = may_write(); !ok) return ok;
  if (auto ok = engine.update_keys(peer_too); !ok) return ok;
  return flush(hold, deadline);
}

}  // namespace runloom::tls
