#include "runloom/dns/dial.hpp"

#include <gtest/gtest.h>
#include <net/if.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>

#include "runloom/sched/cancel.hpp"
#include "runloom/sched/join_set.hpp"
#include "support/child.hpp"
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

// RFC 8305, 3: one family's answer does not wait for the other's for long.
NET_TEST(DnsDial, AnAnswerDoesNotWaitForASilentOne) {
  for (const auto silent : {RecordType::aaaa, RecordType::a}) {
    DnsFiles files;
    DnsServer server([&](const DnsQuestion& question, DnsServer::Responder& responder) {
      if (question.type == silent) return;
      DnsReply reply(question);
      responder.send(question.type == RecordType::a ? reply.a("127.0.0.1") : reply.aaaa("::1"));
    });
    auto options = files.options({server.address()});
    options.timeout = 60s;
    Resolver resolver(options);
    Listening listening(net::ListenOptions{});
    auto ipv6 = net::TcpListener::listen(net::Address::loopback_ipv6(listening.address.port()));
    ASSERT_TRUE(ipv6) << ipv6.error().message();
    const auto stream =
        dial("here.test:" + std::to_string(listening.address.port()),
             {.resolution_delay = 20ms, .resolver = &resolver}, Deadline::after(10s));
    ASSERT_TRUE(stream) << stream.error().message();
    EXPECT_EQ(stream->peer_address().value().is_ipv4(), silent == RecordType::aaaa);
    // Nobody waits for the other one any more.
    yield_until([&] { return resolver.stats().in_flight == 0; });
  }
}

// The part that was early does not answer; what comes later joins it, and is tried.
NET_TEST(DnsDial, TheOtherFamilyJoinsLater) {
  BlackHole silent;
  DnsFiles files;
  DnsServer server([](const DnsQuestion& question, DnsServer::Responder& responder) {
    DnsReply reply(question);
    if (question.type == RecordType::a) return responder.send(reply.a("127.0.0.1"));
    responder.send_after(60ms, reply.aaaa("::1").bytes());
  });
  auto options = files.options({server.address()});
  options.timeout = 60s;
  Resolver resolver(options);
  auto ipv6 =
      net::TcpListener::listen(net::Address::loopback_ipv6(silent.listening.address.port()));
  ASSERT_TRUE(ipv6) << ipv6.error().message();
  const auto stream = dial("here.test:" + std::to_string(silent.listening.address.port()),
                           {.attempt_delay = 10ms, .resolution_delay = 5ms, .resolver = &resolver},
                           Deadline::after(10s));
  ASSERT_TRUE(stream) << stream.error().message();
  EXPECT_TRUE(stream->peer_address().value().is_ipv6());
}

// An early part that fails is no reason to give up, and each address is tried and named once.
NET_TEST(DnsDial, AnEarlyFailureWaitsForTheRest) {
  DnsFiles files;
  DnsServer server([](const DnsQuestion& question, DnsServer::Responder& responder) {
    DnsReply reply(question);
    if (question.type == RecordType::a) return responder.send(reply.a("127.0.0.1"));
    responder.send_after(60ms, reply.aaaa("::1").bytes());
  });
  auto options = files.options({server.address()});
  options.timeout = 60s;
  Resolver resolver(options);
  std::vector<DialFailure> failures;
  const auto port = std::to_string(closed_port().port());
  const auto stream = dial("here.test:" + port, {.resolution_delay = 5ms, .resolver = &resolver},
                           Deadline::after(10s), nullptr, &failures);
  EXPECT_EQ(stream.error(), std::errc::connection_refused) << stream.error().message();
  ASSERT_EQ(failures.size(), 2u);
  EXPECT_NE(failures[0].address.family(), failures[1].address.family());
}

NET_TEST(DnsDial, ANameThatIsNotThereHasNoAddresses) {
  DnsFiles files;
  DnsServer server(zone({{"here.test/A", {"127.0.0.1"}}}));
  Resolver resolver(files.options({server.address()}));
  std::string problem;
  std::vector<DialFailure> failures;
  EXPECT_EQ(dial("nowhere.test:1", {.resolver = &resolver}, {}, &problem, &failures).error(),
            DnsErrc::not_found);
  EXPECT_TRUE(failures.empty());
  EXPECT_EQ(problem, "nowhere.test:1: Name or service not known");
}

