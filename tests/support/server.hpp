// What tests of the server share: one that serves on a fiber of its own, and clients.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "runloom/net/server.hpp"
#include "runloom/net/tcp_stream.hpp"
#include "runloom/net/unix_stream.hpp"
#include "runloom/sched/fiber.hpp"
#include "support/net_test.hpp"

namespace runloom::test {

// Serves on the loopback, or where it is told to, until it is stopped or the test ends.
class Serving {
 public:
  explicit Serving(net::Server::ConnectionHandler handler, net::ServerOptions options = {},
                   const net::Address& at = net::Address::loopback_ipv4())
      : server_(std::move(handler), std::move(options)) {
    const auto bound = server_.listen(at);
    EXPECT_TRUE(bound) << bound.error().message();
    if (bound) address_ = *bound;
    begin();
  }
  // A server that was told where to listen.
  struct Prepared {};
  template <class Prepare>
  Serving(Prepared, net::Server::ConnectionHandler handler, net::ServerOptions options,
          Prepare&& prepare)
      : server_(std::move(handler), std::move(options)) {
    prepare(server_);
    begin();
  }
  ~Serving() {
    server_.begin_stop(Deadline::now());
    static_cast<void>(serving_.join());
  }
  net::Server* operator->() { return &server_; }
  net::Server& operator*() { return server_; }
  const net::Address& address() const { return address_; }
  JoinHandle<Result<void>>& serving() { return serving_; }

  net::TcpStream connect() const {
    auto stream = net::TcpStream::connect(address_);
    EXPECT_TRUE(stream) << stream.error().message();
    return stream ? std::move(*stream) : net::TcpStream();
  }
  net::UnixStream connect_unix() const {
    auto stream = net::UnixStream::connect(address_);
    EXPECT_TRUE(stream) << stream.error().message();
    return stream ? std::move(*stream) : net::UnixStream();
  }

 private:
  void begin() {
    serving_ = spawn([this] { return server_.serve(); });
  }
  net::Server server_;
  net::Address address_;
  JoinHandle<Result<void>> serving_;
};

// Sends back what comes.
inline void echo(net::Stream& stream) {
  std::array<std::byte, 1024> buffer;
  for (;;) {
    const auto count = stream.read_some(buffer);
    if (!count || *count == 0) return;
    if (!stream.write_all(std::span(buffer).first(*count))) return;
  }
}
inline void echo_connection(net::Connection& connection) {
  echo(connection);
}

inline void expect_echo(net::Stream& stream, std::string_view text) {
  ASSERT_TRUE(stream.write_all(net::bytes(text)));
  std::string back(text.size(), '\0');
  const auto count = stream.read_full(writable(back));
  ASSERT_TRUE(count) << count.error().message();
  EXPECT_EQ(back, text);
}

// Reads to the end, or to an error; true when it was the end.
inline bool reads_end(net::Stream& stream) {
  std::array<std::byte, 64> buffer;
  for (;;) {
    const auto count = stream.read_some(buffer);
    if (!count || *count == 0) return count.has_value();
  }
}

}  // namespace runloom::test
