// Rows K01 and K02 for what net adds: pollers, registrations and operations in flight.
#include <dirent.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <set>

#include "support/child.hpp"
#include "support/net_test.hpp"

namespace runloom::test {
namespace {

using namespace std::chrono_literals;
using net::bytes;
using net::TcpStream;

#ifdef RUNLOOM_TEST_TSAN
constexpr bool kTsan = true;  // refuses to start threads after a fork of several
#else
constexpr bool kTsan = false;
#endif

// The registrations of all pollers that this process has open.
std::multiset<std::string> registrations() {
  std::multiset<std::string> all;
  DIR* dir = ::opendir("/proc/self/fd");
  while (const dirent* entry = ::readdir(dir)) {
    char target[64] = {};
    const std::string fd = entry->d_name;
    if (::readlink(("/proc/self/fd/" + fd).c_str(), target, sizeof target - 1) < 0 ||
        std::string(target) != "anon_inode:[eventpoll]")
      continue;
    std::ifstream info("/proc/self/fdinfo/" + fd);
    for (std::string line; std::getline(info, line);)
      if (line.starts_with("tfd:")) all.insert(line);  // "tfd: <number> events: ..."
  }
  ::closedir(dir);
  return all;
}

// Runs `child` in a forked child; its value, or -1.
template <class Child>
int fork_and_run(Child&& child) {
  const int pid = ::fork();
  if (pid == 0) ::_exit(child());
  const ChildEnd end = wait_child(pid);
  return end.exited ? end.code : -1;
}

// Both ends over a connection, or which step failed.
int exchange(TcpStream& one, TcpStream& two) {
  auto reader = spawn([&] { return read_text(two); });
  this_fiber::yield();
  if (!one.write_all(bytes("x"))) return 101;
  const auto got = reader.join();
  return got && *got == "x" ? 0 : 102;
}

// The child makes connections of its own, on a poller of its own; the parent's poller keeps every
// registration it had.
NET_TEST(NetFork, ChildHasAPollerOfItsOwnK02) {
  if (kTsan) GTEST_SKIP();
  TcpPair pair;
  auto reader = spawn([&] { return read_text(pair.client); });
  until_parked(reader.handle(), WaitReason::io_read);
  const auto before = registrations();
  EXPECT_EQ(fork_and_run([&] {
              Listening listening;
              auto client = TcpStream::connect(listening.address);
              auto server = listening.listener.accept();
              if (!client || !server) return 1;
              if (const int failed = exchange(*client, *server)) return failed;
              if (!this_fiber::sleep_for(2ms)) return 2;
              // The parent's poller is closed, and nothing of the parent's is registered here.
              for (const std::string& line : registrations())
                if (std::stoi(line.substr(4)) == pair.client.fd().number()) return 3;
              return 0;
            }),
            0);
  EXPECT_EQ(registrations(), before);
  ASSERT_TRUE(pair.server.write_all(bytes("parent")));
  EXPECT_EQ(reader.join().value(), "parent");
}

// What the parent's fibers had in flight is forgotten in the child: its streams and listeners are
// free to use there.
NET_TEST(NetFork, ChildUsesInheritedStreamsAndListenersK02) {
  if (kTsan) GTEST_SKIP();
  TcpPair pair;
  Listening listening;
  // On this hub, which does not poll while it waits for the child: else they might take what the
  // child is to get.
  const SpawnOptions here{.hub = Hub::current()->index()};
  auto reader = spawn([&] { return read_text(pair.client); }, here);
  auto queued = spawn([&] { return read_text(pair.client); }, here);
  auto acceptor = spawn([&] { return listening.listener.accept(); }, here);
  auto watcher = spawn([&] { return pair.client.wait_readable(); }, here);
  until_parked(reader.handle(), WaitReason::io_read);
  until_parked(queued.handle(), WaitReason::io_read);
  until_parked(acceptor.handle(), WaitReason::io_accept);
  until_parked(watcher.handle(), WaitReason::io_poll);
  EXPECT_EQ(fork_and_run([&] {
              if (const int failed = exchange(pair.client, pair.server)) return failed;
              if (const int failed = exchange(pair.server, pair.client)) return failed;
              auto mine = spawn([&] { return listening.listener.accept(); });
              this_fiber::yield();
              auto client = TcpStream::connect(listening.address);
              auto server = mine.join();
              if (!client || !server) return 1;
              if (const int failed = exchange(*client, *server)) return failed;
              pair.client.close();
              listening.listener.close();
              return pair.client ? 2 : 0;
            }),
            0);
  // The parent's go on.
  ASSERT_TRUE(pair.server.write_all(bytes("p")));
  EXPECT_EQ(reader.join().value(), "p");
  EXPECT_TRUE(watcher.join());
  ASSERT_TRUE(pair.server.write_all(bytes("q")));
  EXPECT_EQ(queued.join().value(), "q");
  auto client = TcpStream::connect(listening.address).value();
  EXPECT_TRUE(acceptor.join());
}

// A wait on a descriptor that is not ours starts afresh, too.
NET_TEST(NetFork, ChildWaitsOnForeignDescriptorsK02) {
  if (kTsan) GTEST_SKIP();
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  auto waiter = spawn([&] { return net::wait_fd(pair[0], net::kRead); },
                      {.hub = Hub::current()->index()});  // which does not poll meanwhile
  until_parked(waiter.handle(), WaitReason::io_poll);
  EXPECT_EQ(fork_and_run([&] {
              auto mine = spawn([&] { return net::wait_fd(pair[0], net::kRead); });
              this_fiber::yield();
              if (net::wait_fd(pair[0], net::kWrite).value_or(0) != net::kWrite) return 1;
              if (::write(pair[1], "x", 1) != 1) return 2;
              if (mine.join().value_or(0) != net::kRead) return 3;
              char got;
              return ::read(pair[0], &got, 1) == 1 ? 0 : 4;
            }),
            0);
  EXPECT_FALSE(waiter.done());
  ASSERT_EQ(::write(pair[1], "x", 1), 1);
  EXPECT_EQ(waiter.join().value(), net::kRead);
  ::close(pair[0]);
  ::close(pair[1]);
}

// The parent closes a stream whose file lives on in the child: no event of it comes any more.
NET_TEST(NetFork, ParentClosesWhatTheChildKeepsT12) {
  if (kTsan) GTEST_SKIP();
  TcpPair pair;
  EXPECT_EQ(read_text(pair.client, 1, Deadline::after(1ms)).error(), Errc::timed_out);
  int go[2];
  ASSERT_EQ(::pipe(go), 0);
  const int pid = ::fork();
  if (pid == 0) {
    char byte;
    ::close(go[1]);
    ::_exit(::read(go[0], &byte, 1) == 0 ? 0 : 1);
  }
  ::close(go[0]);
  pair.client.close();
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(pair.server.write_all(bytes("x")));
    this_fiber::yield();
  }
  const std::uint64_t before = Scheduler::current()->stats().polls;
  ASSERT_TRUE(this_fiber::sleep_for(50ms));
  EXPECT_LT(Scheduler::current()->stats().polls - before, 20u);
  ::close(go[1]);
  EXPECT_EQ(wait_child(pid).code, 0);
}

// Fork outside of a run, with OS threads' waits in the past.
TEST(NetFork, ChildOfAnOsThread) {
  if (kTsan) GTEST_SKIP();
  HangGuard guard;
  TcpPair pair;
  EXPECT_EQ(read_text(pair.client, 1, Deadline::after(1ms)).error(), Errc::timed_out);
  EXPECT_EQ(
      fork_and_run([&] {
        if (!pair.server.write_all(bytes("x"))) return 1;
        if (read_text(pair.client).value_or("") != "x") return 2;
        Scheduler scheduler(fiber_test_options(1));
        return scheduler.run([&] { return exchange(pair.client, pair.server); }).value_or(103);
      }),
      0);
  ASSERT_TRUE(pair.server.write_all(bytes("y")));
  EXPECT_EQ(read_text(pair.client).value(), "y");
}

}  // namespace
}  // namespace runloom::test
