// The channel by itself, and what it does when the kernel is out of something.
#include "channel.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <functional>

#include "runloom/dns/resolver.hpp"
#include "socket_table.hpp"
#include "support/child.hpp"
#include "support/dns_test.hpp"
#include "support/syscall_faults.hpp"

namespace {
// Runs inside of recvfrom(2), which the channel calls in a callback of c-ares.
std::function<void()> in_recvfrom;
}  // namespace

extern "C" ssize_t recvfrom(int fd, void* buffer, size_t size, int flags, sockaddr* from,
                            socklen_t* from_size) {
  if (in_recvfrom) in_recvfrom();
  static auto* const next =
      runloom::test::next_of<ssize_t(int, void*, size_t, int, sockaddr*, socklen_t*)>("recvfrom");
  return next(fd, buffer, size, flags, from, from_size);
}

namespace runloom::dns {
namespace {

using namespace std::chrono_literals;
using namespace test;

const Hints kIpv4{.family = AF_INET, .socktype = SOCK_STREAM};

// A channel without a fiber, driven by hand.
struct Driven {
  explicit Driven(const DnsServer& server) {
    ChannelSettings settings;
    settings.servers = {server.address()};
    channel = Channel::make(settings, counters, servers, sockets).value();
    exchange.question = make_question("www.test", RecordType::a).value();
  }
  // Lets c-ares at whatever is ready, until the question has ended.
  bool drive() {
    const Deadline limit = Deadline::after(10s);
    while (!channel->take_ended()) {
      if (limit.passed() || channel->sockets().empty()) return false;
      pollfd polled{channel->sockets()[0].fd, POLLIN, 0};
      if (::poll(&polled, 1, 100) > 0) channel->process(polled.fd, net::kRead);
      channel->close_retired();
    }
    return true;
  }
  Counters counters;
  Servers servers{30s};
  SocketTable sockets;
  Exchange exchange;
  std::unique_ptr<Channel> channel;
};

TEST(DnsChannel, AQuestionIsAnswered) {
  DnsServer server(zone({{"www.test/A", {"192.0.2.1"}}}));
  Driven driven(server);
  driven.channel->send(driven.exchange);
  ASSERT_TRUE(driven.drive());
  EXPECT_FALSE(driven.exchange.error);
  const auto answer = parse_answer(driven.exchange.answer);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->answers.size(), 1u);
  EXPECT_EQ(driven.channel->in_flight(), 0u);
}

// D10: the assertion is there, and ends a process that breaks the rule.
TEST(DnsChannel, D10ACallInsideOfACallbackEndsTheProcess) {
#ifdef RUNLOOM_DEBUG
  DnsServer server(zone({{"www.test/A", {"192.0.2.1"}}}));
  const auto end = run_child([&] {
    Driven driven(server);
    driven.channel->send(driven.exchange);
    in_recvfrom = [&] { driven.channel->process_timeouts(); };
    (void)driven.drive();
    return 0;
  });
  EXPECT_EQ(end.signal, SIGABRT) << end.code << end.out;
  EXPECT_NE(end.out.find("c-ares was called inside one of its callbacks"), std::string::npos)
      << end.out;
  const auto asked = run_child([&] {
    Driven driven(server);
    driven.channel->send(driven.exchange);
    in_recvfrom = [&] { (void)driven.channel->next_timeout(); };
    (void)driven.drive();
    return 0;
  });
  EXPECT_EQ(asked.signal, SIGABRT) << asked.code << asked.out;
#elif defined(RUNLOOM_TEST_ASAN) || defined(RUNLOOM_TEST_TSAN)
  FAIL() << "builds with a sanitizer have the internal checks";
#else
  GTEST_SKIP() << "a build without internal checks";
#endif
}

// No descriptor is to be had: that is said, and the next try finds the servers where they were.
NET_TEST(DnsChannel, WithoutADescriptorNothingIsSent) {
  DnsFiles files;
  DnsServer server(zone({{"www.test/A", {"192.0.2.1"}}}));
  Resolver resolver(files.options({server.address()}));
  ASSERT_EQ(addresses_of(resolver, "www.test", kIpv4), Texts{"192.0.2.1"});
  for (const int err : {EMFILE, ENFILE, ENOBUFS, EACCES}) {
    const Fault fault(Call::socket, err, 1, 1000);
    const auto failed = resolver.getaddrinfo("other.test", std::nullopt, kIpv4);
    EXPECT_EQ(eai(failed.error()), EAI_AGAIN) << failed.error().message();
  }
  EXPECT_EQ(server.questions("other.test/A"), 0);
  EXPECT_TRUE(resolver.stats().dead_servers.empty()) << "it is none of their fault";
  EXPECT_EQ(addresses_of(resolver, "www.test", kIpv4), Texts{"192.0.2.1"});
  EXPECT_EQ(resolver.stats().in_flight, 0u);
}

// D06: a datagram of no bytes is no end of anything.
NET_TEST(DnsChannel, D06AnEmptyDatagramIsDropped) {
  DnsFiles files;
  DnsServer server([](const DnsQuestion& question, DnsServer::Responder& responder) {
    responder.send("");
    responder.send("x");
    responder.send(DnsReply(question).a("192.0.2.1"));
  });
  auto options = files.options({server.address()});
  options.timeout = 5s;
  options.attempts = 1;
  Resolver resolver(options);
  EXPECT_EQ(addresses_of(resolver, "www.test", kIpv4), Texts{"192.0.2.1"});
  EXPECT_EQ(server.questions(), 1);
  EXPECT_EQ(resolver.stats().dropped, 2u);
}

// D06: a refusal without the question is one.
NET_TEST(DnsChannel, D06ARefusalMayLeaveTheQuestionOut) {
  DnsFiles files;
  DnsServer server([](const DnsQuestion& question, DnsServer::Responder& responder) {
    responder.send(DnsReply(question).no_question().rcode(5));
  });
  auto options = files.options({server.address()});
  options.timeout = 30s;
  options.attempts = 1;
  Resolver resolver(options);
  const auto failed = resolver.getaddrinfo("www.test", std::nullopt, kIpv4, Deadline::after(10s));
  EXPECT_EQ(failed.error(), DnsErrc::refused) << failed.error().message();
}

// A server from before EDNS gets the question without it: each question, over UDP and TCP.
NET_TEST(DnsChannel, AServerFromBeforeEdns) {
  for (const char* more : {"", " use-vc"}) {
    DnsFiles files;
    files.write("resolv.conf", std::string("options edns0") + more + "\n");
    DnsServer server([](const DnsQuestion& question, DnsServer::Responder& responder) {
      const bool has_edns = question.message[11] != 0;
      responder.send(has_edns ? DnsReply(question).no_question().rcode(1)
                              : DnsReply(question).a("192.0.2.1"));
    });
    auto options = files.options({server.address()});
    options.timeout = 5s;
    options.attempts = 1;
    Resolver resolver(options);
    for (int i = 0; i < 3; ++i)
      EXPECT_EQ(addresses_of(resolver, "www" + std::to_string(i) + ".test", kIpv4),
                Texts{"192.0.2.1"})
          << more;
    EXPECT_EQ(server.questions(), 6);
    // A forwarder's question is its client's, who hears what the server said.
    const auto question = make_question("raw.test", RecordType::a, {.edns = true}).value();
    const auto answer = resolver.exchange(question, Deadline::after(10s));
    ASSERT_TRUE(answer) << answer.error().message();
    EXPECT_EQ(static_cast<int>((*answer)[3]) & 15, 1);
  }
}

}  // namespace
}  // namespace runloom::dns
