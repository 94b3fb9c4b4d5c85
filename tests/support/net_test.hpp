// NET_TEST: a FIBER_TEST that also runs on each readiness backend.
//
//     NET_TEST(TcpStream, Echoes) { ... }
//
// gives TcpStream.Echoes/epoll/hubs1, TcpStream.Echoes/epoll/hubs2 and the same for poll.
// STREAM_TEST adds the simulated completion backend (see sim_netpoll.hpp), for bodies that use
// nothing but connections between TcpStreams; it runs there with several seeds.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "runloom/net/netpoll.hpp"
#include "runloom/net/tcp_listener.hpp"
#include "runloom/net/tcp_stream.hpp"
#include "support/fiber_test.hpp"

namespace runloom::test {

// A backend, as Options::make_driver.
std::function<std::unique_ptr<Driver>(Hub&)> driver_maker(
    Result<std::unique_ptr<net::Netpoll>> (*make)());

bool register_net_test(const char* suite, const char* name, const char* file, int line,
                       void (*body)(), bool simulated);

// Two ends of a connection over the loopback. Fails the test when they can't be had.
struct TcpPair {
  TcpPair();
  net::TcpStream client;
  net::TcpStream server;
};

// A listener on the loopback, and its address.
struct Listening {
  explicit Listening(const net::ListenOptions& options = {});
  net::TcpListener listener;
  net::Address address;
};

// Plain kernel sockets, for peers that misbehave and for oracles. -1 on failure, with errno.
int plain_connect(const net::Address& address);
// Closes with SO_LINGER {1, 0}: the peer gets a reset.
void reset_and_close(int fd);

// Text as memory to read into.
inline std::span<std::byte> writable(std::string& text) {
  return std::as_writable_bytes(std::span(text));
}
// Bytes that tell where in the stream they stand.
std::string pattern(std::size_t size, std::size_t from = 0);

// Reads until the end of the stream.
Result<std::string> read_to_end(net::Stream& stream, Deadline deadline = {});
Result<std::string> read_text(net::Stream& stream, std::size_t most = 4096, Deadline deadline = {});

// CPU time of the whole process, in nanoseconds.
std::int64_t process_cpu_ns();

}  // namespace runloom::test

#define RUNLOOM_NET_TEST(Suite, Name, simulated)                             \
  static void Suite##_##Name##_body();                                       \
  [[maybe_unused]] static const bool Suite##_##Name##_registered =           \
      ::runloom::test::register_net_test(#Suite, #Name, __FILE__, __LINE__,  \
                                         &Suite##_##Name##_body, simulated); \
  static void Suite##_##Name##_body()

#define NET_TEST(Suite, Name) RUNLOOM_NET_TEST(Suite, Name, false)
#define STREAM_TEST(Suite, Name) RUNLOOM_NET_TEST(Suite, Name, true)
