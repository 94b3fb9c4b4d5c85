#include "runloom/net/tcp_listener.hpp"

#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "support/net_test.hpp"
#include "support/syscall_faults.hpp"

namespace runloom::test {
namespace {

using namespace std::chrono_literals;
using net::TcpListener;
using net::TcpStream;

// Leaves room for so many more descriptors while it lives.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(int free) {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    const int next = ::dup(0);  // the lowest free number
    ::close(next);
    rlimit limit = before_;
    limit.rlim_cur = static_cast<rlim_t>(next) + static_cast<rlim_t>(free);
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  ~DescriptorLimit() { lift(); }
  void lift() { EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }

 private:
  rlimit before_;
};

// ---------------------------------------------------------------- accept

STREAM_TEST(TcpListener, AcceptsAndTimesOut) {
  Listening listening;
  EXPECT_EQ(listening.listener.accept(Deadline::now()).error(), Errc::timed_out);
  EXPECT_EQ(listening.listener.accept(Deadline::after(5ms)).error(), Errc::timed_out);
  auto client = spawn([&] { return TcpStream::connect(listening.address); });
  EXPECT_TRUE(listening.listener.accept());
  EXPECT_TRUE(client.join());
}

STREAM_TEST(TcpListener, CancelEndsAnAccept) {
  Listening listening;
  auto acceptor = spawn([&] { return listening.listener.accept(); });
  until_parked(acceptor.handle(), WaitReason::io_accept);
  acceptor.cancel();
  EXPECT_EQ(acceptor.join().error(), Errc::cancelled);
}

STREAM_TEST(TcpListener, CloseEndsAnAcceptT08) {
  Listening listening;
  auto acceptor = spawn([&] { return listening.listener.accept(); });
  until_parked(acceptor.handle(), WaitReason::io_accept);
  listening.listener.close();
  EXPECT_EQ(acceptor.join().error(), Errc::closed);
  EXPECT_EQ(listening.listener.accept().error(), Errc::closed);
  EXPECT_FALSE(listening.listener);
  listening.listener.close();
}

NET_TEST(TcpListener, ShutdownEndsAnAcceptT08) {
  Listening listening;
  auto acceptor = spawn([&] { return listening.listener.accept(); });
  until_parked(acceptor.handle(), WaitReason::io_accept);
  ASSERT_TRUE(listening.listener.shutdown());
  EXPECT_EQ(acceptor.join().error(), errno_code(EINVAL));
}

// close() returns when the port is free, though an accept was in flight on another hub.
NET_TEST(TcpListener, ThePortIsFreeAfterClose) {
  net::Address address;
  for (int i = 0; i < 50; ++i) {
    auto listener = TcpListener::listen(i == 0 ? net::Address::loopback_ipv4() : address).value();
    address = listener.local_address().value();
    auto acceptor = spawn([&] { return listener.accept(); }, {.hub = 1});
    until_parked(acceptor.handle(), WaitReason::io_accept);
    listener.close();
    EXPECT_EQ(acceptor.join().error(), Errc::closed);
  }
}

STREAM_TEST(TcpListener, ManyAcceptorsAreServedInOrder) {
  Listening listening;
  std::vector<JoinHandle<Result<TcpStream>>> acceptors;
  for (int i = 0; i < 5; ++i) {
    acceptors.push_back(spawn([&] { return listening.listener.accept(); }));
    until_parked(acceptors.back().handle(), i == 0 ? WaitReason::io_accept : WaitReason::io_read);
  }
  for (int i = 0; i < 5; ++i) {
    EXPECT_FALSE(acceptors[static_cast<std::size_t>(i)].done());
    auto client = TcpStream::connect(listening.address);
    EXPECT_TRUE(client);
    EXPECT_TRUE(acceptors[static_cast<std::size_t>(i)].join());
  }
}

// One connection wakes one worker, and costs no storm of attempts.
NET_TEST(TcpListener, OneConnectionWakesOneWorkerT48) {
  constexpr int kWorkers = 8, kConnections = 20;
  Listening listening;
  std::vector<JoinHandle<void>> workers;
  int accepted = 0;
  for (int i = 0; i < kWorkers; ++i)
    workers.push_back(spawn(
        [&] {
          while (listening.listener.accept())
            ++accepted;
        },
        {.hub = 0}));
  until_parked(workers.back().handle(), WaitReason::io_read);
  const long before = calls(Call::accept4);
  for (int i = 0; i < kConnections; ++i) {
    const int fd = plain_connect(listening.address);
    while (accepted == i)
      ASSERT_TRUE(this_fiber::sleep_for(1ms));
    ::close(fd);
  }
  // The connection's own accept, and the next worker's look.
  EXPECT_LE(calls(Call::accept4) - before, 3 * kConnections);
  listening.listener.close();
  for (auto& worker : workers)
    EXPECT_TRUE(worker.join());
}

// A storm of connections takes turns with those that are served already.
NET_TEST(TcpListener, AcceptStormTakesTurnsS28) {
  constexpr int kStorm = 300;
  Listening listening;
  std::vector<int> clients;
  for (int i = 0; i < kStorm; ++i)
    clients.push_back(plain_connect(listening.address));
  int accepted = 0, longest = 0;
  bool over = false;
  auto acceptor = spawn(
      [&] {
        std::vector<TcpStream> streams;
        for (; accepted < kStorm; ++accepted)
          streams.push_back(listening.listener.accept().value());
        over = true;
      },
      {.hub = 0});
  // Counts the accepts between two of its turns at the driver: each sleep ends by a timer.
  auto ticker = spawn(
      [&] {
        for (int last = 0; !over;) {
          ASSERT_TRUE(this_fiber::sleep_for(1us));
          longest = std::max(longest, accepted - last);
          last = accepted;
        }
      },
      {.hub = 0});
  EXPECT_TRUE(acceptor.join());
  EXPECT_TRUE(ticker.join());
  EXPECT_LE(longest, 2 * 64);
  for (const int fd : clients)
    ::close(fd);
}

// ---------------------------------------------------------------- trouble

NET_TEST(TcpListener, ResetInTheBacklogIsTheConnectionsOwnT04) {
  Listening listening;
  reset_and_close(plain_connect(listening.address));
  auto stream = listening.listener.accept().value();
  EXPECT_EQ(read_text(stream).error(), errno_code(ECONNRESET));
}

NET_TEST(TcpListener, PassesOverTheTroubleOfOneConnection) {
  Listening listening;
  for (const int err : {ECONNABORTED, EPROTO, ENETDOWN, ENOPROTOOPT, EHOSTDOWN, ENONET,
                        EHOSTUNREACH, EOPNOTSUPP, ENETUNREACH, EPERM, EINTR}) {
    const int fd = plain_connect(listening.address);
    const Fault fault(Call::accept4, err, 1, 3);
    EXPECT_TRUE(listening.listener.accept()) << err;
    EXPECT_EQ(fault.failed(), 3) << err;
    ::close(fd);
  }
  // Trouble without an end is the listener's after all.
  const Fault fault(Call::accept4, EPERM, 1, 1000);
  EXPECT_EQ(listening.listener.accept().error(), errno_code(EPERM));
}

NET_TEST(TcpListener, AcceptTellsOfAShortageT02) {
  Listening listening;
  const int fd = plain_connect(listening.address);
  for (const int err : {EMFILE, ENFILE, ENOBUFS, ENOMEM}) {
    const Fault fault(Call::accept4, err);
    const auto error = listening.listener.accept().error();
    EXPECT_EQ(error, errno_code(err));
    EXPECT_TRUE(net::is_shortage(error));
  }
  // The connection is still there.
  EXPECT_TRUE(listening.listener.accept());
  EXPECT_FALSE(net::is_shortage(errno_code(EBADF)));
  EXPECT_FALSE(net::is_shortage(make_error_code(Errc::closed)));
  ::close(fd);
}

NET_TEST(TcpListener, AcceptRetryingWaitsAShortageOutT02) {
  Listening listening;
  const int fd = plain_connect(listening.address);
  for (const int err : {EMFILE, ENFILE, ENOBUFS, ENOMEM}) {
    const int other = plain_connect(listening.address);
    const Fault fault(Call::accept4, err, 1, 3);
    EXPECT_TRUE(listening.listener.accept_retrying());
    EXPECT_EQ(fault.failed(), 3);
    ::close(other);
  }
  {
    const Fault fault(Call::accept4, EMFILE, 1, 1000);
    EXPECT_EQ(listening.listener.accept_retrying(Deadline::after(30ms)).error(),
              errno_code(EMFILE));
    EXPECT_LT(fault.failed(), 10);
  }
  EXPECT_TRUE(listening.listener.accept_retrying());
  ::close(fd);
}

NET_TEST(TcpListener, CloseEndsThePauseOfAShortage) {
  Listening listening;
  const int client = plain_connect(listening.address);
  const Fault fault(Call::accept4, EMFILE, 1, 1000);
  auto acceptor = spawn([&] { return listening.listener.accept_retrying(); });
  until_parked(acceptor.handle(), WaitReason::io_poll);
  listening.listener.close();
  EXPECT_EQ(acceptor.join().error(), Errc::closed);
  ::close(client);
}

// Out of descriptors the listener neither spins nor loses anybody, and goes on when it can.
NET_TEST(TcpListener, SurvivesTheDescriptorLimitT01) {
  constexpr int kClients = 20;
  Listening listening;
  std::vector<int> clients;
  for (int i = 0; i < kClients; ++i)
    clients.push_back(plain_connect(listening.address));
  std::vector<TcpStream> streams;
  ASSERT_TRUE(this_fiber::sleep_for(1ms));  // whatever the scheduler opens is open
  DescriptorLimit limit(2);
  auto acceptor = spawn([&] {
    while (streams.size() < kClients)
      streams.push_back(listening.listener.accept_retrying().value());
  });
  const long before = calls(Call::accept4);
  ASSERT_TRUE(this_fiber::sleep_for(300ms));
  EXPECT_EQ(streams.size(), 2u);
  EXPECT_LT(calls(Call::accept4) - before, 12);
  // Open connections are served meanwhile.
  ASSERT_EQ(::send(clients[0], "x", 1, 0), 1);
  EXPECT_EQ(read_text(streams[0]).value(), "x");
  limit.lift();
  EXPECT_TRUE(acceptor.join());
  EXPECT_EQ(streams.size(), 20u);
  for (const int fd : clients)
    ::close(fd);
}

TEST(AcceptBackoff, DoublesToHalfASecond) {
  net::AcceptBackoff backoff;
  std::chrono::milliseconds total{0};
  int tries = 0;
  for (; total < 3s; ++tries)
    total += backoff.next();
  EXPECT_LT(tries, 20);
  EXPECT_EQ(backoff.next(), 500ms);
  backoff.reset();
  EXPECT_EQ(backoff.next(), 10ms);
}

// ---------------------------------------------------------------- listen

NET_TEST(TcpListener, BacklogReachesTheKernelT50) {
  int somaxconn = 0;
  std::ifstream("/proc/sys/net/core/somaxconn") >> somaxconn;
  EXPECT_EQ(Listening().listener.backlog().value(), std::min(1024, somaxconn));
  EXPECT_EQ(Listening({.backlog = 7}).listener.backlog().value(), 7);
  EXPECT_EQ(Listening({.backlog = 1 << 30}).listener.backlog().value(), somaxconn);
  // And works: of several clients a backlog of 0 lets one in.
  Listening none({.backlog = 0});
  std::vector<pollfd> clients;
  for (int i = 0; i < 4; ++i) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    [[maybe_unused]] const int pending = ::connect(fd, none.address.data(), none.address.size());
    clients.push_back({fd, POLLOUT, 0});
  }
  ASSERT_TRUE(this_fiber::sleep_for(30ms));
  EXPECT_EQ(::poll(clients.data(), clients.size(), 0), 1);
  for (const pollfd& client : clients)
    ::close(client.fd);
}

