#include "stress/stress_round.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "runloom/net/file.hpp"
#include "runloom/net/tcp_listener.hpp"
#include "runloom/net/udp_endpoint.hpp"
#include "runloom/net/unix_listener.hpp"
#include "runloom/sched/join_set.hpp"
#include "support/files.hpp"
#include "support/net_test.hpp"

namespace runloom::test {
namespace {

using namespace std::chrono_literals;
using net::Stream;

class Choices {
 public:
  explicit Choices(std::uint64_t seed) : engine_(mix64(seed)) {}
  std::uint32_t below(std::uint32_t bound) { return static_cast<std::uint32_t>(engine_() % bound); }
  bool one_in(std::uint32_t n) { return below(n) == 0; }
  Deadline soon() { return Deadline::after(std::chrono::microseconds(below(3'000))); }

 private:
  std::mt19937_64 engine_;
};

// How a connection is cut.
enum class Cut { none, cancel, deadline, close, reset, half_close, kinds };

// What one connection is to do: both ends derive it from the connection's number.
struct Plan {
  explicit Plan(std::uint64_t number) : id(number) {
    Choices choices(number);
    const auto size = [&] { return choices.below(choices.one_in(8) ? 600'000 : 6'000); };
    up = size();
    down = size();
    if (choices.one_in(2)) cut = static_cast<Cut>(choices.below(static_cast<int>(Cut::kinds)));
    at_client = choices.one_in(2);
  }
  std::uint64_t id;
  std::size_t up = 0, down = 0;
  Cut cut = Cut::none;
  bool at_client = false;  // which end cuts
};

// What an end of a connection that is cut somewhere may run into.
bool is_an_end(std::error_code error) {
  return error == Errc::cancelled || error == Errc::timed_out || error == Errc::closed ||
         error == std::errc::connection_reset || error == std::errc::broken_pipe ||
         error == std::errc::not_connected;
}

Result<void> send_flow(Stream& stream, Flow& flow, Choices choices, Deadline deadline) {
  std::vector<std::byte> chunk(choices.one_in(2) ? 64 * 1024 : 700);
  while (flow.left() > 0) {
    const std::size_t most = std::min(chunk.size(), flow.left());
    const std::span out(chunk.data(), 1 + choices.below(static_cast<std::uint32_t>(most)));
    flow.make(out);
    if (auto sent = stream.write_all(out, deadline); !sent) return sent;
  }
  return {};
}

class LateMemory final : public net::RecvBuffer {
 public:
  explicit LateMemory(std::span<std::byte> memory) : memory_(memory) {}
  std::span<std::byte> take() noexcept override { return memory_; }
  std::size_t room() const noexcept override { return memory_.size(); }
  void give_back(std::ptrdiff_t) noexcept override {}

 private:
  std::span<std::byte> memory_;
};

Result<std::size_t> read_somehow(Stream& stream, std::span<std::byte> chunk, std::uint32_t way,
                                 Deadline deadline) {
  if (way == 0) {
    LateMemory late(chunk);
    return stream.read_late(late, deadline);
  }
  if (way == 1) {
    if (auto ready = stream.wait_readable(deadline); !ready) return Unexpected{ready.error()};
  }
  return stream.read_some(chunk, deadline);
}

// Reads until the end of the stream, in all the ways that there are.
Result<void> receive_flow(Stream& stream, Flow& flow, Choices choices, Deadline deadline) {
  std::vector<std::byte> chunk(choices.one_in(2) ? 32 * 1024 : 500);
  for (;;) {
    const auto got = read_somehow(stream, chunk, choices.below(4), deadline);
    if (!got) return Unexpected{got.error()};
    if (*got == 0) return {};
    if (!flow.take({chunk.data(), *got})) {
      ADD_FAILURE() << "bytes of somebody else at " << flow.position();
      return fail_errno(EBADMSG);
    }
  }
}

template <class Socket>
void reset(Socket& stream) {
  const linger now{1, 0};  // resets a TCP connection, does nothing to a Unix one
  (void)::setsockopt(stream.fd().number(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
  stream.close();
}

// Sends and receives at the same time, and cuts if this end is to.
template <class Socket>
void exchange(Round& round, Socket& stream, const Plan& plan, bool client, int hubs) {
  Choices choices(plan.id + (client ? 1 : 2));
  const bool cuts = plan.cut != Cut::none && plan.at_client == client;
  Flow out(plan.id ^ (client ? 0 : 1), client ? plan.up : plan.down);
  Flow in(plan.id ^ (client ? 1 : 0), client ? plan.down : plan.up);
  const Deadline deadline = cuts && plan.cut == Cut::deadline ? choices.soon() : Deadline();
  if (cuts && plan.cut == Cut::half_close && out.size() > 0)
    out = Flow(plan.id ^ (client ? 0 : 1), choices.below(static_cast<std::uint32_t>(out.size())));

  // Both go their own ways from here.
  auto writer = spawn(
      [&, own = choices]() -> Result<void> {
        if (auto sent = send_flow(stream, out, own, deadline); !sent) return sent;
        return stream.shutdown_write();
      },
      {.hub = static_cast<int>(choices.below(static_cast<std::uint32_t>(hubs)))});
  auto reader = spawn([&, own = choices] { return receive_flow(stream, in, own, deadline); });
  if (cuts && plan.cut != Cut::half_close && plan.cut != Cut::deadline) {
    if (choices.one_in(2)) {
      (void)this_fiber::sleep_until(choices.soon());
    } else {
      for (auto i = choices.below(8); i > 0; --i)
        this_fiber::yield();
    }
    if (plan.cut == Cut::cancel) {
      writer.cancel();
      reader.cancel();
    } else if (plan.cut == Cut::close) {
      stream.close();
    } else {
      reset(stream);
    }
  }
  const auto sent = writer.join();
  const auto received = reader.join();
  stream.close();
  if (plan.cut == Cut::none) {
    EXPECT_TRUE(sent) << sent.error().message();
    EXPECT_TRUE(received) << received.error().message();
    EXPECT_EQ(in.left(), 0u) << "the stream ended early";
    ++round.whole;
  } else {
    EXPECT_TRUE(sent || is_an_end(sent.error())) << sent.error().message();
    EXPECT_TRUE(received || is_an_end(received.error())) << received.error().message();
    ++round.cut;
  }
  if (in.left() == 0) {
    Flow expected(plan.id ^ (client ? 1 : 0), in.size());
    std::vector<std::byte> all(in.size());
    expected.make(all);
    EXPECT_EQ(in.digest(), expected.digest());
  }
}

template <class Socket>
void serve_one(Round& round, Socket stream, int hubs) {
  std::array<std::uint64_t, 2> hello{};
  // A client that was cut before it had said who it is leaves a stranger.
  const auto got = stream.read_full(std::as_writable_bytes(std::span(hello)));
  if (!got || *got < sizeof hello) {
    ++round.strangers;
    return;
  }
  ASSERT_EQ(hello[1], mix64(hello[0]));
  ASSERT_TRUE(round.meet(hello[0])) << "a connection that was served before";
  exchange(round, stream, Plan(hello[0]), false, hubs);
}

template <class Listener>
void accept_all(Round& round, Listener& listener, Choices choices, int hubs) {
  JoinSet handlers;
  for (;;) {
    auto accepted = listener.accept(choices.one_in(2) ? choices.soon() : Deadline());
    if (!accepted && accepted.error() == Errc::timed_out) continue;
    if (!accepted) {
      EXPECT_EQ(accepted.error(), Errc::closed) << accepted.error().message();
      break;
    }
    EXPECT_TRUE(handlers.spawn([&round, hubs, stream = std::move(*accepted)]() mutable {
      serve_one(round, std::move(stream), hubs);
    }));
  }
  EXPECT_TRUE(handlers.wait());
}

template <class Socket>
void call(Round& round, Result<Socket> connected, const Plan& plan, int hubs) {
  ASSERT_TRUE(connected) << connected.error().message();
  const std::array<std::uint64_t, 2> hello{plan.id, mix64(plan.id)};
  ASSERT_TRUE(connected->write_all(std::as_bytes(std::span(hello))));
  exchange(round, *connected, plan, true, hubs);
}

void call_all(Round& round, const net::Address& tcp, const net::Address& local, int calls,
              Choices choices, int hubs) {
  for (int i = 0; i < calls; ++i) {
    if (choices.one_in(8)) {  // a connect that may not come to its end
      (void)net::TcpStream::connect(tcp, {},
                                    Deadline::after(std::chrono::microseconds(choices.below(80))));
      continue;
    }
    const Plan plan(round.begin());
    if (choices.one_in(2))
      call(round, net::TcpStream::connect(tcp), plan, hubs);
    else
      call(round, net::UnixStream::connect(local), plan, hubs);
  }
}

// Datagrams that may be lost, but are never another's or half of one.
void exchange_datagrams(Round& round, Choices choices) {
  const auto receiver = net::UdpEndpoint::bind(net::Address::loopback_ipv4()).value();
  const auto sender = net::UdpEndpoint::connect(receiver.local_address().value()).value();
  auto sending = spawn([&, choices]() mutable {
    for (std::uint64_t i = 1; i <= 100; ++i) {
      Flow flow(mix64(round.seed + i), 8 + choices.below(1'400));
      std::vector<std::byte> data(8 + flow.size());
      std::memcpy(data.data(), &i, sizeof i);
      flow.make(std::span(data).subspan(8));
      EXPECT_TRUE(sender.send(data));
      if (choices.one_in(4)) this_fiber::yield();
    }
  });
  std::vector<std::byte> buffer(2'000);
  for (bool over = false;;) {
    over = sending.done();
    const auto got = receiver.recv(buffer, choices.soon());
    if (!got) {
      EXPECT_EQ(got.error(), Errc::timed_out);
      if (over) break;
      continue;
    }
    std::uint64_t number = 0;
    ASSERT_GE(*got, sizeof number);
    std::memcpy(&number, buffer.data(), sizeof number);
    Flow flow(mix64(round.seed + number), *got - sizeof number);
    EXPECT_TRUE(flow.take(std::span(buffer).subspan(sizeof number, flow.size())));
    ++round.datagrams;
  }
  EXPECT_TRUE(sending.join());
}

// Raw pipes whose numbers go round among the sockets': a wait hears of its own pipe only.
void wait_for_pipes(Choices choices, int rounds) {
  for (int i = 0; i < rounds; ++i) {
    int end[2];
    ASSERT_EQ(::pipe2(end, O_CLOEXEC | O_NONBLOCK), 0);
    auto waiter = spawn([&] { return net::wait_fd(end[0], net::kRead, Deadline::after(5s)); });
    for (auto n = choices.below(6); n > 0; --n)
      this_fiber::yield();
    const bool writes = choices.one_in(2);
    if (writes) {
      EXPECT_EQ(::write(end[1], "x", 1), 1);
    } else {
      waiter.cancel();
    }
    const auto ready = waiter.join();
    if (writes) {
      EXPECT_EQ(ready.value(), net::kRead);
    } else {
      EXPECT_EQ(ready.error(), Errc::cancelled);
    }
    ::close(end[0]);
    ::close(end[1]);
  }
}

// A file whose pages have to come from the disk, read by fibers that may go away at any moment.
void read_files(const std::string& path, Choices choices, int rounds) {
  constexpr std::size_t kSize = 256 * 1024;
  std::string content(kSize, '\0');
  Flow(choices.below(1'000'000), kSize).make(std::as_writable_bytes(std::span(content)));
  make_file(path, content);
  for (int i = 0; i < rounds; ++i) {
    drop_cache(path);
    const std::size_t size = 1 + choices.below(64 * 1024);
    const std::size_t offset = choices.below(kSize);
    const Deadline deadline = choices.one_in(3) ? choices.soon() : Deadline();
    auto reader = spawn([&, size, offset, deadline]() -> Result<void> {
      RUNLOOM_TRY(const net::File file, net::File::open(path));
      std::string part(size, '\0');
      RUNLOOM_TRY(const std::size_t count,
                  file.read_at(writable(part), static_cast<off_t>(offset), deadline));
      EXPECT_GT(count, 0u);
      EXPECT_EQ(part.substr(0, count), content.substr(offset, count));
      return {};
    });
    if (choices.one_in(3)) {
      for (auto n = choices.below(6); n > 0; --n)
        this_fiber::yield();
      reader.cancel();
    }
    const auto read = reader.join();
    EXPECT_TRUE(read || is_an_end(read.error())) << read.error().message();
  }
}

}  // namespace

void run_round(Round& round, int hubs) {
  Choices choices(round.seed);
  auto tcp = net::TcpListener::listen(net::Address::loopback_ipv4()).value();
  auto local = net::UnixListener::listen(net::Address::unix_unnamed()).value();
  const auto tcp_address = tcp.local_address().value();
  const auto local_address = local.local_address().value();
  const int callers = kSanitized ? 8 : 32;
  const int calls = kSanitized ? 6 : 12;

  JoinSet servers, clients;
  const auto hub = [&](int i) { return SpawnOptions{.hub = i % hubs}; };
  for (int i = 0; i < 2; ++i) {
    const Choices own(round.seed + 100 + static_cast<unsigned>(i));
    EXPECT_TRUE(servers.spawn([&, own] { accept_all(round, tcp, own, hubs); }, hub(i)));
    EXPECT_TRUE(servers.spawn([&, own] { accept_all(round, local, own, hubs); }, hub(i)));
  }
  for (int i = 0; i < callers; ++i) {
    const Choices own(round.seed * 7919 + static_cast<unsigned>(i));
    EXPECT_TRUE(clients.spawn(
        [&, own] { call_all(round, tcp_address, local_address, calls, own, hubs); }, hub(i)));
  }
  EXPECT_TRUE(clients.spawn([&, own = choices] { exchange_datagrams(round, own); }));
  for (int i = 0; i < hubs; ++i)
    EXPECT_TRUE(clients.spawn([own = choices] { wait_for_pipes(own, 50); }, hub(i)));
  const TempDirectory directory;
  EXPECT_TRUE(clients.spawn(
      [&, own = choices] { read_files(directory.path() + "/file", own, kSanitized ? 10 : 40); }));
  EXPECT_TRUE(clients.wait());
  tcp.close();
  local.close();
  EXPECT_TRUE(servers.wait());
  // The port is free again, although connections of it linger in TIME_WAIT.
  EXPECT_TRUE(net::TcpListener::listen(tcp_address));
}

}  // namespace runloom::test
