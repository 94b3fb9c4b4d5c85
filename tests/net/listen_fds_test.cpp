#include "runloom/net/listen_fds.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

#include "runloom/net/tcp_listener.hpp"
#include "runloom/net/unix_datagram.hpp"
#include "runloom/net/unix_listener.hpp"
#include "support/child.hpp"
#include "support/net_test.hpp"
#include "support/unix_test.hpp"

namespace runloom::test {
namespace {

using net::listen_fds;

// In a child process: what a service manager does before it starts the program. `fds` become 3,
// 4, ...
void activate(const std::vector<int>& fds, const char* names, const char* count = nullptr) {
  const int first_free = 200;
  for (std::size_t i = 0; i < fds.size(); ++i)
    ::dup2(fds[i], first_free + static_cast<int>(i));
  for (std::size_t i = 0; i < fds.size(); ++i)
    ::dup2(first_free + static_cast<int>(i), 3 + static_cast<int>(i));
  ::setenv("LISTEN_PID", std::to_string(::getpid()).c_str(), 1);
  ::setenv("LISTEN_FDS", count ? count : std::to_string(fds.size()).c_str(), 1);
  if (names) ::setenv("LISTEN_FDNAMES", names, 1);
}

#define CHECK_IN_CHILD(condition)                                        \
  if (!(condition)) {                                                    \
    std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
    return 1;                                                            \
  }

TEST(ListenFds, GivesWhatTheManagerPassed) {
  SocketDir dir;
  const int stream = plain_bind(dir.address("stream"));
  const int datagram = plain_bind(dir.address("datagram"), SOCK_DGRAM);
  const int tcp = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(::listen(tcp, 8), 0);
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  const auto end = run_child([&] {
    activate({stream, tcp, datagram, null}, "web:admin");
    auto fds = listen_fds(false).value();
    CHECK_IN_CHILD(fds.size() == 4);
    for (std::size_t i = 0; i < fds.size(); ++i) {
      CHECK_IN_CHILD(fds[i].fd.number() == 3 + static_cast<int>(i));
      CHECK_IN_CHILD(is_cloexec(fds[i].fd.number()));
    }
    CHECK_IN_CHILD(fds[0].name == "web" && fds[1].name == "admin" && fds[2].name == "unknown");
    CHECK_IN_CHILD(fds[0].family == AF_UNIX && fds[0].type == SOCK_STREAM && fds[0].listening);
    CHECK_IN_CHILD(fds[1].family == AF_INET && fds[1].type == SOCK_STREAM && fds[1].listening);
    CHECK_IN_CHILD(fds[2].family == AF_UNIX && fds[2].type == SOCK_DGRAM && !fds[2].listening);
    CHECK_IN_CHILD(fds[3].family == AF_UNSPEC && fds[3].type == 0 && !fds[3].listening);
    CHECK_IN_CHILD(std::getenv("LISTEN_FDS") != nullptr);

    // Each is used as what it is.
    auto server = net::UnixListener::adopt(fds[0].fd.number());
    CHECK_IN_CHILD(server);
    static_cast<void>(fds[0].fd.release());
    CHECK_IN_CHILD(server->local_address().value() == dir.address("stream"));
    CHECK_IN_CHILD(net::UnixStream::connect(dir.address("stream")));
    CHECK_IN_CHILD(server->accept());
    CHECK_IN_CHILD(!net::UnixListener::adopt(fds[1].fd.number()));
    auto web = net::TcpListener::adopt(fds[1].fd.number());
    CHECK_IN_CHILD(web);
    static_cast<void>(fds[1].fd.release());
    auto messages = net::UnixDatagram::adopt(fds[2].fd.number());
    CHECK_IN_CHILD(messages);
    static_cast<void>(fds[2].fd.release());
    return 0;
  });
  EXPECT_EQ(end.code, 0) << end.out;
  for (const int fd : {stream, datagram, tcp, null})
    ::close(fd);
}

TEST(ListenFds, EachIsGivenOutOnce) {
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  const auto end = run_child([&] {
    activate({null}, "a");
    CHECK_IN_CHILD(listen_fds().value().size() == 1);
    CHECK_IN_CHILD(!std::getenv("LISTEN_PID") && !std::getenv("LISTEN_FDS") &&
                   !std::getenv("LISTEN_FDNAMES"));
    CHECK_IN_CHILD(listen_fds().value().empty());
    return 0;
  });
  EXPECT_EQ(end.code, 0) << end.out;
  ::close(null);
}

TEST(ListenFds, VariablesOfAParentAreNotOurs) {
  const auto end = run_child([] {
    CHECK_IN_CHILD(listen_fds().value().empty());  // none at all
    activate({}, nullptr, "1");
    ::setenv("LISTEN_PID", std::to_string(::getppid()).c_str(), 1);
    CHECK_IN_CHILD(listen_fds().value().empty());
    ::setenv("LISTEN_PID", std::to_string(::getpid()).c_str(), 1);
    CHECK_IN_CHILD(listen_fds().value().empty());  // LISTEN_FDS has gone with the first call
    return 0;
  });
  EXPECT_EQ(end.code, 0) << end.out;
}

TEST(ListenFds, RefusesNonsense) {
  const auto end = run_child([] {
    for (const char* count : {"", "x", "-1", "1x", " 1", "99999999999", "500"}) {
      activate({}, nullptr, count);
      CHECK_IN_CHILD(listen_fds().error() == errno_code(EINVAL));
    }
    for (const char* pid : {"", "0", "-1", "x"}) {
      activate({}, nullptr, "0");
      ::setenv("LISTEN_PID", pid, 1);
      CHECK_IN_CHILD(listen_fds().error() == errno_code(EINVAL));
    }
    activate({}, nullptr, "0");
    CHECK_IN_CHILD(listen_fds().value().empty());
    return 0;
  });
  EXPECT_EQ(end.code, 0) << end.out;
}

}  // namespace
}  // namespace runloom::test
