// The readiness backends: what the poller may not do.
#include "runloom/net/netpoll.hpp"

#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "net/poll_desc.hpp"
#include "support/net_test.hpp"
#include "support/syscall_faults.hpp"

namespace runloom::test {
namespace {

using namespace std::chrono_literals;
using net::bytes;
using net::Fd;
using net::TcpStream;

// How often hubs looked for events during a pause in which nobody wants any. A poller that spins
// on a level makes thousands.
std::uint64_t polls_while_idle() {
  EXPECT_TRUE(this_fiber::sleep_for(5ms));  // the edges that are due
  const std::uint64_t before = Scheduler::current()->stats().polls;
  EXPECT_TRUE(this_fiber::sleep_for(50ms));
  return Scheduler::current()->stats().polls - before;
}
constexpr std::uint64_t kFewPolls = 20;

// ---------------------------------------------------------------- levels that nobody waits for

NET_TEST(Netpoll, HalfOpenUnixPeerDoesNotSpinT17) {
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  Fd fd = Fd::adopt(pair[0]).value();
  EXPECT_EQ(fd.wait_ready(net::kRead, Deadline::after(1ms)).error(), Errc::timed_out);
  ::close(pair[1]);
  EXPECT_LT(polls_while_idle(), kFewPolls);
  std::byte byte;
  EXPECT_EQ(fd.recv({&byte, 1}, 0, {}).value(), 0u);
}

NET_TEST(Netpoll, ResetsOfIdleConnectionsDoNotSpinT18) {
  constexpr int kConnections = 100;
  Listening listening;
  std::vector<int> peers;
  std::vector<TcpStream> streams;
  for (int i = 0; i < kConnections; ++i) {
    peers.push_back(plain_connect(listening.address));
    streams.push_back(listening.listener.accept().value());
    EXPECT_EQ(read_text(streams.back(), 1, Deadline::after(1ns)).error(), Errc::timed_out);
  }
  for (const int peer : peers)
    reset_and_close(peer);
  EXPECT_LT(polls_while_idle(), kFewPolls);
  for (TcpStream& stream : streams)
    EXPECT_EQ(read_text(stream).error(), errno_code(ECONNRESET));
}

NET_TEST(Netpoll, UnconnectedSocketDoesNotSpinT20) {
  Fd fd = Fd::adopt(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)).value();
  // The kernel reports a hang-up at once.
  EXPECT_EQ(fd.wait_ready(net::kRead | net::kWrite, {}).value(), net::kRead | net::kWrite);
  std::byte byte;
  EXPECT_EQ(fd.recv({&byte, 1}, 0, {}).error(), errno_code(ENOTCONN));
  EXPECT_LT(polls_while_idle(), kFewPolls);
  // It is of use all the same.
  Listening listening;
  ASSERT_TRUE(fd.connect(listening.address.data(), listening.address.size(), {}));
  auto peer = listening.listener.accept().value();
  EXPECT_EQ(fd.recv({&byte, 1}, 0, Deadline::after(2ms)).error(), Errc::timed_out);
  ASSERT_TRUE(peer.write_all(bytes("x")));
  EXPECT_EQ(fd.recv({&byte, 1}, 0, {}).value(), 1u);
}

NET_TEST(Netpoll, WritableAgainDoesNotSpinT21) {
  TcpPair pair;
  auto writer = spawn([&] { return pair.client.write_all(bytes(std::string(8 << 20, 'x'))); });
  until_parked(writer.handle(), WaitReason::io_write);
  std::string got(8 << 20, '\0');
  ASSERT_EQ(pair.server.read_full(writable(got)).value(), got.size());
  EXPECT_TRUE(writer.join());
  EXPECT_LT(polls_while_idle(), kFewPolls);
}

NET_TEST(Netpoll, UnreadDataDoesNotSpinT22) {
  TcpPair pair;
  auto reader = spawn([&] { return read_text(pair.client, 1); });
  until_parked(reader.handle(), WaitReason::io_read);
  ASSERT_TRUE(pair.server.write_all(bytes("more than was asked for")));
  EXPECT_EQ(reader.join().value(), "m");
  EXPECT_LT(polls_while_idle(), kFewPolls);
  EXPECT_EQ(read_text(pair.client).value(), "ore than was asked for");
}

// A closed descriptor whose file lives on in a duplicate is reported no more.
NET_TEST(Netpoll, DuplicateOfAClosedDescriptorDoesNotSpinT12) {
  TcpPair pair;
  EXPECT_EQ(read_text(pair.client, 1, Deadline::after(1ms)).error(), Errc::timed_out);
  const int copy = ::dup(pair.client.fd().number());
  pair.client.close();
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(pair.server.write_all(bytes("x")));
    this_fiber::yield();
  }
  EXPECT_LT(polls_while_idle(), kFewPolls);
  char got[64];
  EXPECT_EQ(::recv(copy, got, sizeof got, 0), 20);
  ::close(copy);
}