// T36: two succeed at once; one comes out, the other is closed. The teardown counts descriptors.
NET_TEST(DnsDialRace, T36OneWinnerComesOut) {
  Listening one, two;
  const int rounds = std::getenv("RUNLOOM_FULL") ? 10'000 : 0;
  int round = 0;
  for (RaceBudget budget; round < rounds || !budget.spent(); ++round) {
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

// T38: the winner cancels the losers in a set within the caller's set: nothing of that reaches the
// caller, its siblings, or those that are inside of scopes of their own.
NET_TEST(DnsDialRace, T38NoCancelLeaks) {
  Listening one, two;
  BlackHole silent;
  for (RaceBudget budget; !budget.spent();) {
    JoinSet<> set;
    std::atomic<int> done{0};
    for (int i = 0; i < 4; ++i)
      ASSERT_TRUE(set.spawn([&] {
        CancelScope scope(Deadline::after(10s));
        const auto stream = dial_addresses({silent.listening.address, one.address, two.address},
                                           {.attempt_delay = 0ms}, Deadline::after(10s));
        EXPECT_TRUE(stream) << stream.error().message();
        EXPECT_TRUE(this_fiber::check_cancelled());
        this_fiber::yield();
        EXPECT_TRUE(this_fiber::check_cancelled());
        done.fetch_add(1);
      }));
    ASSERT_TRUE(set.wait());
    ASSERT_EQ(done.load(), 4);
    ASSERT_TRUE(this_fiber::check_cancelled());
    for (Listening* each : {&one, &two})
      while (each->listener.accept(Deadline::now())) {
      }
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

// T40 over a link of its own: a name of two addresses with one scope, of which one answers nobody,
// and the scope by name and by number. Runs in a process with a network namespace; returns what
// failed.
std::string dial_over_a_link() {
  if (::unshare(CLONE_NEWNET) != 0) return "skip";
  // The other end is in a namespace that a child of ours has, and that drops what comes to ::d.
  int ready[2], leave[2];
  if (::pipe(ready) != 0 || ::pipe(leave) != 0) return "pipe";
  const pid_t peer = ::fork();
  if (peer == 0) {
    char byte = ::unshare(CLONE_NEWNET) == 0 ? 'x' : 'n';
    (void)!::write(ready[1], &byte, 1);
    ::close(leave[1]);
    (void)!::read(leave[0], &byte, 1);
    const bool made =
        std::system(
            "ip link set lo up && ip link set veth1 up && "
            "ip -6 addr add fe80::a/64 dev veth1 nodad && "
            "ip -6 addr add fe80::d/64 dev veth1 nodad && "
            "nft 'add table ip6 t; add chain ip6 t c { type filter hook input priority 0; };"
            " add rule ip6 t c ip6 daddr fe80::d tcp dport 7 drop'") == 0;
    const int listener = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const auto address = net::Address::from_ip("::", 7).value();
    byte =
        made && ::bind(listener, address.data(), address.size()) == 0 && ::listen(listener, 16) == 0
            ? 'x'
            : 'n';
    (void)!::write(ready[1], &byte, 1);
    (void)!::read(leave[0], &byte, 1);
    ::_exit(0);
  }
  char byte = 'n';
  const auto told = [&] { return ::read(ready[0], &byte, 1) == 1 && byte == 'x'; };
  struct End {
    pid_t peer;
    int fd;
    ~End() {
      ::close(fd);
      (void)wait_child(peer);
    }
  } end{peer, leave[1]};
  const std::string link =
      "ip link set lo up && ip link add veth0 type veth peer name veth1 netns " +
      std::to_string(peer) +
      " && ip link set veth0 up && ip -6 addr add fe80::b/64 dev veth0 nodad";
  if (!told() || std::system(link.c_str()) != 0) return "skip";
  (void)!::write(leave[1], "x", 1);
  if (!told()) return "skip";

  DnsFiles files;
  std::string failed;
  const auto ran = run([&] {
    const auto index = ::if_nametoindex("veth0");
    const auto peer_of = [&](const Result<net::TcpStream>& stream) {
      return stream ? stream->peer_address().value().to_string() : stream.error().message();
    };
    const Deadline limit = Deadline::after(8s);
    Resolver resolver(files.options());
    for (const std::string& target :
         {std::string("[fe80::a%veth0]:7"), "[fe80::a%" + std::to_string(index) + "]:7"}) {
      const auto got = peer_of(dial(target, {.resolver = &resolver}, limit));
      if (got != "[fe80::a%veth0]:7")
        failed.append(target).append(" gave ").append(got).append("; ");
    }
    // The first never answers, so the second is tried: with its scope.
    std::vector<net::Address> addresses{net::Address::parse("[fe80::d%veth0]:7").value(),
                                        net::Address::parse("[fe80::a%veth0]:7").value()};
    const auto both = peer_of(dial_addresses(addresses, {.attempt_delay = 20ms}, limit));
    if (both != "[fe80::a%veth0]:7") failed += "both gave " + both + "; ";
    std::vector<DialFailure> failures;
    const auto none = dial_addresses({addresses[0]}, {}, Deadline::after(100ms), &failures);
    if (none || failures.size() != 1 || failures[0].address.scope_id() != index)
      failed += "the silent one: " + peer_of(none) + "; ";
    // An IPv6 server that answers nobody, and IPv4 that does not exist: every address is named.
    std::string problem;
    const auto named =
        dial("[fe80::c%veth0]:7", {.resolver = &resolver}, Deadline::after(200ms), &problem);
    if (named || problem.find("%veth0") == std::string::npos) failed += "problem: " + problem;
  });
  if (!ran) failed += ran.error().message();
  return failed;
}

TEST(DnsDialNamespace, T40TheScopeSurvivesALink) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root may make the namespaces";
  const ChildEnd end = run_child([] {
    const std::string failed = dial_over_a_link();
    std::printf("%s\n", failed.c_str());
    std::fflush(stdout);
    return failed.empty() ? 0 : failed == "skip" ? 77 : 1;
  });
  if (end.exited && end.code == 77) GTEST_SKIP() << "no namespaces, ip or nft: " << end.out;
  EXPECT_TRUE(end.exited && end.code == 0) << end.signal << ' ' << end.out;
}

TEST(DnsDialThread, AThreadTriesInTurn) {
  Listening listening;
  EXPECT_TRUE(dial_addresses({closed_port(), listening.address}));
  EXPECT_FALSE(dial_addresses({closed_port(), closed_port()}));
}

}  // namespace
}  // namespace runloom::dns
