// Resolvers that are started, reloaded, cancelled and shut down while they are used from two hubs.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "runloom/dns/resolver.hpp"
#include "runloom/sched/cancel.hpp"
#include "runloom/sched/join_set.hpp"
#include "support/dns_test.hpp"
#include "support/race.hpp"

namespace runloom::dns {
namespace {

using namespace std::chrono_literals;
using namespace test;

const Hints kIpv4{.family = AF_INET, .socktype = SOCK_STREAM};

void answer_or_not(const DnsQuestion& question, DnsServer::Responder& responder) {
  DnsReply reply(question);
  if (question.name.starts_with("silent")) return;
  if (question.name.starts_with("slow"))
    return responder.send_after(3ms, reply.a("192.0.2.1").bytes());
  if (question.name.starts_with("tcp") && !question.tcp) return responder.send(reply.truncated());
  if (question.name.starts_with("fail")) return responder.send(reply.rcode(2));
  responder.send(reply.a("192.0.2.1"));
}

// D10: whoever is woken asks again at once, is cancelled, or leaves the last question behind.
NET_TEST(DnsResolverRace, D10WokenFibersAskAndCancel) {
  DnsFiles files;
  DnsServer server(&answer_or_not);
  auto options = files.options({server.address()});
  options.timeout = 100ms;
  options.attempts = 1;
  Resolver resolver(options);
  const RaceBudget budget;
  JoinSet<> set;
  std::atomic<int> answered{0};
  for (int hub = 0; hub < Scheduler::current()->hubs(); ++hub)
    for (int i = 0; i < 8; ++i)
      ASSERT_TRUE(set.spawn(
          [&, hub, i] {
            for (int round = 0; !budget.spent(); ++round) {
              const char* kinds[] = {"fast", "slow", "silent", "tcp", "fail"};
              const std::string name = std::string(kinds[(i + round) % 5]) +
                                       std::to_string(i % 3 + 10 * (hub + 1)) + ".test";
              CancelScope scope(Deadline::after(std::chrono::microseconds(round * 37 % 4000)));
              const auto found = resolver.getaddrinfo(name, std::nullopt, kIpv4);
              if (found) answered.fetch_add(1);
            }
          },
          {.hub = hub}));
  EXPECT_TRUE(set.wait());
  EXPECT_EQ(addresses_of(resolver, "fast.test", kIpv4, Deadline::after(5s)), Texts{"192.0.2.1"});
  EXPECT_GT(answered.load(), 0);
}

NET_TEST(DnsResolverRace, FilesChangeMeanwhile) {
  DnsFiles files;
  DnsServer server(&answer_or_not);
  Resolver resolver(files.options({server.address()}));
  const RaceBudget budget;
  JoinSet<> set;
  for (int hub = 0; hub < Scheduler::current()->hubs(); ++hub)
    for (int i = 0; i < 4; ++i)
      ASSERT_TRUE(set.spawn(
          [&, i] {
            for (int round = 0; !budget.spent(); ++round) {
              const std::string name = "fast" + std::to_string(i + 4 * round) + ".test";
              EXPECT_EQ(addresses_of(resolver, name, kIpv4), Texts{"192.0.2.1"});
            }
          },
          {.hub = hub}));
  ASSERT_TRUE(set.spawn([&] {
    for (int round = 0; !budget.spent(); ++round) {
      files.write("resolv.conf", "options ndots:" + std::to_string(round % 5) + "\n");
      EXPECT_TRUE(resolver.reload());
      (void)resolver.stats();
    }
  }));
  EXPECT_TRUE(set.wait());
}

// A scheduler that ends takes its questions with it, and nothing else.
TEST(DnsResolverRace, ASchedulerEndsMeanwhile) {
  DnsFiles files;
  DnsServer server(&answer_or_not);
  auto options = files.options({server.address()});
  options.timeout = 60s;
  Resolver resolver(options);
  for (RaceBudget budget; !budget.spent();) {
    HangGuard guard;
    auto made = fiber_test_options(2);
    Scheduler scheduler(std::move(made));
    std::atomic<int> begun{0}, ended{0};
    for (int i = 0; i < 6; ++i)
      (void)scheduler.spawn(
          [&, i] {
            begun.fetch_add(1);
            const auto found =
                resolver.getaddrinfo("silent" + std::to_string(i) + ".test", std::nullopt, kIpv4);
            EXPECT_EQ(found.error(), Errc::cancelled);
            ended.fetch_add(1);
          },
          {.hub = i % 2});
    std::thread stopper([&] {
      while (begun.load() < 6)
        std::this_thread::yield();
      scheduler.stop();
    });
    (void)scheduler.run();
    stopper.join();
    EXPECT_EQ(scheduler.shutdown(), 0u);
    EXPECT_EQ(ended.load(), 6);
  }
  EXPECT_EQ(resolver.stats().in_flight, 0u);
  const auto found = run([&] { return addresses_of(resolver, "fast.test", kIpv4); });
  EXPECT_EQ(found.value(), Texts{"192.0.2.1"});
}

// OS threads beside the fibers.
NET_TEST(DnsResolverRace, ThreadsAndFibers) {
  DnsFiles files;
  DnsServer server(&answer_or_not);
  Resolver resolver(files.options({server.address()}));
  const RaceBudget budget;
  ForeignThreads threads;
  for (int i = 0; i < 2; ++i)
    threads.start([&] {
      while (!budget.spent())
        EXPECT_EQ(addresses_of(resolver, "fast.test", kIpv4), Texts{"192.0.2.1"});
    });
  while (!budget.spent())
    EXPECT_EQ(addresses_of(resolver, "fast.test", kIpv4), Texts{"192.0.2.1"});
  threads.join();
}

// D16: who waits for a server stops nobody.
NET_TEST(DnsResolver, D16OthersRunMeanwhile) {
  DnsFiles files;
  DnsServer server([](const DnsQuestion& question, DnsServer::Responder& responder) {
    responder.send_after(200ms, DnsReply(question).a("192.0.2.1").bytes());
  });
  auto options = files.options({server.address()});
  options.timeout = 5s;
  Resolver resolver(options);
  std::atomic<bool> done{false};
  auto ticker = spawn(
      [&] {
        int ticks = 0;
        for (; !done.load(); ++ticks)
          EXPECT_TRUE(this_fiber::sleep_for(1ms));
        return ticks;
      },
      {.hub = Hub::current()->index()});
  EXPECT_EQ(addresses_of(resolver, "www.test", kIpv4), Texts{"192.0.2.1"});
  done.store(true);
  EXPECT_GT(ticker.join().value(), 10);
}

// D24: a flood of datagrams that answer nothing is dropped, others run, and the answer is taken.
NET_TEST(DnsResolver, D24AFloodIsOutlived) {
  DnsFiles files;
  DnsServer server([](const DnsQuestion& question, DnsServer::Responder& responder) {
    const auto junk =
        DnsReply(question).id(static_cast<std::uint16_t>(DnsReply(question).id() ^ 0x55)).bytes();
    for (int i = 0; i < 5000; ++i)
      responder.send(junk);
    // The socket may be full of them: so again, and later.
    for (const auto delay : {50ms, 100ms, 200ms})
      responder.send_after(delay, DnsReply(question).a("192.0.2.1").bytes());
  });
  auto options = files.options({server.address()});
  options.timeout = 5s;
  Resolver resolver(options);
  EXPECT_EQ(addresses_of(resolver, "www.test", kIpv4), Texts{"192.0.2.1"});
  EXPECT_GT(resolver.stats().dropped, 64u);
}

}  // namespace
}  // namespace runloom::dns
