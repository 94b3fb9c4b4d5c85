// D18: after a fork both sides resolve, with channels, sockets and ids of their own.
#include <gtest/gtest.h>
#include <unistd.h>

#include <set>

#include "runloom/dns/resolver.hpp"
#include "support/child.hpp"
#include "support/dns_test.hpp"

namespace runloom::dns {
namespace {

using namespace std::chrono_literals;
using namespace test;

const Hints kIpv4{.family = AF_INET, .socktype = SOCK_STREAM};

NET_TEST(DnsFork, D18ParentAndChildResolve) {
#ifdef RUNLOOM_TEST_TSAN
  GTEST_SKIP() << "tsan refuses to start threads after a fork of several";
#endif
  DnsFiles files;
  DnsServer server([](const DnsQuestion& question, DnsServer::Responder& responder) {
    const auto delay = question.name == "slow.test" ? 150ms : 0ms;
    responder.send_after(delay, DnsReply(question).a("192.0.2.1").bytes());
  });
  auto options = files.options({server.address()});
  options.timeout = 2s;
  Resolver resolver(options);
  EXPECT_EQ(addresses_of(resolver, "before.test", kIpv4), Texts{"192.0.2.1"});
  // One in flight while the process forks, on the hub that forks and on another one.
  const int here = Hub::current()->index();
  auto slow = spawn([&] { return addresses_of(resolver, "slow.test", kIpv4); }, {.hub = here});
  until_parked(slow.handle(), WaitReason::io_poll);
  const int pid = ::fork();
  if (pid == 0) {
    int failures = 0;
    for (int i = 0; i < 3; ++i)
      failures += addresses_of(resolver, "child" + std::to_string(i) + ".test", kIpv4) !=
                  Texts{"192.0.2.1"};
    failures += addresses_of(resolver, "slow.test", kIpv4) != Texts{"192.0.2.1"};
    failures += resolver.stats().queries != 4;
    ::_exit(failures);
  }
  ASSERT_GT(pid, 0);
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(addresses_of(resolver, "parent" + std::to_string(i) + ".test", kIpv4),
              Texts{"192.0.2.1"});
  EXPECT_EQ(slow.join().value(), Texts{"192.0.2.1"});
  const ChildEnd end = wait_child(pid);
  EXPECT_TRUE(end.exited);
  EXPECT_EQ(end.code, 0);
  EXPECT_EQ(server.questions("slow.test/A"), 2) << "each asks for itself";
}

}  // namespace
}  // namespace runloom::dns
