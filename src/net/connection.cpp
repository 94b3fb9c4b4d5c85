// A read's time is counted in two ways. Until the head is there only the peer can be slow, so its
// deadlines are points in time, set once. In a body, and in writes, the handler may take its time
// between two calls: there only the time inside the calls counts, out of an allowance that every
// byte adds a little to. Either way no timer is set for more than the call that waits.
#include "runloom/net/connection.hpp"

#include <algorithm>
#include <chrono>

#include "server_counters.hpp"

namespace runloom::net {
namespace {

std::int64_t to_ns(std::chrono::milliseconds time) noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

Deadline after(std::chrono::milliseconds time) noexcept {
  return time.count() == 0 ? Deadline::never() : Deadline::after(time);
}

// What `bytes` may take at the rate.
std::int64_t time_of(std::size_t bytes, std::uint32_t rate) noexcept {
  if (rate == 0) return 0;
  return static_cast<std::int64_t>(static_cast<double>(bytes) * 1e9 / rate);
}

ServerTimeout counted(Connection::Expired which) noexcept {
  using Expired = Connection::Expired;
  switch (which) {
    case Expired::first_byte:
      return ServerTimeout::first_byte;
    case Expired::idle:
      return ServerTimeout::idle;
    case Expired::head:
      return ServerTimeout::head;
    case Expired::body:
      return ServerTimeout::body;
    case Expired::write:
    case Expired::none:
      return ServerTimeout::write;
  }
  return ServerTimeout::write;
}

}  // namespace

Connection::Connection(std::variant<TcpStream, UnixStream> socket, ConnectionInfo info,
                       const ServerTimeouts& timeouts, ServerCounters& counters,
                       const std::atomic<bool>& stopping)
    : socket_(std::move(socket)),
      stream_(std::visit([](Stream& each) { return &each; }, socket_)),
      info_(std::move(info)),
      timeouts_(timeouts),
      counters_(counters),
      stopping_(stopping) {}

// ---------------------------------------------------------------- where the handler stands

void Connection::await_request(bool begun) noexcept {
  read_until_ = after(begun ? timeouts_.head : first_ ? timeouts_.first_byte : timeouts_.idle);
  phase_ = begun ? Phase::head : Phase::await;
  bounds_writes_ = timeouts_.write.count() != 0;
  write_left_ns_ = to_ns(timeouts_.write);
}

void Connection::head_done() noexcept {
  first_ = false;
  phase_ = timeouts_.body.count() == 0 ? Phase::unbounded : Phase::body;
  body_left_ns_ = to_ns(timeouts_.body);
}

void Connection::unbounded() noexcept {
  first_ = false;
  phase_ = Phase::unbounded;
  bounds_writes_ = false;
}

void Connection::expire(Expired which) noexcept {
  expired_ = which;
  counters_.add(counted(which));
}

// ---------------------------------------------------------------- reads

Connection::Limit Connection::read_limit() noexcept {
  switch (phase_) {
    case Phase::unbounded:
      return {};
    case Phase::await:
      return {read_until_, first_ ? Expired::first_byte : Expired::idle};
    case Phase::head:
      return {read_until_, Expired::head};
    case Phase::body:
      return {Deadline::at_ns(monotonic_ns() + body_left_ns_), Expired::body};
  }
  return {};
}

// A request that is there when the stop comes is read: bytes win over a cancel.
template <class Call>
auto Connection::until_stop(Deadline deadline, Call&& call) {
  if (phase_ != Phase::await || first_) return call(deadline);
  CancelScope scope;
  {
    const std::lock_guard hold(idle_mutex_);
    idle_ = &scope;
  }
  // Who set it before it could see the scope leaves the scope to us, and everybody else sees it.
  if (stopping_.load()) scope.cancel();
  auto result = call(deadline);
  {
    const std::lock_guard hold(idle_mutex_);
    idle_ = nullptr;
  }
  if (!result && result.error() == Errc::cancelled && scope.cancelled())
    result = fail(Errc::closed);
  return result;
}

void Connection::stop_idle() noexcept {
  const std::lock_guard hold(idle_mutex_);
  if (idle_) idle_->cancel();
}

template <class Call>
Result<std::size_t> Connection::read(Deadline deadline, Call&& call) {
  if (phase_ == Phase::unbounded) return call(deadline);
  const Limit limit = read_limit();
  auto count = until_stop(Deadline::earlier(deadline, limit.deadline), call);
  if (phase_ == Phase::body)
    body_left_ns_ = std::max<std::int64_t>(0, limit.deadline.ns() - monotonic_ns());
  if (!count) {
    if (count.error() == Errc::timed_out && !(deadline < limit.deadline) && limit.deadline.passed())
      expire(limit.which);
    return count;
  }
  if (phase_ == Phase::body) body_left_ns_ += time_of(*count, timeouts_.least_rate);
  if (phase_ == Phase::await && *count != 0) {
    first_ = false;
    phase_ = Phase::head;
    read_until_ = after(timeouts_.head);
  }
  return count;
}

Result<std::size_t> Connection::read_some(std::span<std::byte> buffer, Deadline deadline) {
  return read(deadline, [&](Deadline until) { return stream_->read_some(buffer, until); });
}

Result<std::size_t> Connection::read_late(RecvBuffer& buffer, Deadline deadline) {
  return read(deadline, [&](Deadline until) { return stream_->read_late(buffer, until); });
}

Result<void> Connection::wait_readable(Deadline deadline) {
  if (phase_ == Phase::unbounded) return stream_->wait_readable(deadline);
  const Limit limit = read_limit();
  auto ready = until_stop(Deadline::earlier(deadline, limit.deadline),
                          [&](Deadline until) { return stream_->wait_readable(until); });
  if (phase_ == Phase::body)
    body_left_ns_ = std::max<std::int64_t>(0, limit.deadline.ns() - monotonic_ns());
  if (!ready && ready.error() == Errc::timed_out && !(deadline < limit.deadline) &&
      limit.deadline.passed())
    expire(limit.which);
  return ready;
}

// ---------------------------------------------------------------- writes

template <class Call>
auto Connection::write(std::size_t size, Deadline deadline, Call&& call) {
  if (!bounds_writes_) return call(deadline);
  const Deadline limit =
      Deadline::at_ns(monotonic_ns() + write_left_ns_ + time_of(size, timeouts_.least_rate));
  auto result = call(Deadline::earlier(deadline, limit));
  write_left_ns_ = std::max<std::int64_t>(0, limit.ns() - monotonic_ns());
  if (!result && result.error() == Errc::timed_out && !(deadline < limit) && limit.passed())
    expire(Expired::write);
  return result;
}

Result<std::size_t> Connection::write_some(std::span<const std::byte> data, Deadline deadline) {
  return write(data.size(), deadline,
               [&](Deadline until) { return stream_->write_some(data, until); });
}

Result<void> Connection::write_all(std::span<const std::byte> data, Deadline deadline,
                                   std::size_t* bytes_written) {
  return write(data.size(), deadline,
               [&](Deadline until) { return stream_->write_all(data, until, bytes_written); });
}

Result<void> Connection::writev_all(std::span<const iovec> buffers, Deadline deadline,
                                    std::size_t* bytes_written) {
  std::size_t size = 0;
  for (const iovec& buffer : buffers)
    size += buffer.iov_len;
  return write(size, deadline,
               [&](Deadline until) { return stream_->writev_all(buffers, until, bytes_written); });
}

// ---------------------------------------------------------------- the stream below

std::unique_ptr<Stream> Connection::take() {
  taken_ = true;
  std::unique_ptr<Stream> out =
      wrapped_ ? std::move(wrapped_)
               : std::visit(
                     [](auto& each) -> std::unique_ptr<Stream> {
                       return std::make_unique<std::decay_t<decltype(each)>>(std::move(each));
                     },
                     socket_);
  stream_ = std::visit([](Stream& each) { return &each; }, socket_);  // closed
  return out;
}

Result<void> Connection::wrap(const ServerOptions::Wrap& wrap, Deadline deadline) {
  auto made = wrap(take(), info_, deadline);
  taken_ = false;
  if (!made) return Unexpected{made.error()};
  if (!*made) return fail_errno(EINVAL);
  wrapped_ = std::move(*made);
  stream_ = wrapped_.get();
  return {};
}

const Fd& Connection::socket_fd() const noexcept {
  return std::visit([](const auto& each) -> const Fd& { return each.fd(); }, socket_);
}

}  // namespace runloom::net
