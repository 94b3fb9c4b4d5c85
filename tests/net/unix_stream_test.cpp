#include "runloom/net/unix_stream.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "runloom/net/unix_listener.hpp"
#include "support/net_test.hpp"
#include "support/race.hpp"
#include "support/syscall_faults.hpp"
#include "support/unix_test.hpp"

namespace runloom::test {
namespace {

using namespace std::chrono_literals;
using net::Address;
using net::UnixErrc;
using net::UnixListener;
using net::UnixMessage;
using net::UnixStream;

// ---------------------------------------------------------------- as a stream

NET_TEST(UnixStream, EchoesAndEnds) {
  SocketDir dir;
  auto listener = UnixListener::listen(dir.address("s")).value();
  auto echo = spawn([&] {
    auto stream = listener.accept().value();
    EXPECT_TRUE(stream.write_all(net::bytes(read_to_end(stream).value())));
  });
  auto client = UnixStream::connect(dir.address("s")).value();
  const std::string text = pattern(1 << 20);
  EXPECT_TRUE(client.write_all(net::bytes(text)));
  EXPECT_TRUE(client.shutdown_write());
  EXPECT_TRUE(read_to_end(client).value() == text);
  EXPECT_TRUE(echo.join());
}

NET_TEST(UnixStream, FailsAsTheKernelDoes) {
  SocketDir dir;
  EXPECT_EQ(UnixStream::connect(dir.address("none")).error(), errno_code(ENOENT));
  ::close(plain_bind(dir.address("stale")));
  EXPECT_EQ(UnixStream::connect(dir.address("stale")).error(), errno_code(ECONNREFUSED));
  const int datagram = plain_bind(dir.address("datagram"), SOCK_DGRAM);
  EXPECT_EQ(UnixStream::connect(dir.address("datagram")).error(), errno_code(EPROTOTYPE));
  ::close(datagram);
  EXPECT_EQ(UnixStream::connect(Address::loopback_ipv4(1)).error(), errno_code(EAFNOSUPPORT));
  EXPECT_EQ(UnixStream().read_some({}).value(), 0u);
  EXPECT_EQ(read_text(*std::make_unique<UnixStream>()).error(), Errc::closed);
}

// The kernel says EAGAIN when the queue is full, and nothing when it no longer is.
NET_TEST(UnixStream, ConnectWaitsForRoomInTheQueue) {
  SocketDir dir;
  const int listener = plain_bind(dir.address("s"), SOCK_STREAM, 0);
  auto first = UnixStream::connect(dir.address("s")).value();
  EXPECT_EQ(UnixStream::connect(dir.address("s"), Deadline::now()).error(), Errc::timed_out);
  EXPECT_EQ(UnixStream::connect(dir.address("s"), Deadline::after(5ms)).error(), Errc::timed_out);
  auto cancelled = spawn([&] { return UnixStream::connect(dir.address("s")); });
  until_parked(cancelled.handle(), WaitReason::sleep);
  cancelled.cancel();
  EXPECT_EQ(cancelled.join().error(), Errc::cancelled);
  auto second = spawn([&] { return UnixStream::connect(dir.address("s")); });
  until_parked(second.handle(), WaitReason::sleep);
  const int accepted = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  EXPECT_TRUE(second.join());
  ::close(accepted);
  ::close(listener);
}

NET_TEST(UnixStream, DeadlineCancelAndCloseEndAWait) {
  UnixPair pair;
  EXPECT_EQ(read_text(pair.one, 9, Deadline::now()).error(), Errc::timed_out);
  EXPECT_EQ(read_text(pair.one, 9, Deadline::after(2ms)).error(), Errc::timed_out);
  auto reader = spawn([&] { return read_text(pair.one); });
  until_parked(reader.handle(), WaitReason::io_read);
  reader.cancel();
  EXPECT_EQ(reader.join().error(), Errc::cancelled);
  auto receiver = spawn([&] {
    std::string text(9, '\0');
    return pair.one.recv_fds(writable(text), 1);
  });
  until_parked(receiver.handle(), WaitReason::io_read);
  pair.one.close();
  EXPECT_EQ(receiver.join().error(), Errc::closed);
  EXPECT_EQ(read_text(pair.two).value(), "");
  EXPECT_EQ(pair.two.write_some(net::bytes("x")).error(), errno_code(EPIPE));
}

NET_TEST(UnixStream, AFullBufferMakesTheWriterWait) {
  UnixPair pair;
  const std::string text = pattern(4 << 20);
  auto writer = spawn([&] {
    auto written = pair.one.write_all(net::bytes(text));
    pair.one.close();
    return written;
  });
  until_parked(writer.handle(), WaitReason::io_write);
  EXPECT_TRUE(read_to_end(pair.two).value() == text);
  EXPECT_TRUE(writer.join());
}

NET_TEST(UnixStream, AdoptsAndDetaches) {
  std::array<int, 2> ends;
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  auto stream = UnixStream::adopt(ends[0]).value();
  EXPECT_EQ(UnixStream::adopt(ends[0]).error(), errno_code(EBUSY));
  EXPECT_NE(::fcntl(ends[0], F_GETFL) & O_NONBLOCK, 0);
  ASSERT_EQ(::write(ends[1], "x", 1), 1);
  EXPECT_EQ(read_text(stream).value(), "x");
  EXPECT_EQ(stream.detach().value(), ends[0]);
  EXPECT_FALSE(stream);
  EXPECT_EQ(::fcntl(ends[0], F_GETFL) & O_NONBLOCK, 0);
  ::close(ends[0]);
  ::close(ends[1]);
  const int tcp = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(UnixStream::adopt(tcp).error(), errno_code(EPROTOTYPE));
  EXPECT_EQ(UnixStream::adopt(-1).error(), errno_code(EBADF));
  ::close(tcp);
}

// ---------------------------------------------------------------- names and credentials

NET_TEST(UnixStream, AbstractNamesAreKeptWholeX06) {
  const std::string unique = "runloom-" + std::to_string(::getpid());
  for (const std::string& name : {unique, unique + std::string("\0in\0side\0", 9),
                                  std::string(107 - unique.size(), 'x') + unique}) {
    const Address address = Address::from_unix_abstract(name).value();
    const long unlinks = calls(Call::unlink);
    auto listener = UnixListener::listen(address).value();
    EXPECT_EQ(listener.local_address().value(), address);
    EXPECT_EQ(listener.local_address().value().unix_name(), '\0' + name);
    auto client = UnixStream::connect(address).value();
    EXPECT_EQ(client.peer_address().value(), address);
    EXPECT_TRUE(client.local_address().value().unix_name().empty());
    Address peer;
    auto server = listener.accept_from(peer).value();
    EXPECT_TRUE(peer.is_unix());
    EXPECT_TRUE(peer.unix_name().empty());
    EXPECT_TRUE(server.write_all(net::bytes("x")));
    EXPECT_EQ(read_text(client).value(), "x");
    // The name is taken while the listener lives, and free afterwards.
    EXPECT_EQ(UnixListener::listen(address).error(), errno_code(EADDRINUSE));
    listener.close();
    EXPECT_EQ(UnixStream::connect(address).error(), errno_code(ECONNREFUSED));
    EXPECT_TRUE(UnixListener::listen(address));
    EXPECT_EQ(calls(Call::unlink), unlinks);
  }
}

NET_TEST(UnixStream, TheKernelChoosesANameX06) {
  auto listener = UnixListener::listen(Address::unix_unnamed()).value();
  const Address name = listener.local_address().value();
  EXPECT_EQ(name.unix_name().size(), 6u);
  EXPECT_EQ(name.unix_name()[0], '\0');
  auto client = UnixStream::connect(name).value();
  EXPECT_TRUE(listener.accept());
  EXPECT_EQ(client.peer_address().value(), name);
}

NET_TEST(UnixStream, TellsWhoThePeerIs) {
  SocketDir dir;
  auto listener = UnixListener::listen(dir.address("s")).value();
  auto client = UnixStream::connect(dir.address("s")).value();
  auto server = listener.accept().value();
  for (const auto* stream : {&client, &server}) {
    const auto who = stream->peer_credentials().value();
    EXPECT_EQ(who.pid, ::getpid());
    EXPECT_EQ(who.uid, ::geteuid());
    EXPECT_EQ(who.gid, ::getegid());
  }
  client.close();
  EXPECT_EQ(client.peer_credentials().error(), Errc::closed);
  auto loose = net::Fd::adopt(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)).value();
  EXPECT_EQ(net::peer_credentials(loose).error(), errno_code(ENOTCONN));
}

// ---------------------------------------------------------------- descriptors

// The ends of a pipe, whose number says nothing and whose bytes tell which it is.
struct PlainPipe {
  PlainPipe() { EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0); }
  ~PlainPipe() {
    ::close(ends[0]);
    ::close(ends[1]);
  }
  PlainPipe(const PlainPipe&) = delete;
  PlainPipe& operator=(const PlainPipe&) = delete;
  std::array<int, 2> ends;
};