NET_TEST(TcpListener, SharesAPort) {
  Listening one({.reuse_port = true});
  EXPECT_TRUE(TcpListener::listen(one.address, {.reuse_port = true}));
  EXPECT_EQ(TcpListener::listen(one.address).error(), errno_code(EADDRINUSE));
}

NET_TEST(TcpListener, IPv6) {
  auto listener = TcpListener::listen(net::Address::any_ipv6(), {.v6_only = false});
  if (!listener) GTEST_SKIP() << "no IPv6 here: " << listener.error().message();
  const auto port = listener->local_address()->port();
  auto client = TcpStream::connect(net::Address::loopback_ipv4(port)).value();
  net::Address peer;
  auto stream = listener->accept_from(peer).value();
  EXPECT_EQ(peer.ip(), "::ffff:127.0.0.1");
  auto six = TcpStream::connect(net::Address::loopback_ipv6(port)).value();
  EXPECT_EQ(listener->accept_from(peer).value().local_address()->ip(), "::1");
  EXPECT_EQ(peer.ip(), "::1");
  listener->close();
  auto only = TcpListener::listen(net::Address::any_ipv6(port), {.v6_only = true}).value();
  EXPECT_EQ(TcpStream::connect(net::Address::loopback_ipv4(port)).error(),
            errno_code(ECONNREFUSED));
}

NET_TEST(TcpListener, ListenFails) {
  EXPECT_EQ(TcpListener::listen(net::Address::from_ip("192.0.2.1", 0).value()).error(),
            errno_code(EADDRNOTAVAIL));
  EXPECT_EQ(TcpListener::listen(net::Address::from_unix_path("/none").value()).error(),
            errno_code(EAFNOSUPPORT));
  DescriptorLimit limit(0);
  EXPECT_EQ(TcpListener::listen(net::Address::loopback_ipv4()).error(), errno_code(EMFILE));
}

}  // namespace
}  // namespace runloom::test
