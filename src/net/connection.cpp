// What a handler reads and writes: the stream below, within the deadlines of its requests.
#include "runloom/net/connection.hpp"

namespace runloom::net {

Connection::Connection(std::variant<TcpStream, UnixStream> socket, ConnectionInfo info,
                       const ServerTimeouts& timeouts, ServerCounters& counters,
                       const std::atomic<bool>& stopping)
    : socket_(std::move(socket)),
      stream_(std::visit([](Stream& each) { return &each; }, socket_)),
      info_(std::move(info)),
      clock_(std::make_shared<RequestClock>(timeouts, counters, stopping)) {}

// ---------------------------------------------------------------- reads and writes

Result<std::size_t> Connection::read_some(std::span<std::byte> buffer, Deadline deadline) {
  return clock_->read(deadline, [&](Deadline until) { return stream_->read_some(buffer, until); });
}

Result<std::size_t> Connection::read_late(RecvBuffer& buffer, Deadline deadline) {
  return clock_->read(deadline, [&](Deadline until) { return stream_->read_late(buffer, until); });
}

Result<void> Connection::wait_readable(Deadline deadline) {
  return clock_->wait(deadline, [&](Deadline until) { return stream_->wait_readable(until); });
}

Result<std::size_t> Connection::write_some(std::span<const std::byte> data, Deadline deadline) {
  return clock_->write(data.size(), deadline,
                       [&](Deadline until) { return stream_->write_some(data, until); });
}

Result<void> Connection::write_all(std::span<const std::byte> data, Deadline deadline,
                                   std::size_t* bytes_written) {
  return clock_->write(data.size(), deadline, [&](Deadline until) {
    return stream_->write_all(data, until, bytes_written);
  });
}

Result<void> Connection::writev_all(std::span<const iovec> buffers, Deadline deadline,
                                    std::size_t* bytes_written) {
  std::size_t size = 0;
  for (const iovec& buffer : buffers)
    size += buffer.iov_len;
  return clock_->write(size, deadline, [&](Deadline until) {
    return stream_->writev_all(buffers, until, bytes_written);
  });
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
  replace(std::move(*made));
  return {};
}

void Connection::replace(std::unique_ptr<Stream> stream) {
  taken_ = false;
  wrapped_ = std::move(stream);
  stream_ = wrapped_.get();
}

void Connection::follow(const Fd& socket) noexcept {
  if (follow_) follow_(entry_, socket);
}

const Fd& Connection::socket_fd() const noexcept {
  return std::visit([](const auto& each) -> const Fd& { return each.fd(); }, socket_);
}

}  // namespace runloom::net