Result<UnixMessage> receive(UnixStream& stream, std::size_t most, std::size_t room = 64,
                            std::string* out = nullptr) {
  std::string text(room, '\0');
  RUNLOOM_TRY(UnixMessage message, stream.recv_fds(writable(text), most));
  if (out) *out = text.substr(0, message.bytes);
  return message;
}

NET_TEST(UnixStream, CarriesDescriptorsInOrder) {
  UnixPair pair;
  PlainPipe pipe;
  const std::array<int, 2> sent{pipe.ends[1], pipe.ends[0]};
  EXPECT_EQ(pair.one.send_fds(net::bytes("two"), sent).value(), 3u);
  std::string text;
  const auto message = receive(pair.two, 8, 64, &text).value();
  EXPECT_EQ(text, "two");
  ASSERT_EQ(message.fds.size(), 2u);
  EXPECT_FALSE(message.fds_lost);
  EXPECT_FALSE(message.truncated());
  for (const auto& fd : message.fds)
    EXPECT_TRUE(is_cloexec(fd.number()));
  ASSERT_EQ(::write(message.fds[0].number(), "x", 1), 1);
  char byte = 0;
  EXPECT_EQ(::read(message.fds[1].number(), &byte, 1), 1);
  EXPECT_EQ(byte, 'x');
  // None to send is a plain write.
  EXPECT_EQ(pair.one.send_fds(net::bytes("none"), {}).value(), 4u);
  EXPECT_EQ(receive(pair.two, 8).value().fds.size(), 0u);
}

