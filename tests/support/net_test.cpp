#include "support/net_test.hpp"

#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <array>

#include "runloom/net/file.hpp"
#include "support/race.hpp"
#include "support/sim_netpoll.hpp"

namespace runloom::test {
namespace {

class NetTest : public ::testing::Test {
 public:
  NetTest(int hubs, Result<std::unique_ptr<net::Netpoll>> (*make)(), void (*body)())
      : hubs_(hubs), make_(make), body_(body) {}
  void TestBody() override {
    if (make_ == &net::make_uring_netpoll && !net::io_uring_available())
      GTEST_SKIP() << "io_uring is forbidden here";
    Options options = fiber_test_options(hubs_);
    options.make_driver = driver_maker(make_);
    run_fiber_test(std::move(options), body_);
  }

 private:
  int hubs_;
  Result<std::unique_ptr<net::Netpoll>> (*make_)();
  void (*body_)();
};

class SimTest : public ::testing::Test {
 public:
  SimTest(int hubs, void (*body)()) : hubs_(hubs), body_(body) {}
  void TestBody() override {
    for (std::uint64_t round = 0; round < 5 && !HasFailure(); ++round) {
      const std::uint64_t seed = race_seed() + round;
      SCOPED_TRACE("RUNLOOM_SEED=" + std::to_string(seed));
      SimNetwork network(seed);
      Options options = fiber_test_options(hubs_);
      options.make_driver = network.driver_maker();
      run_fiber_test(std::move(options), body_);
      EXPECT_EQ(network.in_flight(), 0u);
    }
  }

 private:
  int hubs_;
  void (*body_)();
};

[[maybe_unused]] const bool checks_descriptors = [] {
  add_leak_check("descriptors of net objects",
                 [] { return static_cast<long>(net::live_descriptors()); });
  return true;
}();

}  // namespace

std::function<std::unique_ptr<Driver>(Hub&)> driver_maker(
    Result<std::unique_ptr<net::Netpoll>> (*make)()) {
  return [make](Hub&) -> std::unique_ptr<Driver> { return make().value(); };
}

bool register_net_test(const char* suite, const char* name, const char* file, int line,
                       void (*body)(), bool simulated) {
  struct Backend {
    const char* name;
    Result<std::unique_ptr<net::Netpoll>> (*make)();
  };
  for (const Backend& backend :
       {Backend{"epoll", &net::make_epoll_netpoll}, Backend{"poll", &net::make_poll_netpoll},
        Backend{"io_uring", &net::make_uring_netpoll}}) {
    for (const int hubs : {1, 2}) {
      const std::string full =
          std::string(name) + "/" + backend.name + "/hubs" + std::to_string(hubs);
      ::testing::RegisterTest(suite, full.c_str(), nullptr, nullptr, file, line,
                              [hubs, make = backend.make, body]() -> ::testing::Test* {
                                return new NetTest(hubs, make, body);
                              });
    }
  }
  if (!simulated) return true;
  for (const int hubs : {1, 2}) {
    const std::string full = std::string(name) + "/sim/hubs" + std::to_string(hubs);
    ::testing::RegisterTest(suite, full.c_str(), nullptr, nullptr, file, line,
                            [hubs, body]() -> ::testing::Test* { return new SimTest(hubs, body); });
  }
  return true;
}

Listening::Listening(const net::ListenOptions& options) {
  auto made = net::TcpListener::listen(net::Address::loopback_ipv4(), options);
  EXPECT_TRUE(made) << made.error().message();
  if (!made) return;
  listener = std::move(*made);
  address = listener.local_address().value();
}

TcpPair::TcpPair() {
  Listening listening;
  auto connected = net::TcpStream::connect(listening.address);
  EXPECT_TRUE(connected) << connected.error().message();
  auto accepted = listening.listener.accept();
  EXPECT_TRUE(accepted) << accepted.error().message();
  if (!connected || !accepted) return;
  client = std::move(*connected);
  server = std::move(*accepted);
}

int plain_connect(const net::Address& address) {
  const int fd = ::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  if (::connect(fd, address.data(), address.size()) == 0) return fd;
  const int err = errno;
  ::close(fd);
  errno = err;
  return -1;
}

void reset_and_close(int fd) {
  const linger now{1, 0};
  EXPECT_EQ(::setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now), 0);
  ::close(fd);
}

std::string pattern(std::size_t size, std::size_t from) {
  std::string text(size, '\0');
  for (std::size_t i = 0; i < size; ++i)
    text[i] = static_cast<char>(((from + i) * 2654435761u) >> 13);
  return text;
}

Result<std::string> read_text(net::Stream& stream, std::size_t most, Deadline deadline) {
  std::string text(most, '\0');
  RUNLOOM_TRY(const std::size_t count, stream.read_some(writable(text), deadline));
  text.resize(count);
  return text;
}

Result<std::string> read_to_end(net::Stream& stream, Deadline deadline) {
  std::string all;
  for (;;) {
    RUNLOOM_TRY(const std::string piece, read_text(stream, 4096, deadline));
    if (piece.empty()) return all;
    all += piece;
  }
}

std::int64_t process_cpu_ns() {
  timespec used;
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return std::int64_t{used.tv_sec} * 1'000'000'000 + used.tv_nsec;
}

}  // namespace runloom::test
