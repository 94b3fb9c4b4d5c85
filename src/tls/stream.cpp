#include "runloom/tls/stream.hpp"

#include <cerrno>
#include <new>

#include "core.hpp"
#include "runloom/sched/check.hpp"

namespace runloom::tls {

// ---------------------------------------------------------------- life

Stream::Stream() noexcept = default;
Stream::Stream(std::unique_ptr<Core> core) noexcept : core_(std::move(core)) {}
Stream::Stream(Stream&& other) noexcept = default;
Stream& Stream::operator=(Stream&& other) noexcept = default;
Stream::~Stream() = default;

Result<std::unique_ptr<Stream::Core>> Stream::Core::make(
    std::unique_ptr<net::Stream> below, std::shared_ptr<const Context::State> context,
    const std::string& host, const std::shared_ptr<const Session::State>& session,
    std::string received) {
  auto core = std::unique_ptr<Core>(new (std::nothrow) Core);
  if (!core) return fail_errno(ENOMEM);
  if (auto ok = core->engine.open(std::move(context), host, session); !ok)
    return Unexpected{ok.error()};
  core->engine.port().in.begin_with(std::move(received));
  core->below = std::move(below);
  return core;
}

Result<Stream> Stream::client(std::unique_ptr<net::Stream> below, const Context& context,
                              ClientOptions options) {
  RUNLOOM_CHECK(below && context, "tls::Stream needs a stream below and a context");
  if (context.state()->role != Role::client) return Unexpected{tls_error(TlsErrc::configuration)};
  RUNLOOM_TRY(auto core, Core::make(std::move(below), context.state(), options.host,
                                    options.session.state(), std::move(options.received)));
  return Stream(std::move(core));
}

Result<Stream> Stream::server(std::unique_ptr<net::Stream> below, const Context& context,
                              ServerOptions options) {
  RUNLOOM_CHECK(below && context, "tls::Stream needs a stream below and a context");
  if (context.state()->role != Role::server) return Unexpected{tls_error(TlsErrc::configuration)};
  RUNLOOM_TRY(auto core, Core::make(std::move(below), context.state(), {}, nullptr,
                                    std::move(options.received)));
  core->engine.set_hello_handler(std::move(options.on_client_hello));
  return Stream(std::move(core));
}

void Stream::Core::close() noexcept {
  closed = true;
  // Wakes who is parked there; who waits for a turn finds `closed` when it comes.
  below->close();
}

void Stream::close() noexcept {
  if (core_) core_->close();
}

Stream::Released Stream::release() noexcept {
  Released out;
  if (!core_ || core_->closed) return out;
  out.received = core_->engine.port().in.take_all();
  out.below = std::move(core_->below);
  core_.reset();
  return out;
}

// ---------------------------------------------------------------- transfers

Result<void> Stream::handshake(Deadline deadline) {
  if (!core_) return fail(Errc::closed);
  return core_->handshake(deadline);
}

Result<std::size_t> Stream::read_some(std::span<std::byte> buffer, Deadline deadline) {
  if (!core_) return fail(Errc::closed);
  if (buffer.empty()) return std::size_t{0};
  return core_->read_some(buffer, deadline);
}

Result<std::size_t> Stream::read_late(net::RecvBuffer& buffer, Deadline deadline) {
  if (!core_) return fail(Errc::closed);
  return core_->read_late(buffer, deadline);
}

Result<std::size_t> Stream::write_some(std::span<const std::byte> data, Deadline deadline) {
  if (!core_) return fail(Errc::closed);
  return core_->write_some(data, deadline);
}

Result<void> Stream::write_all(std::span<const std::byte> data, Deadline deadline,
                               std::size_t* bytes_written) {
  // The vector is only read from.
  const iovec buffer{const_cast<std::byte*>(data.data()), data.size()};
  return writev_all({&buffer, 1}, deadline, bytes_written);
}

Result<void> Stream::writev_all(std::span<const iovec> buffers, Deadline deadline,
                                std::size_t* bytes_written) {
  if (bytes_written) *bytes_written = 0;
  if (!core_) return fail(Errc::closed);
  return core_->writev_all(buffers, deadline, bytes_written);
}

Result<void> Stream::wait_readable(Deadline deadline) {
  if (!core_) return fail(Errc::closed);
  return core_->wait_readable(deadline);
}

Result<void> Stream::shutdown_write() {
  return shutdown_write(Deadline());
}

Result<void> Stream::shutdown_write(Deadline deadline) {
  if (!core_) return fail(Errc::closed);
  return core_->shutdown_write(deadline);
}

Result<void> Stream::shutdown(Deadline deadline) {
  if (!core_) return fail(Errc::closed);
  return core_->shutdown(deadline);
}

Result<void> Stream::update_keys(bool peer_too, Deadline deadline) {
  if (!core_) return fail(Errc::closed);
  return core_->update_keys(peer_too, deadline);
}

}  // namespace runloom::tls