NET_TEST(UnixStream, ExtraDescriptorsAreClosedX02) {
  UnixPair pair;
  PlainPipe pipe;
  const std::vector<int> many(16, pipe.ends[0]);
  const std::size_t before = open_descriptors();
  for (const std::size_t expected : {1u, 0u, 5u, 15u}) {
    ASSERT_EQ(plain_send_fds(pair.one.fd().number(), "x", many), 1);
    const auto message = receive(pair.two, expected).value();
    ASSERT_EQ(message.fds.size(), expected);
    EXPECT_TRUE(message.fds_lost);
    EXPECT_EQ(open_descriptors(), before + expected);
    for (const auto& fd : message.fds) {
      EXPECT_TRUE(is_cloexec(fd.number()));
      EXPECT_TRUE(same_file(fd.number(), pipe.ends[0]));
    }
  }
  ASSERT_EQ(plain_send_fds(pair.one.fd().number(), "x", many), 1);
  EXPECT_FALSE(receive(pair.two, 16).value().fds_lost);
  EXPECT_EQ(open_descriptors(), before);
}

// Also with credentials in front, for which no room was asked for.
NET_TEST(UnixStream, CredentialsDoNotCostDescriptorsX02) {
  UnixPair pair;
  const int on = 1;
  ASSERT_EQ(::setsockopt(pair.two.fd().number(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on), 0);
  PlainPipe pipe;
  const std::vector<int> many(16, pipe.ends[0]);
  const std::size_t before = open_descriptors();
  {
    ASSERT_EQ(plain_send_fds(pair.one.fd().number(), "x", many), 1);
    const auto message = receive(pair.two, 16).value();
    EXPECT_EQ(message.fds.size(), 16u);
    EXPECT_FALSE(message.fds_lost);
  }
  ASSERT_EQ(plain_send_fds(pair.one.fd().number(), "x", many), 1);
  EXPECT_TRUE(receive(pair.two, 1).value().fds_lost);
  EXPECT_EQ(open_descriptors(), before);
}

NET_TEST(UnixStream, PlainReadsOpenNothingX02) {
  UnixPair pair;
  PlainPipe pipe;
  const std::size_t before = open_descriptors();
  ASSERT_EQ(plain_send_fds(pair.one.fd().number(), "read", {pipe.ends[0], pipe.ends[1]}), 4);
  EXPECT_EQ(read_text(pair.two).value(), "read");
  ASSERT_EQ(plain_send_fds(pair.one.fd().number(), "peek", {pipe.ends[0]}), 4);
  std::string text(9, '\0');
  EXPECT_EQ(pair.two.peek(writable(text)).value(), 4u);
  EXPECT_EQ(open_descriptors(), before);
  // Peeking has not lost them.
  EXPECT_EQ(receive(pair.two, 1).value().fds.size(), 1u);
  // Never received: they go with the socket.
  ASSERT_EQ(plain_send_fds(pair.one.fd().number(), "left", {pipe.ends[0]}), 4);
  pair.two.close();
  EXPECT_EQ(open_descriptors(), before - 1);
}

NET_TEST(UnixStream, AReadStopsBehindAMessageWithDescriptors) {
  UnixPair pair;
  PlainPipe pipe;
  const int one = pair.one.fd().number();
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(plain_send_fds(one, "before ", {}), 7);
    ASSERT_EQ(plain_send_fds(one, "with ", {pipe.ends[0]}), 5);
    ASSERT_EQ(plain_send_fds(one, "more ", {pipe.ends[1]}), 5);
    ASSERT_EQ(plain_send_fds(one, "behind", {}), 6);
    std::string text;
    const auto first = receive(pair.two, 8, 64, &text).value();
    EXPECT_EQ(text, "before with ");
    ASSERT_EQ(first.fds.size(), 1u);
    EXPECT_TRUE(same_file(first.fds[0].number(), pipe.ends[0]));
    // A short read says nothing about what is left: neither of these may wait.
    EXPECT_EQ(read_text(pair.two).value(), "more ");
    EXPECT_EQ(read_text(pair.two).value(), "behind");
  }
}

