#include "runloom/net/bound_path.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>

#include "runloom/net/owned_fd.hpp"
#include "support/child.hpp"
#include "support/net_test.hpp"
#include "support/race.hpp"
#include "support/syscall_faults.hpp"
#include "support/unix_test.hpp"

namespace runloom::test {
namespace {

using namespace std::chrono_literals;
using net::Address;
using net::BoundPath;
using net::OwnedFd;

OwnedFd fresh(int type = SOCK_STREAM) {
  OwnedFd fd(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  EXPECT_TRUE(fd);
  return fd;
}

struct stat stat_of(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(::lstat(path.c_str(), &status), 0) << path;
  return status;
}
bool exists(const std::string& path) {
  struct stat status;
  return ::lstat(path.c_str(), &status) == 0;
}

class Umask {
 public:
  explicit Umask(mode_t mask) : before_(::umask(mask)) {}
  ~Umask() { ::umask(before_); }

 private:
  mode_t before_;
};

using Names = std::vector<std::string>;

TEST(BoundPath, MakesAndRemovesItsFile) {
  SocketDir dir;
  const OwnedFd fd = fresh();
  {
    auto path = BoundPath::bind(fd.number(), dir.address("s"));
    ASSERT_TRUE(path);
    EXPECT_TRUE(S_ISSOCK(stat_of(dir.path("s")).st_mode));
    EXPECT_EQ(dir.names(), Names{"s"});
    path->remove();
    EXPECT_EQ(dir.names(), Names{});
    path->remove();
  }
  const OwnedFd other = fresh();
  { auto path = BoundPath::bind(other.number(), dir.address("t")).value(); }
  EXPECT_EQ(dir.names(), Names{});
  const OwnedFd third = fresh();
  BoundPath::bind(third.number(), dir.address("kept")).value().forget();
  EXPECT_EQ(dir.names(), Names{"kept"});
}

TEST(BoundPath, TheModeIsSetBeforeAnybodyCanConnect) {
  SocketDir dir;
  const Umask wide(0);
  for (const mode_t mode : {0600u, 0660u, 0777u, 0u}) {
    const OwnedFd fd = fresh(SOCK_DGRAM);  // reachable as soon as it is bound
    const long changes = calls(Call::chmod);
    const auto path = BoundPath::bind(fd.number(), dir.address("s"), {.mode = mode}).value();
    EXPECT_EQ(stat_of(dir.path("s")).st_mode & 07777, mode);
    // bind(2) has made it so: nobody had to correct it.
    EXPECT_EQ(calls(Call::chmod), changes);
  }
  // The umask only takes away: what it took is given back.
  const Umask narrow(0077);
  const OwnedFd fd = fresh();
  const auto path = BoundPath::bind(fd.number(), dir.address("s"), {.mode = 0666}).value();
  EXPECT_EQ(stat_of(dir.path("s")).st_mode & 07777, 0666u);
  const OwnedFd other = fresh();
  const auto usual = BoundPath::bind(other.number(), dir.address("usual")).value();
  EXPECT_EQ(stat_of(dir.path("usual")).st_mode & 07777, 0700u);
}

TEST(BoundPath, ALiveSocketKeepsItsNameX04) {
  SocketDir dir;
  for (const int type : {SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET}) {
    const OwnedFd first = fresh(type);  // bound and not listening yet
    const auto path = BoundPath::bind(first.number(), dir.address("s")).value();
    const auto before = stat_of(dir.path("s"));
    for (const int other : {SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET}) {
      const OwnedFd second = fresh(other);
      EXPECT_EQ(BoundPath::bind(second.number(), dir.address("s")).error(), errno_code(EADDRINUSE));
    }
    EXPECT_EQ(stat_of(dir.path("s")).st_ino, before.st_ino);
    EXPECT_EQ(dir.names(), Names{"s"});
  }
}

// The first server sees nothing of the second one's question.
TEST(BoundPath, ALiveServerIsNotDisturbedX04) {
  SocketDir dir;
  const OwnedFd server(plain_bind(dir.address("s")));
  const OwnedFd second = fresh();
  EXPECT_EQ(BoundPath::bind(second.number(), dir.address("s")).error(), errno_code(EADDRINUSE));
  ::fcntl(server.number(), F_SETFL, O_NONBLOCK);
  EXPECT_EQ(::accept4(server.number(), nullptr, nullptr, SOCK_CLOEXEC), -1);
  EXPECT_EQ(errno, EAGAIN);
}

TEST(BoundPath, OnlyAStaleSocketIsReplacedX04) {
  SocketDir dir;
  for (const int type : {SOCK_STREAM, SOCK_DGRAM}) {
    ::close(plain_bind(dir.address("stale"), type));
    const OwnedFd strict = fresh();
    EXPECT_EQ(
        BoundPath::bind(strict.number(), dir.address("stale"), {.replace_stale = false}).error(),
        errno_code(EADDRINUSE));
    EXPECT_EQ(dir.names(), Names{"stale"});
    const OwnedFd fd = fresh();
    EXPECT_TRUE(BoundPath::bind(fd.number(), dir.address("stale")));
    EXPECT_EQ(dir.names(), Names{});  // no lock is left, and the temporary has removed its file
  }
  // Neither a file, nor a directory, nor a link, not even one to a stale socket.
  ::close(plain_bind(dir.address("stale")));
  ::close(::open(dir.path("file").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  ASSERT_EQ(::mkdir(dir.path("directory").c_str(), 0700), 0);
  ASSERT_EQ(::symlink("stale", dir.path("link").c_str()), 0);
  const auto before = dir.names();
  for (const char* name : {"file", "directory", "link"}) {
    const OwnedFd fd = fresh();
    EXPECT_EQ(BoundPath::bind(fd.number(), dir.address(name)).error(), errno_code(EADDRINUSE))
        << name;
  }
  EXPECT_EQ(dir.names(), before);
}

NET_TEST(BoundPath, WhoeverReplacesHoldsTheLockX04) {
  SocketDir dir;
  ::close(plain_bind(dir.address("s")));
  OwnedFd lock(::open(dir.path("s.runloom-lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(::flock(lock.number(), LOCK_EX), 0);
  const OwnedFd fd = fresh();
  EXPECT_EQ(BoundPath::bind(fd.number(), dir.address("s"), {}, Deadline::after(5ms)).error(),
            Errc::timed_out);
  auto second = spawn([&] { return BoundPath::bind(fd.number(), dir.address("s")); });
  until_parked(second.handle(), WaitReason::sleep);
  second.cancel();
  EXPECT_EQ(second.join().error(), Errc::cancelled);
  EXPECT_EQ(dir.names(), (Names{"s", "s.runloom-lock"}));
  // The holder has finished its work: its server lives, and the next one sees that.
  auto third = spawn([&] { return BoundPath::bind(fd.number(), dir.address("s")); });
  until_parked(third.handle(), WaitReason::sleep);
  ASSERT_EQ(::unlink(dir.path("s").c_str()), 0);
  const OwnedFd server(plain_bind(dir.address("s")));
  ASSERT_EQ(::unlink(dir.path("s.runloom-lock").c_str()), 0);
  lock.reset();
  EXPECT_EQ(third.join().error(), errno_code(EADDRINUSE));
  EXPECT_EQ(dir.names(), Names{"s"});
}

// Many processes' worth of servers start at once over a stale file: exactly one gets it.
TEST(BoundPathRace, OneOfManyGetsTheNameX04) {
  SocketDir dir;
  for (RaceBudget budget; !budget.spent();) {
    ::close(plain_bind(dir.address("s")));
    constexpr int kServers = 4;
    std::array<OwnedFd, kServers> sockets;
    std::array<Result<BoundPath>, kServers> results{fail_errno(0), fail_errno(0), fail_errno(0),
                                                    fail_errno(0)};
    std::atomic<int> ready{0};
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < kServers; ++i) {
      sockets[i] = fresh();
      threads.emplace_back([&, i] {
        for (++ready; ready < kServers;) {
        }
        results[i] = BoundPath::bind(sockets[i].number(), dir.address("s"));
      });
    }
    for (auto& thread : threads)
      thread.join();
    int winners = 0;
    for (const auto& result : results) {
      winners += result ? 1 : 0;
      if (!result) {
        ASSERT_EQ(result.error(), errno_code(EADDRINUSE));
      }
    }
    ASSERT_EQ(winners, 1);
    ASSERT_EQ(dir.names(), Names{"s"});
  }
}

TEST(BoundPath, RemovesOnlyWhatIsOurs) {
  SocketDir dir;
  const OwnedFd fd = fresh();
  auto path = BoundPath::bind(fd.number(), dir.address("s")).value();
  // Somebody who knows no lock has put a server of his own there.
  ASSERT_EQ(::unlink(dir.path("s").c_str()), 0);
  const OwnedFd other(plain_bind(dir.address("s")));
  path.remove();
  EXPECT_EQ(dir.names(), Names{"s"});
  const OwnedFd client(plain_connect(dir.address("s")));
  EXPECT_TRUE(client);
  // A file that came in its place is not ours either.
  const OwnedFd third = fresh();
  {
    auto replaced = BoundPath::bind(third.number(), dir.address("t")).value();
    ASSERT_EQ(::unlink(dir.path("t").c_str()), 0);
    ::close(::open(dir.path("t").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  }
  EXPECT_TRUE(exists(dir.path("t")));
}

TEST(BoundPath, AForkedChildLeavesTheFile) {
  SocketDir dir;
  const OwnedFd fd = fresh();
  auto path = BoundPath::bind(fd.number(), dir.address("s")).value();
  const auto end = run_child([&] {
    path.remove();
    return 0;
  });
  EXPECT_EQ(end.code, 0);
  EXPECT_TRUE(exists(dir.path("s")));
}

TEST(BoundPath, RelativePathsOutliveAChangeOfDirectory) {
  SocketDir dir;
  const auto end = run_child([&] {
    const OwnedFd fd = fresh();
    if (::chdir(dir.path(".").c_str()) != 0) return 1;
    auto path = BoundPath::bind(fd.number(), Address::from_unix_path("s").value()).value();
    if (!exists(dir.path("s")) || ::chdir("/") != 0) return 2;
    path.remove();
    return exists(dir.path("s")) ? 3 : 0;
  });
  EXPECT_EQ(end.code, 0) << end.out;
}

TEST(BoundPath, LongAndOddPaths) {
  SocketDir dir;
  const std::string room(107 - dir.path("").size(), 'x');
  for (const std::string& name : {room, std::string("a b\n\xff")}) {
    const OwnedFd fd = fresh();
    const auto path = BoundPath::bind(fd.number(), dir.address(name));
    ASSERT_TRUE(path) << path.error().message();
    EXPECT_EQ(dir.names(), Names{name});
  }
  EXPECT_EQ(Address::from_unix_path(dir.path(room + 'x')).error(), std::errc::filename_too_long);
  // A path of 108 bytes, which others may use, comes back whole.
  sockaddr_un raw{};
  raw.sun_family = AF_UNIX;
  const std::string full = dir.path(room + 'x');
  ASSERT_EQ(full.size(), sizeof raw.sun_path);
  std::memcpy(raw.sun_path, full.data(), full.size());
  const OwnedFd fd = fresh();
  ASSERT_EQ(::bind(fd.number(), reinterpret_cast<sockaddr*>(&raw), sizeof raw), 0);
  sockaddr_storage storage;
  socklen_t size = sizeof storage;
  ASSERT_EQ(::getsockname(fd.number(), reinterpret_cast<sockaddr*>(&storage), &size), 0);
  const auto name = Address::from_sockaddr(reinterpret_cast<sockaddr*>(&storage), size);
  ASSERT_TRUE(name);
  EXPECT_EQ(name->unix_name(), full);
}

TEST(BoundPath, FailsAsTheKernelDoes) {
  SocketDir dir;
  const OwnedFd fd = fresh();
  EXPECT_EQ(BoundPath::bind(fd.number(), dir.address("no/such")).error(), errno_code(ENOENT));
  EXPECT_EQ(BoundPath::bind(-1, dir.address("s")).error(), errno_code(EBADF));
  EXPECT_EQ(BoundPath::bind(fd.number(), Address::loopback_ipv4(1)).error(),
            errno_code(EAFNOSUPPORT));
  ASSERT_TRUE(BoundPath::bind(fd.number(), dir.address("s")));
  EXPECT_EQ(BoundPath::bind(fd.number(), dir.address("t")).error(), errno_code(EINVAL));
  EXPECT_EQ(dir.names(), Names{});
}

NET_TEST(BoundPath, SurvivesFailingCalls) {
  SocketDir dir;
  const Umask narrow(0077);
  for (const Call call : {Call::socket, Call::connect, Call::bind, Call::fchmod, Call::chmod,
                          Call::unlink, Call::flock})
    for (const int err : {EACCES, EPERM, ENOMEM, EMFILE, EROFS, EINTR, EWOULDBLOCK, EIO, ENOENT})
      for (const int at : {1, 2}) {
        ::close(plain_bind(dir.address("s")));
        const OwnedFd fd = fresh();
        const std::size_t before = open_descriptors();
        {
          const Fault fault(call, err, at);
          const auto path = BoundPath::bind(fd.number(), dir.address("s"), {.mode = 0666});
          if (path) {
            EXPECT_EQ(stat_of(dir.path("s")).st_mode & 0777, 0666u);
            EXPECT_TRUE(fault.failed() == 0 || call == Call::flock || call == Call::unlink ||
                        err == ENOENT)
                << static_cast<int>(call) << ' ' << err;
          }
        }
        EXPECT_EQ(open_descriptors(), before);
        ::unlink(dir.path("s").c_str());
        ::unlink(dir.path("s.runloom-lock").c_str());
      }
}

}  // namespace
}  // namespace runloom::test
