// Connections, datagrams, files and foreign descriptors that are cut at any moment, by cancels,
// deadlines, closes, resets and half-closes, on one scheduler for a while. Every byte that comes
// through must be the right one, connections that nobody cuts must come through whole, and after
// each round descriptors, fibers, memory and the ring's operations are where they were.
//
// The choices of round n follow from RUNLOOM_SEED + n (a failure names the number; what the kernel
// and the other hub do meanwhile it can't bring back). RUNLOOM_STRESS_SECONDS is how long all four
// tests take together: a minute.
#include <chrono>
#include <cstdlib>

#include "net/netpoll_uring.hpp"
#include "runloom/net/file.hpp"
#include "stress/stress_round.hpp"
#include "support/kernel.hpp"
#include "support/net_test.hpp"
#include "support/unix_test.hpp"

namespace runloom::test {
namespace {

using namespace std::chrono_literals;

std::uint64_t number_of(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

// What must not grow.
struct Footprint {
  std::size_t descriptors;
  std::size_t net_objects;
  std::uint64_t fibers;
  std::size_t ring_operations;  // of all hubs
};

// What the backend itself keeps in its ring: the polls of its eventfd and of its epoll instance.
constexpr std::size_t kOwnPolls = 2;

std::size_t ring_operations() {
  auto* ring = dynamic_cast<net::UringNetpoll*>(net::Netpoll::current().value());
  return ring ? ring->ring().in_flight() : 0;
}

Footprint footprint(const Scheduler& scheduler, int hubs) {
  // What a handler's last wake left to do is done when its hub has polled again.
  std::size_t operations = 0;
  for (int i = 0; i < hubs; ++i) {
    auto counted = spawn(
        [] {
          (void)this_fiber::sleep_for(1ms);
          // A hub opens its ring for files with the first of them, which may be late.
          (void)net::Netpoll::current().value()->file_ring();
          return ring_operations();
        },
        {.hub = i});
    operations += counted.join().value();
  }
  yield_until([&] { return scheduler.stats().live == 1; });
  return {open_descriptors(), net::live_descriptors(), scheduler.stats().live, operations};
}

void stress(Result<std::unique_ptr<net::Netpoll>> (*make)(), int hubs) {
  const auto end =
      std::chrono::steady_clock::now() +
      std::chrono::milliseconds(number_of("RUNLOOM_STRESS_SECONDS", kSanitized ? 20 : 60) * 250);
  const std::uint64_t seed = number_of("RUNLOOM_SEED", 1);
  Options options = fiber_test_options(hubs);
  options.make_driver = driver_maker(make);
  Scheduler scheduler(std::move(options));
  std::uint64_t rounds = 0, whole = 0, cut = 0, strangers = 0, datagrams = 0;
  std::uint64_t memory_before = 0;
  const auto ran = scheduler.run([&] {
    Footprint before{};
    for (; !::testing::Test::HasFailure() && (rounds < 4 || std::chrono::steady_clock::now() < end);
         ++rounds) {
      SCOPED_TRACE("RUNLOOM_SEED=" + std::to_string(seed + rounds));
      HangGuard guard;
      guard.watch(&scheduler);
      Round round(seed + rounds);
      run_round(round, hubs);
      const Footprint after = footprint(scheduler, hubs);
      // The first rounds open what the process keeps: the blocking pool, caches, epoll instances.
      if (rounds == 1) before = after;
      if (rounds == 2) memory_before = status_bytes("VmRSS");
      if (rounds > 1) {
        EXPECT_EQ(after.descriptors, before.descriptors);
        EXPECT_EQ(after.net_objects, before.net_objects);
        EXPECT_EQ(after.fibers, before.fibers);
        EXPECT_LE(after.ring_operations, kOwnPolls * static_cast<std::size_t>(hubs));
      }
      EXPECT_GT(round.whole, 0u);
      EXPECT_GT(round.cut, 0u);
      EXPECT_GT(round.datagrams, 0u);
      whole += round.whole;
      cut += round.cut;
      strangers += round.strangers;
      datagrams += round.datagrams;
      guard.watch(nullptr);
    }
  });
  EXPECT_TRUE(ran) << ran.error().message();
  const std::uint64_t memory = status_bytes("VmRSS");
  if (!kSanitized) {
    EXPECT_LT(memory, memory_before + memory_before / 4 + (8u << 20));
  }
  std::printf(
      "%llu rounds from seed %llu: %llu whole, %llu cut, %llu strangers, %llu datagrams; "
      "%llu KiB, before %llu\n",
      static_cast<unsigned long long>(rounds), static_cast<unsigned long long>(seed),
      static_cast<unsigned long long>(whole), static_cast<unsigned long long>(cut),
      static_cast<unsigned long long>(strangers), static_cast<unsigned long long>(datagrams),
      static_cast<unsigned long long>(memory >> 10),
      static_cast<unsigned long long>(memory_before >> 10));
}

void stress_ring(int hubs) {
  if (!net::io_uring_available()) GTEST_SKIP() << "io_uring is forbidden here";
  stress(&net::make_uring_netpoll, hubs);
}

TEST(NetStress, EpollOneHub) {
  stress(&net::make_epoll_netpoll, 1);
}
TEST(NetStress, EpollTwoHubs) {
  stress(&net::make_epoll_netpoll, 2);
}
TEST(NetStress, IoUringOneHub) {
  stress_ring(1);
}
TEST(NetStress, IoUringTwoHubs) {
  stress_ring(2);
}

}  // namespace
}  // namespace runloom::test
