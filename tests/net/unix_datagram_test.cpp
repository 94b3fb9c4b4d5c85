#include "runloom/net/unix_datagram.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>

#include "support/net_test.hpp"
#include "support/race.hpp"
#include "support/syscall_faults.hpp"
#include "support/unix_test.hpp"

namespace runloom::test {
namespace {

using namespace std::chrono_literals;
using net::Address;
using net::UnixDatagram;
using net::UnixErrc;
using net::UnixMessage;
using Names = std::vector<std::string>;

Result<UnixMessage> receive(UnixDatagram& socket, std::string& text, Deadline deadline = {},
                            std::size_t most_fds = 0, std::size_t room = 64) {
  text.assign(room, '\0');
  auto message = socket.recv_fds(writable(text), most_fds, deadline);
  if (message) text.resize(message->bytes);
  return message;
}
// Takes one datagram, which must be there.
std::string take(UnixDatagram& socket) {
  std::string text;
  EXPECT_TRUE(receive(socket, text, Deadline::after(5s)));
  return text;
}
// Sends until the receiver's queue is full; returns how many went.
int fill(UnixDatagram& socket, const Address& to) {
  int sent = 0;
  while (socket.send_to(net::bytes("f"), to, Deadline::now()))
    ++sent;
  return sent;
}

NET_TEST(UnixDatagram, CarriesNamesAndEmptyMessages) {
  SocketDir dir;
  auto server = UnixDatagram::bind(dir.address("server")).value();
  auto named = UnixDatagram::bind(dir.address("client")).value();
  auto unnamed = UnixDatagram::open().value();
  EXPECT_TRUE(named.send_to(net::bytes("one"), dir.address("server")));
  EXPECT_TRUE(named.send_to({}, dir.address("server")));
  EXPECT_TRUE(unnamed.send_to(net::bytes("three"), dir.address("server")));
  std::string text;
  EXPECT_EQ(receive(server, text).value().from, dir.address("client"));
  EXPECT_EQ(text, "one");
  EXPECT_EQ(receive(server, text).value().from, dir.address("client"));
  EXPECT_EQ(text, "");
  const auto third = receive(server, text).value();
  EXPECT_TRUE(third.from.is_unix());
  EXPECT_TRUE(third.from.unix_name().empty());
  EXPECT_EQ(text, "three");
  EXPECT_TRUE(server.send_to(net::bytes("back"), dir.address("client")));
  EXPECT_EQ(take(named), "back");
  EXPECT_TRUE(unnamed.local_address().value().unix_name().empty());
}

NET_TEST(UnixDatagram, AbstractNamesAreKeptWholeX06) {
  const std::string unique = "runloom-datagram-" + std::to_string(::getpid());
  const long unlinks = calls(Call::unlink);
  for (const std::string& name : {unique, unique + std::string("\0in\0", 4)}) {
    const Address address = Address::from_unix_abstract(name).value();
    auto server = UnixDatagram::bind(address).value();
    EXPECT_EQ(server.local_address().value(), address);
    EXPECT_EQ(UnixDatagram::bind(address).error(), errno_code(EADDRINUSE));
    auto client = UnixDatagram::bind(Address::unix_unnamed()).value();
    const Address chosen = client.local_address().value();
    EXPECT_EQ(chosen.unix_name().size(), 6u);
    ASSERT_TRUE(client.connect(address));
    EXPECT_TRUE(client.send(net::bytes("x")));
    std::string text;
    EXPECT_EQ(receive(server, text).value().from, chosen);
    EXPECT_TRUE(server.send_to(net::bytes("y"), chosen));
    EXPECT_EQ(take(client), "y");
  }
  EXPECT_EQ(calls(Call::unlink), unlinks);
}

NET_TEST(UnixDatagram, ShowsWhatDidNotFit) {
  auto [one, two] = UnixDatagram::pair().value();
  std::string text;
  EXPECT_TRUE(one.send(net::bytes("longer")));
  EXPECT_TRUE(one.send(net::bytes("next")));
  const auto cut = receive(two, text, {}, 0, 4).value();
  EXPECT_EQ(text, "long");
  EXPECT_TRUE(cut.truncated());
  EXPECT_EQ(cut.full_size, 6u);
  const auto whole = receive(two, text, {}, 0, 4).value();
  EXPECT_EQ(text, "next");
  EXPECT_FALSE(whole.truncated());
  EXPECT_TRUE(one.send(net::bytes("x")));
  EXPECT_TRUE(receive(two, text, {}, 0, 0).value().truncated());
}

NET_TEST(UnixDatagram, TellsOfPeersThatAreGone) {
  SocketDir dir;
  auto client = UnixDatagram::open().value();
  EXPECT_EQ(client.send_to(net::bytes("x"), dir.address("none")).error(), errno_code(ENOENT));
  EXPECT_EQ(client.connect(dir.address("none")).error(), errno_code(ENOENT));
  EXPECT_EQ(client.send(net::bytes("x")).error(), errno_code(ENOTCONN));
  auto server = UnixDatagram::bind(dir.address("s")).value();
  ASSERT_TRUE(client.connect(dir.address("s")));
  server.close();
  EXPECT_EQ(dir.names(), Names{});
  EXPECT_EQ(client.send(net::bytes("x")).error(), errno_code(ECONNREFUSED));
  ::close(plain_bind(dir.address("stale"), SOCK_DGRAM));
  EXPECT_EQ(client.send_to(net::bytes("x"), dir.address("stale")).error(),
            errno_code(ECONNREFUSED));
  // A receiver that talks to somebody else only.
  auto choosy = UnixDatagram::bind(dir.address("choosy")).value();
  auto friendly = UnixDatagram::bind(dir.address("friend")).value();
  ASSERT_TRUE(choosy.connect(dir.address("friend")));
  EXPECT_EQ(client.send_to(net::bytes("x"), dir.address("choosy")).error(), errno_code(EPERM));
  EXPECT_EQ(client.send_to(net::bytes("x"), Address::loopback_ipv4(1)).error(),
            errno_code(EAFNOSUPPORT));
  EXPECT_EQ(client.connect(Address::loopback_ipv4(1)).error(), errno_code(EAFNOSUPPORT));
  EXPECT_EQ(client.send_to(net::bytes(std::string(8 << 20, 'x')), dir.address("friend")).error(),
            errno_code(EMSGSIZE));
}

NET_TEST(UnixDatagram, DeadlineCancelAndCloseEndAReceive) {
  SocketDir dir;
  auto socket = UnixDatagram::bind(dir.address("s")).value();
  std::string text;
  EXPECT_EQ(receive(socket, text, Deadline::now()).error(), Errc::timed_out);
  EXPECT_EQ(receive(socket, text, Deadline::after(2ms)).error(), Errc::timed_out);
  auto receiver = spawn([&] {
    std::string mine;
    return receive(socket, mine);
  });
  until_parked(receiver.handle(), WaitReason::io_read);
  receiver.cancel();
  EXPECT_EQ(receiver.join().error(), Errc::cancelled);
  auto closed = spawn([&] {
    std::string mine;
    return receive(socket, mine);
  });
  until_parked(closed.handle(), WaitReason::io_read);
  socket.close();
  EXPECT_EQ(closed.join().error(), Errc::closed);
  EXPECT_EQ(dir.names(), Names{});
}

// ---------------------------------------------------------------- backpressure

// The kernel calls the sender's socket writable while the receiver's queue is full.
NET_TEST(UnixDatagram, AFullReceiverParksItsSenders) {
  SocketDir dir;
  auto server = UnixDatagram::bind(dir.address("s")).value();
  auto filler = UnixDatagram::open().value();
  auto sender = UnixDatagram::open().value();
  const int filled = fill(filler, dir.address("s"));
  EXPECT_GT(filled, 0);
  // Nothing of what is in the queue is the sender's: nothing of its own will wake it.
  const long before = calls(Call::sendmsg);
  auto sending = spawn([&] { return sender.send_to(net::bytes("late"), dir.address("s")); });
  until_parked(sending.handle(), WaitReason::select);
  ASSERT_TRUE(this_fiber::sleep_for(20ms));
  EXPECT_FALSE(sending.done());
  EXPECT_LE(calls(Call::sendmsg) - before, 2);  // it doesn't spin
  for (int i = 0; i < filled; ++i)
    EXPECT_EQ(take(server), "f");
  EXPECT_EQ(take(server), "late");
  EXPECT_TRUE(sending.join());
}

NET_TEST(UnixDatagram, AConnectedSenderWaitsToo) {
  SocketDir dir;
  auto server = UnixDatagram::bind(dir.address("s")).value();
  auto filler = UnixDatagram::open().value();
  auto sender = UnixDatagram::open().value();
  ASSERT_TRUE(sender.connect(dir.address("s")));
  const int filled = fill(filler, dir.address("s"));
  EXPECT_EQ(sender.send(net::bytes("x"), Deadline::after(2ms)).error(), Errc::timed_out);
  const long before = calls(Call::sendmsg);
  auto sending = spawn([&] { return sender.send(net::bytes("late")); });
  until_parked(sending.handle(), WaitReason::io_write);
  ASSERT_TRUE(this_fiber::sleep_for(20ms));
  EXPECT_FALSE(sending.done());
  EXPECT_LE(calls(Call::sendmsg) - before, 2);
  for (int i = 0; i < filled; ++i)
    EXPECT_EQ(take(server), "f");
  EXPECT_EQ(take(server), "late");
  EXPECT_TRUE(sending.join());
}

NET_TEST(UnixDatagram, AnyEndOfTheWaitForRoom) {
  SocketDir dir;
  auto server = UnixDatagram::bind(dir.address("s")).value();
  auto sender = UnixDatagram::open().value();
  fill(sender, dir.address("s"));
  const auto send = [&] { return sender.send_to(net::bytes("x"), dir.address("s")); };
  EXPECT_EQ(sender.send_to(net::bytes("x"), dir.address("s"), Deadline::after(2ms)).error(),
            Errc::timed_out);
  auto cancelled = spawn(send);
  until_parked(cancelled.handle(), WaitReason::select);
  cancelled.cancel();
  EXPECT_EQ(cancelled.join().error(), Errc::cancelled);
  // The receiver goes.
  auto refused = spawn(send);
  until_parked(refused.handle(), WaitReason::select);
  server.close();
  const auto error = refused.join().error();
  EXPECT_TRUE(error == errno_code(ENOENT) || error == errno_code(ECONNREFUSED)) << error.message();
  // The sender's socket is closed.
  auto next = UnixDatagram::bind(dir.address("s")).value();
  fill(sender, dir.address("s"));
  auto closed = spawn(send);
  until_parked(closed.handle(), WaitReason::select);
  sender.close();
  EXPECT_EQ(closed.join().error(), Errc::closed);
}

NET_TEST(UnixDatagram, AThreadWaitsForRoomToo) {
  SocketDir dir;
  auto server = UnixDatagram::bind(dir.address("s")).value();
  auto sender = UnixDatagram::open().value();
  const int filled = fill(sender, dir.address("s"));
  ForeignThreads threads;
  std::atomic<int> sent{0};
  threads.start([&] {
    EXPECT_EQ(sender.send_to(net::bytes("t"), dir.address("s"), Deadline::after(2ms)).error(),
              Errc::timed_out);
    ++sent;
    EXPECT_TRUE(sender.send_to(net::bytes("late"), dir.address("s")));
    ++sent;
  });
  yield_until([&] { return sent == 1; });
  for (int i = 0; i < filled; ++i)
    EXPECT_EQ(take(server), "f");
  EXPECT_EQ(take(server), "late");
  threads.join();
  EXPECT_EQ(sent, 2);
}

// Everything that was sent arrives once, and in order, over a queue of eleven.
NET_TEST(UnixDatagram, NothingIsLostUnderPressure) {
  SocketDir dir;
  auto server = UnixDatagram::bind(dir.address("s")).value();
  constexpr int kSenders = 4, kEach = 200;
  std::vector<JoinHandle<void>> senders;
  for (int id = 0; id < kSenders; ++id)
    senders.push_back(spawn([&, id] {
      auto socket = UnixDatagram::open().value();
      const bool connected = id % 2 == 0;
      if (connected) {
        ASSERT_TRUE(socket.connect(dir.address("s")));
      }
      for (int i = 0; i < kEach; ++i) {
        const std::string text = std::to_string(id) + ' ' + std::to_string(i);
        const auto sent = connected ? socket.send(net::bytes(text))
                                    : socket.send_to(net::bytes(text), dir.address("s"));
        ASSERT_TRUE(sent) << sent.error().message();
      }
    }));
  std::array<int, kSenders> next{};
  for (int i = 0; i < kSenders * kEach; ++i) {
    const std::string text = take(server);
    int& expected = next[static_cast<std::size_t>(text[0] - '0')];
    ASSERT_EQ(text.substr(2), std::to_string(expected++));
  }
  for (auto& sender : senders)
    EXPECT_TRUE(sender.join());
}

// ---------------------------------------------------------------- descriptors

NET_TEST(UnixDatagram, CarriesDescriptorsX02) {
  SocketDir dir;
  auto server = UnixDatagram::bind(dir.address("s")).value();
  auto client = UnixDatagram::open().value();
  const std::vector<int> many(16, server.fd().number());
  std::string text;
  const std::size_t before = open_descriptors();
  for (const std::size_t expected : {1u, 16u, 0u}) {
    EXPECT_TRUE(client.send_fds_to({}, many, dir.address("s")));  // even with no byte
    const auto message = receive(server, text, {}, expected).value();
    EXPECT_EQ(message.bytes, 0u);
    EXPECT_EQ(message.fds.size(), expected);
    EXPECT_EQ(message.fds_lost, expected != 16u);
    for (const auto& fd : message.fds)
      EXPECT_TRUE(is_cloexec(fd.number()));
    EXPECT_EQ(open_descriptors(), before + expected);
  }
  auto [one, two] = UnixDatagram::pair().value();
  EXPECT_TRUE(one.send_fds(net::bytes("x"), {many.data(), 1}));
  const auto message = receive(two, text, {}, 1).value();
  ASSERT_EQ(message.fds.size(), 1u);
  EXPECT_TRUE(same_file(message.fds[0].number(), many[0]));
  EXPECT_EQ(two.peer_credentials().value().pid, ::getpid());
  const std::vector<int> more(net::kMostFds + 1, many[0]);
  EXPECT_EQ(one.send_fds({}, more).error(), UnixErrc::too_many_fds);
}

NET_TEST(UnixDatagram, Adopts) {
  SocketDir dir;
  const int fd = plain_bind(dir.address("s"), SOCK_DGRAM);
  auto socket = UnixDatagram::adopt(fd).value();
  auto client = UnixDatagram::open().value();
  EXPECT_TRUE(client.send_to(net::bytes("x"), dir.address("s")));
  EXPECT_EQ(take(socket), "x");
  socket.close();
  EXPECT_EQ(dir.names(), Names{"s"});
  const int stream = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(UnixDatagram::adopt(stream).error(), errno_code(EPROTOTYPE));
  ::close(stream);
}

NET_TEST(UnixDatagram, SurvivesFailingCalls) {
  SocketDir dir;
  auto server = UnixDatagram::bind(dir.address("s")).value();
  const auto once = [&]() -> Result<void> {
    RUNLOOM_TRY(auto client, UnixDatagram::open());
    if (auto sent = client.send_to(net::bytes("x"), dir.address("s")); !sent) return sent;
    std::string text;
    const auto message = receive(server, text, Deadline::after(5s));
    return message ? Result<void>() : Unexpected{message.error()};
  };
  ASSERT_TRUE(once());
  const std::size_t before = open_descriptors();
  for (const Call call : {Call::socket, Call::sendmsg, Call::recvmsg})
    for (const int err :
         {ENOMEM, ENOBUFS, EMFILE, ECONNREFUSED, ENOTCONN, EMSGSIZE, EACCES, EBADF, EINTR}) {
      if (err == EINTR && call == Call::socket) continue;
      {
        const Fault fault(call, err);
        const auto done = once();
        EXPECT_EQ(fault.failed(), 1);
        if (err == EINTR) {
          EXPECT_TRUE(done);
        }
        if (err != EINTR) {
          EXPECT_EQ(done.error(), errno_code(err));
        }
      }
      std::string text;
      while (receive(server, text, Deadline::now())) {
      }
      EXPECT_EQ(open_descriptors(), before);
    }
  // The socket that waits for room can't be had.
  auto sender = UnixDatagram::open().value();
  fill(sender, dir.address("s"));
  for (const int err : {EMFILE, ENFILE, ENOMEM}) {
    const Fault fault(Call::socket, err);
    EXPECT_EQ(sender.send_to(net::bytes("x"), dir.address("s")).error(), errno_code(err));
  }
  // An EAGAIN that is no full queue: it is tried again.
  take(server);
  const Fault fault(Call::sendmsg, EAGAIN);
  EXPECT_TRUE(sender.send_to(net::bytes("x"), dir.address("s")));
  EXPECT_EQ(fault.failed(), 1);
  EXPECT_EQ(UnixDatagram::bind(dir.address("no/such")).error(), errno_code(ENOENT));
}

}  // namespace
}  // namespace runloom::test