NET_TEST(UnixStream, RefusesWhatCanNotBeSent) {
  UnixPair pair;
  PlainPipe pipe;
  const std::vector<int> most(net::kMostFds, pipe.ends[0]);
  const std::vector<int> more(net::kMostFds + 1, pipe.ends[0]);
  const auto error = pair.one.send_fds(net::bytes("x"), more).error();
  EXPECT_EQ(error, UnixErrc::too_many_fds);
  EXPECT_EQ(error, std::errc::invalid_argument);
  EXPECT_NE(error.message().find("253"), std::string::npos);
  EXPECT_EQ(pair.one.send_fds({}, most).error(), UnixErrc::no_byte);
  const std::array<int, 1> bad{-1};
  EXPECT_EQ(pair.one.send_fds(net::bytes("x"), bad).error(), errno_code(EBADF));
  std::string text(9, '\0');
  EXPECT_EQ(pair.two.recv_fds(writable(text), net::kMostFds + 1).error(), UnixErrc::too_many_fds);
  EXPECT_EQ(pair.two.recv_fds({}, 1).error(), UnixErrc::no_byte);
  EXPECT_EQ(pair.one.send_fds(net::bytes("x"), most).value(), 1u);
  EXPECT_EQ(receive(pair.two, net::kMostFds).value().fds.size(), net::kMostFds);
}

