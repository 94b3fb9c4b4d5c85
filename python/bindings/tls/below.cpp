// What TLS reads ciphertext from: a socket of the program's, or TLS again.
#include "net/served.hpp"
#include "net/socket.hpp"
#include "runloom/net/stream.hpp"
#include "tls/socket.hpp"

namespace runloom::python {
namespace {

class BelowSocket final : public net::Stream {
 public:
  explicit BelowSocket(PyObject* socket) noexcept : socket_(Ref::share(socket)) {}

  Result<std::size_t> read_some(std::span<std::byte> buffer, Deadline deadline) override {
    if (buffer.empty()) return std::size_t{0};
    return bounded_read(socket(), deadline,
                        [&](Deadline until) { return fd().recv(buffer, 0, until); });
  }
  Result<std::size_t> read_late(net::RecvBuffer& buffer, Deadline deadline) override {
    return bounded_read(socket(), deadline,
                        [&](Deadline until) { return fd().recv_late(buffer, until); });
  }
  Result<std::size_t> write_some(std::span<const std::byte> data, Deadline deadline) override {
    if (data.empty()) return std::size_t{0};
    return bounded_write(socket(), data.size(), deadline,
                         [&](Deadline until) { return fd().send(data, 0, until); });
  }
  Result<void> writev_all(std::span<const iovec> buffers, Deadline deadline,
                          std::size_t* bytes_written) override {
    std::size_t size = 0;
    for (const iovec& buffer : buffers)
      size += buffer.iov_len;
    return bounded_write(socket(), size, deadline, [&](Deadline until) {
      return fd().send_all(buffers, until, bytes_written);
    });
  }
  Result<void> wait_readable(Deadline deadline) override {
    return bounded_wait(socket(), deadline, [&](Deadline until) {
      const auto ready = fd().wait_ready(net::kRead, until);
      return ready ? Result<void>() : Result<void>(Unexpected{ready.error()});
    });
  }
  Result<void> shutdown_write() override { return fd().shutdown(SHUT_WR); }
  void close() noexcept override { fd().close(); }

 private:
  const Socket& socket() const noexcept { return as_socket(socket_.get()); }
  net::Fd& fd() const noexcept { return as_socket(socket_.get()).fd; }
  const Ref socket_;
};

class BelowTls final : public net::Stream {
 public:
  explicit BelowTls(PyObject* socket) noexcept : socket_(Ref::share(socket)) {}

  Result<std::size_t> read_some(std::span<std::byte> buffer, Deadline deadline) override {
    return stream().read_some(buffer, deadline);
  }
  Result<std::size_t> read_late(net::RecvBuffer& buffer, Deadline deadline) override {
    return stream().read_late(buffer, deadline);
  }
  Result<std::size_t> write_some(std::span<const std::byte> data, Deadline deadline) override {
    return stream().write_some(data, deadline);
  }
  Result<void> writev_all(std::span<const iovec> buffers, Deadline deadline,
                          std::size_t* bytes_written) override {
    return stream().writev_all(buffers, deadline, bytes_written);
  }
  Result<void> wait_readable(Deadline deadline) override {
    return stream().wait_readable(deadline);
  }
  Result<void> shutdown_write() override { return stream().shutdown_write(); }
  void close() noexcept override { stream().close(); }

 private:
  tls::Stream& stream() const noexcept { return as_tls(socket_.get()).stream; }
  const Ref socket_;
};

}  // namespace

std::unique_ptr<net::Stream> stream_over(PyObject* below) {
  if (is_tls(below)) return std::make_unique<BelowTls>(below);
  return std::make_unique<BelowSocket>(below);
}

PyObject* bottom_of(TLSSocket& socket) noexcept {
  PyObject* below = socket.below;
  while (below && is_tls(below))
    below = as_tls(below).below;
  return below;
}

}  // namespace runloom::python
