#include "runloom/net/unix_listener.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>

#include "runloom/net/tcp_listener.hpp"
#include "support/child.hpp"
#include "support/net_test.hpp"
#include "support/syscall_faults.hpp"
#include "support/unix_test.hpp"

namespace runloom::test {
namespace {

using namespace std::chrono_literals;
using net::Address;
using net::TcpListener;
using net::UnixListener;
using net::UnixStream;
using Names = std::vector<std::string>;

NET_TEST(UnixListener, AcceptsInOrderAndTimesOut) {
  SocketDir dir;
  auto listener = UnixListener::listen(dir.address("s")).value();
  EXPECT_EQ(listener.local_address().value(), dir.address("s"));
  EXPECT_EQ(listener.accept(Deadline::now()).error(), Errc::timed_out);
  EXPECT_EQ(listener.accept(Deadline::after(3ms)).error(), Errc::timed_out);
  std::vector<JoinHandle<Result<UnixStream>>> acceptors;
  for (int i = 0; i < 3; ++i) {
    acceptors.push_back(spawn([&] { return listener.accept(); }));
    until_parked(acceptors.back().handle(), WaitReason::io_read);
  }
  for (auto& acceptor : acceptors) {
    EXPECT_FALSE(acceptor.done());
    auto client = UnixStream::connect(dir.address("s")).value();
    EXPECT_TRUE(acceptor.join());
  }
}

NET_TEST(UnixListener, CloseAndCancelEndAnAccept) {
  SocketDir dir;
  auto listener = UnixListener::listen(dir.address("s")).value();
  auto cancelled = spawn([&] { return listener.accept(); });
  until_parked(cancelled.handle(), WaitReason::io_read);
  cancelled.cancel();
  EXPECT_EQ(cancelled.join().error(), Errc::cancelled);
  auto closed = spawn([&] { return listener.accept(); });
  until_parked(closed.handle(), WaitReason::io_read);
  listener.close();
  EXPECT_EQ(closed.join().error(), Errc::closed);
  EXPECT_EQ(listener.accept().error(), Errc::closed);
  EXPECT_EQ(dir.names(), Names{});
  listener.close();
  auto shut = UnixListener::listen(dir.address("s")).value();
  auto waiting = spawn([&] { return shut.accept(); });
  until_parked(waiting.handle(), WaitReason::io_read);
  ASSERT_TRUE(shut.shutdown());
  EXPECT_EQ(waiting.join().error(), errno_code(EINVAL));
  EXPECT_EQ(shut.accept().error(), errno_code(EINVAL));
  EXPECT_EQ(UnixListener::listen(dir.address("s")).error(), errno_code(EADDRINUSE));
}

NET_TEST(UnixListener, ASecondServerIsRefusedX04) {
  SocketDir dir;
  auto first = UnixListener::listen(dir.address("s")).value();
  EXPECT_EQ(UnixListener::listen(dir.address("s")).error(), errno_code(EADDRINUSE));
  // The first one is as it was: nobody waits in its queue, and clients still reach it.
  EXPECT_EQ(first.accept(Deadline::now()).error(), Errc::timed_out);
  auto client = UnixStream::connect(dir.address("s")).value();
  EXPECT_TRUE(first.accept());
  first.close();
  auto next = UnixListener::listen(dir.address("s"));
  EXPECT_TRUE(next);
  // Assigning over one removes its file, not the new one's.
  *next = UnixListener::listen(dir.address("t")).value();
  EXPECT_EQ(dir.names(), Names{"t"});
}

// A server that was killed has left its file; the next one starts over it.
NET_TEST(UnixListener, StartsAfterACrashX04) {
  SocketDir dir;
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(run_child([&] {
                if (plain_bind(dir.address("s")) < 0) return 1;
                ::kill(::getpid(), SIGKILL);
                return 2;
              }).signal,
              SIGKILL);
    EXPECT_EQ(UnixStream::connect(dir.address("s")).error(), errno_code(ECONNREFUSED));
    auto listener = UnixListener::listen(dir.address("s"));
    ASSERT_TRUE(listener) << listener.error().message();
    EXPECT_TRUE(UnixStream::connect(dir.address("s")));
    EXPECT_EQ(dir.names(), Names{"s"});
  }
}

NET_TEST(UnixListener, OptionsReachTheKernel) {
  SocketDir dir;
  {
    auto listener =
        UnixListener::listen(dir.address("s"), {.backlog = 0, .bind = {.mode = 0600}}).value();
    struct stat status;
    ASSERT_EQ(::stat(dir.path("s").c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 0600u);
    auto first = UnixStream::connect(dir.address("s")).value();
    EXPECT_EQ(UnixStream::connect(dir.address("s"), Deadline::now()).error(), Errc::timed_out);
  }
  EXPECT_EQ(dir.names(), Names{});
  UnixListener::listen(dir.address("s"), {.remove_file = false}).value().close();
  EXPECT_EQ(dir.names(), Names{"s"});
  auto [fd, path] = UnixListener::listen(dir.address("t")).value().take();
  EXPECT_TRUE(fd);
  EXPECT_EQ(dir.names(), (Names{"s", "t"}));
}

NET_TEST(UnixListener, AdoptsWhatListens) {
  SocketDir dir;
  const int fd = plain_bind(dir.address("s"));
  {
    auto listener = UnixListener::adopt(fd).value();
    auto client = UnixStream::connect(dir.address("s")).value();
    EXPECT_TRUE(listener.accept());
  }
  EXPECT_EQ(dir.names(), Names{"s"});  // its maker's
  UnixPair pair;
  const int plain = pair.one.detach().value();
  EXPECT_EQ(UnixListener::adopt(plain).error(), errno_code(EINVAL));
  ::close(plain);
  const int tcp = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(UnixListener::adopt(tcp).error(), errno_code(EPROTOTYPE));
  EXPECT_EQ(TcpListener::adopt(tcp).error(), errno_code(EINVAL));
  ASSERT_EQ(::listen(tcp, 8), 0);
  auto listener = TcpListener::adopt(tcp).value();
  auto client = net::TcpStream::connect(listener.local_address().value()).value();
  EXPECT_TRUE(listener.accept());
  const int datagram = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(UnixListener::adopt(datagram).error(), errno_code(EPROTOTYPE));
  EXPECT_EQ(TcpListener::adopt(datagram).error(), errno_code(EPROTOTYPE));
  ::close(datagram);
}

NET_TEST(UnixListener, WaitsAShortageOut) {
  SocketDir dir;
  auto listener = UnixListener::listen(dir.address("s")).value();
  const int client = plain_connect(dir.address("s"));
  {
    const Fault fault(Call::accept4, EMFILE);
    EXPECT_EQ(listener.accept().error(), errno_code(EMFILE));
  }
  const Fault fault(Call::accept4, EMFILE, 1, 3);
  EXPECT_TRUE(listener.accept_retrying());
  EXPECT_EQ(fault.failed(), 3);
  ::close(client);
}

NET_TEST(UnixListener, ListenFails) {
  SocketDir dir;
  EXPECT_EQ(UnixListener::listen(Address::loopback_ipv4()).error(), errno_code(EAFNOSUPPORT));
  EXPECT_EQ(UnixListener::listen(dir.address("no/such")).error(), errno_code(ENOENT));
  for (const Call call : {Call::socket, Call::bind, Call::listen})
    for (const int err : {EMFILE, ENFILE, ENOMEM, EACCES, EADDRINUSE, EROFS}) {
      const std::size_t before = open_descriptors();
      {
        const Fault fault(call, err);
        const auto listener = UnixListener::listen(dir.address("s"));
        // A bind that was refused for no reason is tried again.
        if (!(call == Call::bind && err == EADDRINUSE)) {
          EXPECT_EQ(listener.error(), errno_code(err));
        }
      }
      EXPECT_EQ(open_descriptors(), before);
      EXPECT_EQ(dir.names(), Names{});
    }
}

}  // namespace
}  // namespace runloom::test
