#include "runloom/dns/dial.hpp"

#include <gtest/gtest.h>

#include <chrono>

#include "runloom/sched/cancel.hpp"
#include "runloom/sched/join_set.hpp"
#include "support/dns_test.hpp"
#include "support/race.hpp"

namespace runloom::dns {
namespace {

using namespace std::chrono_literals;
using namespace test;

TEST(DnsDial, TargetsAreSplit) {
  const auto split = [](std::string_view text) {
    const auto parts = split_target(text);
    return parts ? parts->host + '|' + parts->service : "-";
  };
  EXPECT_EQ(split("a.test:80"), "a.test|80");
  EXPECT_EQ(split("[::1]:https"), "::1|https");
  EXPECT_EQ(split("[fe80::1%lo]:1"), "fe80::1%lo|1");
  for (const char* bad : {"", "a", "a:", ":80", "::1:80", "[::1]", "[::1]80", "[]:80", "[::1]:"})
    EXPECT_EQ(split(bad), "-") << bad;
}

// A port on the loopback where nobody listens.
net::Address closed_port(const char* ip = "127.0.0.1") {
  const Listening gone;
  return net::Address::from_ip(ip, gone.address.port()).value();
}

NET_TEST(DnsDial, ANameIsConnectedTo) {
  DnsFiles files;
  DnsServer server(zone({{"here.test/A", {"127.0.0.1"}}}));
  Resolver resolver(files.options({server.address()}));
  Listening listening;
  auto stream =
      dial("here.test:" + std::to_string(listening.address.port()), {.resolver = &resolver});
  ASSERT_TRUE(stream) << stream.error().message();
  EXPECT_EQ(stream->peer_address().value(), listening.address);
}

NET_TEST(DnsDial, EveryFailureIsNamed) {
  DnsFiles files;
  files.write("hosts", "127.0.0.1 here\n127.0.0.2 here\n");
  Resolver resolver(files.options());
  const auto closed = closed_port();
  std::string problem;
  std::vector<DialFailure> failures;
  const auto stream = dial("here:" + std::to_string(closed.port()), {.resolver = &resolver}, {},
                           &problem, &failures);
  EXPECT_EQ(stream.error(), std::errc::connection_refused);
  EXPECT_EQ(failures.size(), 2u);
  for (const char* ip : {"127.0.0.1", "127.0.0.2"})
    EXPECT_NE(problem.find(std::string(ip) + ':' + std::to_string(closed.port()) +
                           ": Connection refused"),
              std::string::npos)
        << problem;
  EXPECT_EQ(dial("nowhere", {.resolver = &resolver}, {}, &problem).error(),
            std::errc::invalid_argument);
  EXPECT_NE(problem.find("nowhere"), std::string::npos);
  EXPECT_EQ(dial("[::1%nope]:1", {.resolver = &resolver}, {}, &problem).error(),
            DnsErrc::not_found);
  EXPECT_NE(problem.find("::1%nope"), std::string::npos) << problem;
}

NET_TEST(DnsDial, AServiceMayHaveAName) {
  DnsFiles files;
  Listening listening;
  files.write("services", "mine " + std::to_string(listening.address.port()) + "/tcp\n");
  Resolver resolver(files.options());
  EXPECT_TRUE(dial("127.0.0.1:mine", {.resolver = &resolver}));
  EXPECT_EQ(dial("127.0.0.1:theirs", {.resolver = &resolver}).error(), DnsErrc::service);
}

// An address that answers nobody: a listener whose queue is full.
struct BlackHole {
  BlackHole() : listening({.backlog = 0}) {
    // One is let in, and some more wait for the handshake's end.
    for (int i = 0; i < 4; ++i) {
      const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      (void)::connect(fd, listening.address.data(), listening.address.size());
      fds.push_back(fd);
    }
  }
  ~BlackHole() {
    for (const int fd : fds)
      ::close(fd);
  }
  Listening listening;
  std::vector<int> fds;
};

NET_TEST(DnsDial, TheNextAddressDoesNotWaitForASilentOne) {
  BlackHole silent;
  Listening listening;
  const auto stream = dial_addresses({silent.listening.address, listening.address},
                                     {.attempt_delay = 10ms}, Deadline::after(5s));
  ASSERT_TRUE(stream) << stream.error().message();
  EXPECT_EQ(stream->peer_address().value(), listening.address);
}

NET_TEST(DnsDial, ADeadlineBoundsTheWhole) {
  BlackHole silent;
  std::vector<DialFailure> failures;
  EXPECT_EQ(dial_addresses({silent.listening.address, silent.listening.address},
                           {.attempt_delay = 10ms}, Deadline::after(60ms), &failures)
                .error(),
            Errc::timed_out);
}

// A failure starts the next attempt at once, whatever the delay.
NET_TEST(DnsDial, AFailureStartsTheNext) {
  Listening listening;
  std::vector<DialFailure> failures;
  const auto stream = dial_addresses({closed_port(), closed_port(), listening.address},
                                     {.attempt_delay = 1h}, {}, &failures);
  EXPECT_TRUE(stream);
  EXPECT_EQ(failures.size(), 2u);
}

NET_TEST(DnsDial, FamiliesTakeTurns) {
  std::vector<net::Address> addresses;
  for (const char* ip : {"::1", "::1", "::1", "127.0.0.1", "127.0.0.2"})
    addresses.push_back(net::Address::from_ip(ip, closed_port().port()).value());
  std::vector<DialFailure> failures;
  EXPECT_FALSE(dial_addresses(addresses, {.attempt_delay = 1h}, {}, &failures));
  Texts order;
  for (const auto& failure : failures)
    order.push_back(failure.address.ip());
  EXPECT_EQ(order, (Texts{"::1", "127.0.0.1", "::1", "127.0.0.2", "::1"}));
  EXPECT_EQ(dial_addresses({net::Address::loopback_ipv6(1)},
                           {.connect = {.local = net::Address::loopback_ipv4()}})
                .error(),
            DnsErrc::address_family);
}

// T36: two succeed at once; one comes out, the other is closed. The teardown counts descriptors.
NET_TEST(DnsDialRace, T36OneWinnerComesOut) {
  Listening one, two;
  for (RaceBudget budget; !budget.spent();) {
    const auto stream = dial_addresses({one.address, two.address}, {.attempt_delay = 0ms});
    ASSERT_TRUE(stream) << stream.error().message();
    auto& winner = stream->peer_address().value() == one.address ? one : two;
    ASSERT_TRUE(winner.listener.accept());
    // The other may have been connected, and then it is closed by now.
    auto& loser = &winner == &one ? two : one;
    if (auto accepted = loser.listener.accept(Deadline::now()); accepted) {
      const auto end = read_text(*accepted);
      ASSERT_TRUE(!end || end->empty());
    }
  }
}

// T34: cancelled at any step, nothing is left open. The teardown counts descriptors and fibers.
NET_TEST(DnsDialRace, T34CancelledAtAnyStep) {
  DnsFiles files;
  DnsServer server(zone({{"here.test/A", {"127.0.0.1", "127.0.0.2"}}}));
  Resolver resolver(files.options({server.address()}));
  Listening listening;
  const std::string target = "here.test:" + std::to_string(listening.address.port());
  int round = 0, connected = 0;
  for (RaceBudget budget; !budget.spent(); ++round) {
    CancelScope scope(Deadline::after(std::chrono::microseconds(round % 300 * 5)));
    const auto stream = dial(target, {.attempt_delay = 0ms, .resolver = &resolver});
    if (stream) {
      ++connected;
    } else {
      ASSERT_EQ(stream.error(), Errc::timed_out) << stream.error().message();
    }
  }
  EXPECT_GT(round, 0);
  while (listening.listener.accept(Deadline::now())) {
  }
}

// T40: the scope survives.
NET_TEST(DnsDial, T40TheScopeSurvives) {
  Resolver resolver;
  const auto found = resolver.getaddrinfo("fe80::1%lo", "9", {.socktype = SOCK_STREAM});
  ASSERT_TRUE(found);
  EXPECT_EQ((*found)[0].address.scope_id(), 1u);
  std::vector<DialFailure> failures;
  std::string problem;
  EXPECT_FALSE(
      dial("[fe80::1%lo]:9", {.resolver = &resolver}, Deadline::after(2s), &problem, &failures));
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures[0].address.scope_id(), 1u);
  EXPECT_NE(problem.find("%lo"), std::string::npos) << problem;
}

TEST(DnsDialThread, AThreadTriesInTurn) {
  Listening listening;
  EXPECT_TRUE(dial_addresses({closed_port(), listening.address}));
  EXPECT_FALSE(dial_addresses({closed_port(), closed_port()}));
}

}  // namespace
}  // namespace runloom::dns
