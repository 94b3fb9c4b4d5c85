#include "runloom/net/systemd_notify.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "runloom/net/server.hpp"
#include "runloom/net/unix_datagram.hpp"
#include "support/server.hpp"
#include "support/unix_test.hpp"

namespace runloom::net {
namespace {

using namespace std::chrono_literals;
using namespace std::string_literals;

// The variables of a service, for one test.
class Environment {
 public:
  explicit Environment(const std::string& socket, const char* watchdog = nullptr,
                       const std::string& pid = {}) {
    ::setenv("NOTIFY_SOCKET", socket.c_str(), 1);
    if (watchdog) ::setenv("WATCHDOG_USEC", watchdog, 1);
    if (!pid.empty()) ::setenv("WATCHDOG_PID", pid.c_str(), 1);
  }
  ~Environment() {
    for (const char* name : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})
      ::unsetenv(name);
  }
};

// A service manager: what it was told, one datagram each.
class Manager {
 public:
  explicit Manager(const Address& at) : fd_(test::plain_bind(at, SOCK_DGRAM)) { EXPECT_GE(fd_, 0); }
  ~Manager() { ::close(fd_); }
  std::string next() const {
    std::string text(4096, '\0');
    const ssize_t size = ::recv(fd_, text.data(), text.size(), MSG_DONTWAIT);
    text.resize(size < 0 ? 0 : static_cast<std::size_t>(size));
    return text;
  }
  // Lets others run until it is told something.
  std::string wait() const {
    std::string text;
    test::yield_until([&] { return !(text = next()).empty(); });
    return text;
  }

 private:
  int fd_;
};

NET_TEST(SystemdNotify, TellsByAPathAndByAnAbstractName) {
  test::SocketDir directory;
  const std::string abstract = "runloom-test-notify-" + std::to_string(::getpid());
  for (const auto& [name, at] :
       {std::pair(directory.path("n"), directory.address("n")),
        std::pair("@" + abstract, Address::from_unix_abstract(abstract).value())}) {
    const Manager manager(at);
    const Environment environment(name);
    auto notify = SystemdNotify::from_environment();
    ASSERT_TRUE(notify) << notify.error().message();
    EXPECT_TRUE(*notify);
    EXPECT_FALSE(notify->watchdog_interval());
    EXPECT_TRUE(notify->ready());
    EXPECT_TRUE(notify->status("12 served\nREADY=1"));
    EXPECT_TRUE(notify->extend_timeout(5s));
    EXPECT_TRUE(notify->main_pid(42));
    EXPECT_TRUE(notify->watchdog());
    EXPECT_TRUE(notify->reloading());
    EXPECT_TRUE(notify->stopping());
    EXPECT_EQ(manager.next(), "READY=1");
    EXPECT_EQ(manager.next(), "STATUS=12 served?READY=1");  // one line, whatever it says
    EXPECT_EQ(manager.next(), "EXTEND_TIMEOUT_USEC=5000000");
    EXPECT_EQ(manager.next(), "MAINPID=42");
    EXPECT_EQ(manager.next(), "WATCHDOG=1");
    EXPECT_TRUE(manager.next().starts_with("RELOADING=1\nMONOTONIC_USEC="));
    EXPECT_EQ(manager.next(), "STOPPING=1");
  }
}

NET_TEST(SystemdNotify, WithoutAManagerNobodyIsTold) {
  auto notify = SystemdNotify::from_environment();
  ASSERT_TRUE(notify);
  EXPECT_FALSE(*notify);
  EXPECT_TRUE(notify->ready());
  EXPECT_TRUE(SystemdNotify().stopping());
}

NET_TEST(SystemdNotify, ReadsTheEnvironment) {
  test::SocketDir directory;
  {
    const Environment ours(directory.path("n"), "3000000", std::to_string(::getpid()));
    EXPECT_EQ(SystemdNotify::from_environment().value().watchdog_interval(), 3s);
    EXPECT_TRUE(SystemdNotify::from_environment(true));
    EXPECT_EQ(std::getenv("NOTIFY_SOCKET"), nullptr);
    EXPECT_EQ(std::getenv("WATCHDOG_USEC"), nullptr);
  }
  const Environment parents(directory.path("n"), "3000000", "1");
  EXPECT_FALSE(SystemdNotify::from_environment().value().watchdog_interval());
  for (const char* bad : {"", "x", "-5", "0", "3s"}) {
    const Environment environment(directory.path("n"), bad);
    EXPECT_EQ(SystemdNotify::from_environment().error(), std::errc::invalid_argument) << bad;
  }
  const Environment vsock("vsock:2:1234");
  EXPECT_EQ(SystemdNotify::from_environment().error(), errno_code(EAFNOSUPPORT));
  const Environment none("@");
  EXPECT_EQ(SystemdNotify::from_environment().error(), std::errc::invalid_argument);
}

NET_TEST(SystemdNotify, AManagerThatIsGoneIsAnError) {
  test::SocketDir directory;
  const Environment environment(directory.path("n"));
  auto notify = SystemdNotify::from_environment().value();
  EXPECT_EQ(notify.ready().error(), std::errc::no_such_file_or_directory);
}

// A manager that does not read makes nobody wait for ever.
NET_TEST(SystemdNotify, AFullQueueIsWaitedForUntilTheDeadline) {
  test::SocketDir directory;
  const Manager manager(directory.address("n"));
  const Environment environment(directory.path("n"));
  auto notify = SystemdNotify::from_environment().value();
  Result<void> told;
  for (int i = 0; i < 100'000 && told; ++i)
    told = notify.send("STATUS=" + std::string(1000, 'x'), Deadline::after(1ms));
  EXPECT_EQ(told.error(), Errc::timed_out);
}

NET_TEST(ServerNotify, TellsOfTheServersLife) {
  test::SocketDir directory;
  const Manager manager(directory.address("n"));
  const Environment environment(directory.path("n"));
  test::Serving server(test::echo_connection, {.cancel_grace = 2s, .notify_systemd = true});
  EXPECT_EQ(manager.wait(), "READY=1");
  auto client = server.connect();
  test::expect_echo(client, "x");
  server->begin_stop(Deadline::after(1h));
  const std::string stopping = manager.wait();
  client.close();
  EXPECT_TRUE(server.serving().join());
  ASSERT_TRUE(stopping.starts_with("STOPPING=1\nEXTEND_TIMEOUT_USEC=")) << stopping;
  const auto usec = std::stoll(stopping.substr(stopping.rfind('=') + 1));
  EXPECT_LE(usec, 3603'000'000);  // the drain, the grace and a second
  EXPECT_GT(usec, 3500'000'000);
  EXPECT_EQ(server->stats().fault(ServerFault::notify), 0u);
}

NET_TEST(ServerNotify, FeedsTheWatchdog) {
  test::SocketDir directory;
  const Manager manager(directory.address("n"));
  const Environment environment(directory.path("n"), "2000");
  test::Serving server(test::echo_connection, {.notify_systemd = true});
  EXPECT_EQ(manager.wait(), "READY=1");
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(manager.wait(), "WATCHDOG=1");
}

NET_TEST(ServerNotify, ServesWhatTheManagerSays) {
  test::SocketDir directory;
  const Environment environment(directory.path("gone"));
  test::Serving server(test::echo_connection,
                       {.notify_systemd = true, .report = [](const ServerReport&) {}});
  auto client = server.connect();
  test::expect_echo(client, "x");
  EXPECT_EQ(server->stats().fault(ServerFault::notify), 1u);
}

}  // namespace
}  // namespace runloom::net
