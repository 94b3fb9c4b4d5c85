#include "runloom/net/unix_socket.hpp"

#include <fcntl.h>
#include <unistd.h>

#include "support/net_test.hpp"
#include "support/syscall_faults.hpp"
#include "support/unix_test.hpp"

namespace runloom::test {
namespace {

using namespace std::chrono_literals;
using net::Fd;
using net::OwnedFd;
using net::UnixErrc;

Fd open_fd(int type) {
  return Fd::adopt(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0)).value();
}

TEST(UnixSocket, ErrorsSayWhatTheyMean) {
  for (const auto code : {UnixErrc::too_many_fds, UnixErrc::no_byte}) {
    const std::error_code error = code;
    EXPECT_EQ(error, std::errc::invalid_argument);
    EXPECT_EQ(error.category().name(), std::string("runloom.unix"));
    EXPECT_FALSE(error.message().empty());
  }
}

TEST(UnixSocket, AnOwnedDescriptorClosesItself) {
  const std::size_t before = open_descriptors();
  {
    OwnedFd one(::dup(0));
    OwnedFd two = std::move(one);
    EXPECT_FALSE(one);  // NOLINT(bugprone-use-after-move): that is what a move leaves
    one = OwnedFd(::dup(0));
    one = std::move(two);
    EXPECT_EQ(open_descriptors(), before + 1);
    const int number = one.release();
    EXPECT_FALSE(one);
    one.reset(number);
  }
  EXPECT_EQ(open_descriptors(), before);
}

// Also of sockets that keep messages apart and have connections.
NET_TEST(UnixSocket, ConnectsAndAcceptsPacketSockets) {
  SocketDir dir;
  const Fd listener = Fd::adopt(plain_bind(dir.address("s"), SOCK_SEQPACKET, 0)).value();
  const auto address = dir.address("s");
  const Fd first = open_fd(SOCK_SEQPACKET), second = open_fd(SOCK_SEQPACKET);
  EXPECT_TRUE(net::connect_unix(first, address.data(), address.size()));
  auto waiting = spawn([&] { return net::connect_unix(second, address.data(), address.size()); });
  until_parked(waiting.handle(), WaitReason::sleep);
  const OwnedFd accepted(net::accept_unix(listener, nullptr, nullptr).value());
  EXPECT_TRUE(waiting.join());
  EXPECT_TRUE(is_cloexec(accepted.number()));
  EXPECT_NE(::fcntl(accepted.number(), F_GETFL) & O_NONBLOCK, 0);
  EXPECT_EQ(net::peer_credentials(first).value().pid, ::getpid());
}

NET_TEST(UnixSocket, AConnectThatWaitsEndsWithItsSocket) {
  SocketDir dir;
  const OwnedFd listener(plain_bind(dir.address("s"), SOCK_STREAM, 0));
  const auto address = dir.address("s");
  Fd first = open_fd(SOCK_STREAM), second = open_fd(SOCK_STREAM);
  ASSERT_TRUE(net::connect_unix(first, address.data(), address.size()));
  auto waiting = spawn([&] { return net::connect_unix(second, address.data(), address.size()); });
  until_parked(waiting.handle(), WaitReason::sleep);
  second.close();
  EXPECT_EQ(waiting.join().error(), Errc::closed);
}

NET_TEST(UnixSocket, SendmsgToHonoursItsFlags) {
  SocketDir dir;
  const OwnedFd receiver(plain_bind(dir.address("s"), SOCK_DGRAM));
  const Fd sender = open_fd(SOCK_DGRAM);
  const auto address = dir.address("s");
  char byte = 'x';
  iovec memory{&byte, 1};
  msghdr message{};
  message.msg_name = const_cast<sockaddr*>(address.data());
  message.msg_namelen = address.size();
  message.msg_iov = &memory;
  message.msg_iovlen = 1;
  Result<std::size_t> sent = std::size_t{0};
  int count = 0;
  while ((sent = net::sendmsg_to(sender, message, MSG_DONTWAIT)))
    ++count;
  EXPECT_EQ(sent.error(), errno_code(EAGAIN));
  EXPECT_GT(count, 0);
}

// Our own buffer is full, not the receiver's queue: few big messages.
NET_TEST(UnixSocket, WaitsForItsOwnBuffer) {
  SocketDir dir;
  const OwnedFd receiver(plain_bind(dir.address("s"), SOCK_DGRAM));
  const Fd sender = open_fd(SOCK_DGRAM);
  const int size = 8192;
  ASSERT_EQ(::setsockopt(sender.number(), SOL_SOCKET, SO_SNDBUF, &size, sizeof size), 0);
  const auto address = dir.address("s");
  const std::string text = pattern(6000);
  const auto send = [&](Deadline deadline) {
    return net::send_message(sender, net::bytes(text), {}, &address, deadline);
  };
  int sent = 0;
  while (send(Deadline::now()))
    ++sent;
  ASSERT_LT(sent, 8);  // the queue would take more
  EXPECT_EQ(send(Deadline::after(2ms)).error(), Errc::timed_out);
  const long before = calls(Call::sendmsg);
  auto waiting = spawn([&] { return send({}); });
  until_parked(waiting.handle(), WaitReason::io_poll);
  std::string got(8000, '\0');
  for (int i = 0; i < sent; ++i)
    ASSERT_EQ(::recv(receiver.number(), got.data(), got.size(), 0), 6000);
  EXPECT_EQ(waiting.join().value(), text.size());
  EXPECT_LE(calls(Call::sendmsg) - before, 2 + sent);
}

// A receiver that has connected to the sender has no limit for it: what looks like a full queue is
// the sender's own buffer, which may have room again when it is looked at.
NET_TEST(UnixSocket, AnswersToAConnectedReceiver) {
  SocketDir dir;
  const OwnedFd server(plain_bind(dir.address("server"), SOCK_DGRAM));
  const Fd client = Fd::adopt(plain_bind(dir.address("client"), SOCK_DGRAM)).value();
  const auto from = dir.address("client"), to = dir.address("server");
  ASSERT_EQ(::connect(server.number(), from.data(), from.size()), 0);
  const Fault fault(Call::sendmsg, EAGAIN);
  EXPECT_EQ(net::send_message(client, net::bytes("x"), {}, &to, {}).value(), 1u);
  EXPECT_EQ(fault.failed(), 1);
}

}  // namespace
}  // namespace runloom::test