// ---------------------------------------------------------------- events

// The generation tells an event of an earlier life of the PollDesc.
TEST(Netpoll, StaleEventsAreDropped) {
  Fd old = Fd::own(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), net::FdKind::other).value();
  net::PollDesc& desc = *net::find_desc(old.number());
  const std::uint32_t generation = desc.generation();
  const auto seq = [&] { return desc.direction[net::kReadSide].seq.load(); };
  const std::uint32_t before = seq();
  net::deliver_event(desc, generation, net::kRead, 0);
  EXPECT_EQ(seq(), before + 1);
  net::leave(desc);
  old.close();
  Fd fresh = Fd::own(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), net::FdKind::other).value();
  ASSERT_EQ(net::find_desc(fresh.number()), &desc);  // recycled
  net::leave(desc);
  const std::uint32_t now = seq();
  net::deliver_event(desc, generation, net::kRead, 0xff);
  EXPECT_EQ(seq(), now);
  EXPECT_EQ(desc.sticky.load(), 0u);
  // What the kernel carries for us holds the generation, and the address.
  const std::uint64_t word = net::event_word(desc);
  EXPECT_EQ(&net::event_desc(word), &desc);
  EXPECT_EQ(net::event_tag(word), net::EventTag::desc);
  net::deliver_event(desc, net::event_generation(word), net::kRead, 0);
  EXPECT_EQ(seq(), now + 1);
}

NET_TEST(Netpoll, MoreEventsThanOneBatch) {
  constexpr int kConnections = 600;
  Listening listening;
  std::vector<int> peers;
  std::vector<JoinHandle<Result<std::string>>> readers;
  for (int i = 0; i < kConnections; ++i) {
    peers.push_back(plain_connect(listening.address));
    readers.push_back(spawn(
        [stream = listening.listener.accept().value()]() mutable { return read_text(stream); }));
  }
  until_parked(readers.back().handle(), WaitReason::io_read);
  for (const int peer : peers)
    ASSERT_EQ(::send(peer, "x", 1, 0), 1);
  for (auto& reader : readers)
    EXPECT_EQ(reader.join().value(), "x");
  for (const int peer : peers)
    ::close(peer);
}

// A read of a TCP connection costs one recv, not one more that says EAGAIN, and no epoll_ctl.
NET_TEST(Netpoll, AReadCostsOneCall) {
  constexpr int kRounds = 100;
  TcpPair pair;
  auto echo = spawn([&] {
    std::string piece(1024, '\0');
    for (;;) {
      const std::size_t count = pair.server.read_some(writable(piece)).value();
      if (count == 0) return;
      pair.server.write_all(bytes(piece).first(count)).value();
    }
  });
  const auto round = [&] {
    ASSERT_TRUE(pair.client.write_all(bytes("ping")));
    EXPECT_EQ(read_text(pair.client).value(), "ping");
  };
  round();
  for (int hub = 0; hub < Scheduler::current()->hubs(); ++hub)  // what the hubs open is open
    ASSERT_TRUE(spawn([] {}, {.hub = hub}).join());
  const long receives = calls(Call::recv), sends = calls(Call::send);
  const long registrations = calls(Call::epoll_ctl);
  for (int i = 0; i < kRounds; ++i)
    round();
  // Two ends, one of each call a message. An event that comes late, when the read that took its
  // data is over, costs a look; with two hubs that is frequent.
  EXPECT_EQ(calls(Call::send) - sends, 2 * kRounds);
  EXPECT_LE(calls(Call::recv) - receives,
            Scheduler::current()->hubs() == 1 ? 2 * kRounds + 4 : 4 * kRounds);
  EXPECT_EQ(calls(Call::epoll_ctl) - registrations, 0);
  pair.client.close();
  EXPECT_TRUE(echo.join());
}

// ---------------------------------------------------------------- two users, two hubs, two ends

// A stream may be used from a hub that it is not registered with.
NET_TEST(Netpoll, ParksAtTheStreamsHome) {
  TcpPair pair;
  const int other = Scheduler::current()->hubs() - 1;
  EXPECT_EQ(read_text(pair.client, 1, Deadline::after(1ms)).error(), Errc::timed_out);
  for (int i = 0; i < 50; ++i) {
    auto reader = spawn([&] { return read_text(pair.client); }, {.hub = other});
    if (i % 2 == 0) until_parked(reader.handle(), WaitReason::io_read);
    ASSERT_TRUE(pair.server.write_all(bytes("x")));
    EXPECT_EQ(reader.join().value(), "x");
  }
}