// No room in the process: what fits is delivered, and the loss is shown.
NET_TEST(UnixStream, ShowsTheDescriptorsThatHadNoRoom) {
  UnixPair pair;
  PlainPipe pipe;
  for (int hub = 0; hub < Scheduler::current()->hubs(); ++hub)  // what the hubs open is open
    ASSERT_TRUE(spawn([] {}, {.hub = hub}).join());
  EXPECT_EQ(read_text(pair.two, 1, Deadline::after(1ms)).error(), Errc::timed_out);
  ASSERT_EQ(plain_send_fds(pair.one.fd().number(), "x", std::vector<int>(4, pipe.ends[0])), 1);
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int first = ::dup(0);  // the two lowest numbers that are free
  const int second = ::dup(0);
  ::close(first);
  ::close(second);
  rlimit limit = before;
  limit.rlim_cur = static_cast<rlim_t>(second) + 1;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  const auto message = receive(pair.two, 4);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_TRUE(message);
  EXPECT_EQ(message->fds.size(), 2u);
  EXPECT_TRUE(message->fds_lost);
}

// A message larger than the buffer: its descriptors came with the first byte.
NET_TEST(UnixStream, DescriptorsTravelWithTheFirstByte) {
  UnixPair pair;
  PlainPipe pipe;
  const std::string text = pattern(4 << 20);
  const std::array<int, 1> fds{pipe.ends[0]};
  const std::size_t sent = pair.one.send_fds(net::bytes(text), fds).value();
  ASSERT_GT(sent, 0u);
  ASSERT_LT(sent, text.size());
  auto rest = spawn([&] {
    EXPECT_TRUE(pair.one.write_all(net::bytes(std::string_view(text).substr(sent))));
    pair.one.close();
  });
  std::string head;
  EXPECT_EQ(receive(pair.two, 1, 1, &head).value().fds.size(), 1u);
  EXPECT_EQ(head[0], text[0]);
  EXPECT_TRUE(read_to_end(pair.two).value() == text.substr(1));
  EXPECT_TRUE(rest.join());
}

NET_TEST(UnixStream, SendFdsWaitsAndEnds) {
  UnixPair pair;
  PlainPipe pipe;
  const std::string text = pattern(4 << 20);
  std::size_t written = 0;
  EXPECT_EQ(pair.one.write_all(net::bytes(text), Deadline::after(2ms), &written).error(),
            Errc::timed_out);
  const std::array<int, 1> fds{pipe.ends[0]};
  EXPECT_EQ(pair.one.send_fds(net::bytes("x"), fds, Deadline::after(2ms)).error(), Errc::timed_out);
  auto sender = spawn([&] { return pair.one.send_fds(net::bytes("x"), fds); });
  until_parked(sender.handle(), WaitReason::io_write);
  std::size_t taken = 0;
  while (taken < written)  // and not the message behind them
    taken += read_text(pair.two, std::min<std::size_t>(65536, written - taken)).value().size();
  EXPECT_EQ(sender.join().value(), 1u);
  EXPECT_EQ(receive(pair.two, 1).value().fds.size(), 1u);
}