TEST(Netpoll, AStreamOutlivesItsScheduler) {
  HangGuard guard;
  TcpStream client, server;
  const auto run = [](auto body) { runloom::run(body, fiber_test_options(1)).value(); };
  run([&] {
    TcpPair pair;
    EXPECT_EQ(read_text(pair.client, 1, Deadline::after(1ms)).error(), Errc::timed_out);
    client = std::move(pair.client);
    server = std::move(pair.server);
  });
  // Off any hub,
  ASSERT_TRUE(server.write_all(bytes("thread")));
  EXPECT_EQ(read_text(client).value(), "thread");
  // and on another scheduler, where it registers afresh.
  run([&] {
    auto reader = spawn([&] { return read_text(client); });
    until_parked(reader.handle(), WaitReason::io_read);
    ASSERT_TRUE(server.write_all(bytes("again")));
    EXPECT_EQ(reader.join().value(), "again");
  });
  client.close();
  EXPECT_EQ(read_text(server).value(), "");
}

// A stream that is used in turn by two schedulers that both live.
TEST(Netpoll, AStreamMovesBetweenSchedulers) {
  HangGuard guard;
  Scheduler one(fiber_test_options(1)), two(fiber_test_options(1));
  TcpStream client, server;
  one.run([&] {
       TcpPair pair;
       client = std::move(pair.client);
       server = std::move(pair.server);
     })
      .value();
  for (int i = 0; i < 3; ++i) {
    for (Scheduler* each : {&one, &two}) {
      each->run([&] {
            auto reader = spawn([&] { return read_text(client); });
            until_parked(reader.handle(), WaitReason::io_read);
            ASSERT_TRUE(server.write_all(bytes("x")));
            EXPECT_EQ(reader.join().value(), "x");
          })
          .value();
    }
  }
}

// On whichever thread calls run().
TEST(Netpoll, ASchedulerMovesBetweenThreads) {
  for (const auto make :
       {&net::make_epoll_netpoll, &net::make_poll_netpoll, &net::make_uring_netpoll}) {
    if (!make()) continue;  // this kernel has none
    HangGuard guard;
    Options options = fiber_test_options(2);
    options.make_driver = driver_maker(make);
    Scheduler scheduler(std::move(options));
    TcpStream client, server;
    const auto talk = [&] {
      scheduler
          .run([&] {
            if (!client) {
              TcpPair pair;
              client = std::move(pair.client);
              server = std::move(pair.server);
            }
            auto reader = spawn([&] { return read_text(client); });
            until_parked(reader.handle(), WaitReason::io_read);
            ASSERT_TRUE(server.write_all(bytes("x")));
            EXPECT_EQ(reader.join().value(), "x");
          })
          .value();
    };
    for (int i = 0; i < 3; ++i) {
      talk();
      std::thread(talk).join();
    }
  }
}

// What a fiber has left in the kernel ends with its hub: the port is free, whichever hub it was.
TEST(Netpoll, NothingHoldsAPortWhenTheHubsHaveEnded) {
  for (const auto make :
       {&net::make_epoll_netpoll, &net::make_poll_netpoll, &net::make_uring_netpoll}) {
    if (!make()) continue;
    HangGuard guard;
    for (int round = 0; round < 20; ++round) {
      net::Address address;
      Options options = fiber_test_options(2);
      options.make_driver = driver_maker(make);
      Scheduler(std::move(options))
          .run([&] {
            Listening listening;
            address = listening.address;
            for (int hub = 0; hub < 2; ++hub)
              spawn(
                  [&] {
                    (void)listening.listener.fd().wait_ready(net::kRead, Deadline::after(1us));
                  },
                  {.hub = hub})
                  .join()
                  .value();
          })
          .value();
      EXPECT_TRUE(net::TcpListener::listen(address)) << round;
    }
  }
}

// ---------------------------------------------------------------- time

// One wait for one timer: a time-out that is rounded down makes the last part a spin (A16).
NET_TEST(Netpoll, TimeoutsAreRoundedUpA16) {
  TcpPair pair;
  EXPECT_EQ(read_text(pair.client, 1, Deadline::after(1us)).error(), Errc::timed_out);
  const auto before = Scheduler::current()->stats();
  const std::int64_t start = monotonic_ns();
  EXPECT_EQ(read_text(pair.client, 1, Deadline::after(9'950us)).error(), Errc::timed_out);
  EXPECT_GE(monotonic_ns() - start, 9'950'000);
  EXPECT_LE(Scheduler::current()->stats().polls - before.polls,
            6u * static_cast<unsigned>(Scheduler::current()->hubs()));
}

// ---------------------------------------------------------------- trouble

// No descriptor for the poller: the caller is told, nothing is half built, and later it works.
TEST(Netpoll, NoDescriptorForThePollerR04) {
  HangGuard guard;
  Scheduler scheduler(fiber_test_options(1));
  TcpStream client, server;
  scheduler
      .run([&] {
        TcpPair pair;
        client = std::move(pair.client);
        server = std::move(pair.server);
      })
      .value();
  for (const Call call : {Call::epoll_create1, Call::eventfd, Call::epoll_ctl}) {
    Scheduler fresh(fiber_test_options(1));
    const int lowest = ::dup(0);
    ::close(lowest);
    fresh
        .run([&] {
          {
            const Fault fault(call, EMFILE);
            EXPECT_EQ(read_text(client).error(), errno_code(EMFILE));
            EXPECT_EQ(fault.failed(), 1);
          }
          const int now = ::dup(0);
          ::close(now);
          EXPECT_EQ(now, lowest) << "something is left open";
          ASSERT_TRUE(server.write_all(bytes("x")));
          EXPECT_EQ(read_text(client).value(), "x");
        })
        .value();
  }
}

// A registration that fails is told to whoever needed it, and tried again by the next.
NET_TEST(Netpoll, FailedRegistration) {
  for (const int err : {ENOMEM, ENOSPC}) {
    TcpPair pair;
    {
      const Fault fault(Call::epoll_ctl, err);
      const auto result = read_text(pair.client, 1, Deadline::after(1ms));
      EXPECT_EQ(result.error(),
                fault.failed() == 1 ? errno_code(err) : make_error_code(Errc::timed_out));
    }
    auto reader = spawn([&] { return read_text(pair.client); });
    until_parked(reader.handle(), WaitReason::io_read);
    ASSERT_TRUE(pair.server.write_all(bytes("x")));
    EXPECT_EQ(reader.join().value(), "x");
  }
}

// The k-th call fails: each error reaches the caller, EINTR and EAGAIN are nobody's business, and
// the connection goes on where it can.
NET_TEST(Netpoll, FailingCallsReachTheirCaller) {
  for (const int err : {EINTR, EAGAIN, ECONNRESET, ENOMEM, ETIMEDOUT, EHOSTUNREACH}) {
    TcpPair pair;
    auto feeder = spawn([&] { return pair.server.write_all(bytes("hello")); });
    const bool passes = err == EINTR || err == EAGAIN;
    {
      const Fault fault(Call::recv, err, 1, err == EAGAIN ? 1 : 2);
      const auto got = read_text(pair.client);
      EXPECT_EQ(got.error(), passes ? std::error_code() : errno_code(err));
      EXPECT_GE(fault.failed(), 1);
    }
    EXPECT_TRUE(feeder.join());
    {
      const Fault fault(Call::send, err, 1, err == EINTR ? 3 : 1);
      // A full buffer that isn't one: the event that says so may have passed.
      const auto sent = pair.client.write_some(
          bytes("x"), err == EAGAIN ? Deadline::after(5ms) : Deadline::never());
      EXPECT_EQ(sent.error(), passes ? std::error_code() : errno_code(err));
    }
  }
}

NET_TEST(Netpoll, SurvivesFailingWaits) {
  TcpPair pair;
  auto reader = spawn([&] { return read_text(pair.client); });
  until_parked(reader.handle(), WaitReason::io_read);
  {
    const Fault wait(Call::epoll_wait, EINTR, 1, 5);
    const Fault poll(Call::ppoll, EINTR, 1, 5);
    ASSERT_TRUE(pair.server.write_all(bytes("x")));
    EXPECT_EQ(reader.join().value(), "x");
  }
}

// ---------------------------------------------------------------- choice

NET_TEST(Netpoll, TheHubsDriverIsTheBackend) {
  net::Netpoll* netpoll = net::Netpoll::current().value();
  EXPECT_EQ(netpoll, &Hub::current()->driver());
  const std::string_view name = netpoll->name();
  EXPECT_TRUE(name == "epoll" || name == "poll" || name == "io_uring") << name;
  EXPECT_FALSE(netpoll->wants_poll());
  TcpPair pair;
  EXPECT_EQ(read_text(pair.client, 1, Deadline::after(1us)).error(), Errc::timed_out);
  // A ring tells by itself when there is something to fetch.
  EXPECT_TRUE(netpoll->wants_poll() || name == "io_uring");
  pair.client.close();
  pair.server.close();
  EXPECT_FALSE(netpoll->wants_poll());
}

TEST(Netpoll, InstalledOnFirstUse) {
  HangGuard guard;
  EXPECT_EQ(net::Netpoll::current().value()->name(), "thread");
  runloom::run(
      [] {
        const Driver* before = &Hub::current()->driver();
        net::Netpoll* netpoll = net::Netpoll::current().value();
        EXPECT_NE(static_cast<Driver*>(netpoll), before);
        EXPECT_EQ(static_cast<Driver*>(netpoll), &Hub::current()->driver());
        EXPECT_EQ(net::Netpoll::current().value(), netpoll);
      },
      fiber_test_options(1))
      .value();
}

}  // namespace
}  // namespace runloom::test