// Senders, receivers and closes at random: whatever was on its way, no descriptor stays open.
NET_TEST(UnixStreamRace, NoDescriptorIsLostX02) {
  PlainPipe pipe;
  const std::size_t before = open_descriptors();
  std::uint64_t stream = 0;
  for (RaceBudget budget; !budget.spent();) {
    UnixPair pair;
    std::vector<JoinHandle<void>> fibers;
    for (int i = 0; i < 2; ++i) {
      fibers.push_back(spawn([&, seed = ++stream] {
        Random random(seed);
        for (int n = 0; n < 20; ++n) {
          const std::vector<int> fds(random.below(5), pipe.ends[0]);
          if (!pair.one.send_fds(net::bytes(pattern(1 + random.below(50))), fds)) return;
        }
      }));
      fibers.push_back(spawn([&, seed = ++stream] {
        Random random(seed);
        for (;;) {
          std::string text;
          if (random.one_in(4)) {
            if (!read_text(pair.two, 1 + random.below(20), Deadline::after(1ms))) return;
            continue;
          }
          text.resize(1 + random.below(20));
          const auto most = random.below(4);
          const auto message = pair.two.recv_fds(writable(text), most, Deadline::after(1ms));
          if (!message || message->bytes == 0) return;
          ASSERT_LE(message->fds.size(), most);
        }
      }));
    }
    fibers.push_back(spawn([&, seed = ++stream] {
      Random random(seed);
      for (auto turns = random.below(50); turns > 0; --turns)
        this_fiber::yield();
      random.one_in(2) ? pair.one.close() : pair.two.close();
    }));
    for (auto& fiber : fibers)
      EXPECT_TRUE(fiber.join());
    pair.one.close();
    pair.two.close();
  }
  EXPECT_EQ(open_descriptors(), before);
}

// ---------------------------------------------------------------- faults

NET_TEST(UnixStream, SurvivesFailingCalls) {
  SocketDir dir;
  PlainPipe pipe;
  auto listener = UnixListener::listen(dir.address("s")).value();
  const std::array<int, 1> fds{pipe.ends[0]};
  const auto round_trip = [&]() -> Result<void> {
    RUNLOOM_TRY(auto client, UnixStream::connect(dir.address("s"), Deadline::after(5s)));
    RUNLOOM_TRY(auto server, listener.accept(Deadline::after(5s)));
    RUNLOOM_TRY(const std::size_t sent, client.send_fds(net::bytes("x"), fds));
    EXPECT_EQ(sent, 1u);
    RUNLOOM_TRY(const auto message, receive(server, 1));
    EXPECT_EQ(message.fds.size(), 1u);
    return {};
  };
  ASSERT_TRUE(round_trip());
  const std::size_t before = open_descriptors();
  for (const Call call : {Call::socket, Call::connect, Call::accept4, Call::sendmsg, Call::recvmsg})
    for (const int err : {EINTR, EAGAIN, ENOMEM, ENOBUFS, EMFILE, ECONNREFUSED, ECONNRESET, EPIPE,
                          EBADF, ETOOMANYREFS, EACCES})
      for (const int at : {1, 2}) {
        // An EAGAIN that is none has no event to end it.
        if (err == EAGAIN && call != Call::connect && call != Call::socket) continue;
        if (err == EINTR && call == Call::socket) continue;
        {
          const Fault fault(call, err, at);
          const auto done = round_trip();
          const bool passed_over = err == EINTR || (err == EAGAIN && call == Call::connect);
          if (!done) {
            EXPECT_EQ(done.error(), errno_code(err)) << static_cast<int>(call);
          }
          if (done) {
            EXPECT_TRUE(fault.failed() == 0 || passed_over) << static_cast<int>(call);
          }
        }
        // What failed before the accept has left a connection in the queue.
        while (listener.accept(Deadline::now())) {
        }
        EXPECT_EQ(open_descriptors(), before);
      }
  {
    const Fault fault(Call::socketpair, EMFILE);
    EXPECT_EQ(UnixStream::pair().error(), errno_code(EMFILE));
  }
  EXPECT_TRUE(round_trip());
}

}  // namespace
}  // namespace runloom::test
