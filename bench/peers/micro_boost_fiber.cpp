// Peer: microcosts of Boost.Fiber.
// Usage: micro_boost_fiber one-core | two-cores | parked COUNT
#include <boost/fiber/all.hpp>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "micro.hpp"

namespace fibers = boost::fibers;
using micro::Clock;
using micro::measure;
using micro::now_ns;

namespace {

constexpr std::size_t kStackSize = 64 * 1024;

double yield(int n) {
  bool stop = false;
  fibers::fiber other([&] {
    while (!stop)
      boost::this_fiber::yield();
  });
  const double start = now_ns(Clock::kCpu);
  for (int i = 0; i < n / 2; i++)
    boost::this_fiber::yield();
  const double ns = now_ns(Clock::kCpu) - start;
  stop = true;
  other.join();
  return ns;
}

double spawn_join(int n) {
  fibers::pooled_fixedsize_stack stacks(kStackSize);
  const double start = now_ns(Clock::kCpu);
  for (int i = 0; i < n; i++)
    fibers::fiber(std::allocator_arg, stacks, [] {}).join();
  return now_ns(Clock::kCpu) - start;
}

double spawn_join_batch(int n) {
  constexpr int kBatch = 1000;
  fibers::pooled_fixedsize_stack stacks(kStackSize);
  std::vector<fibers::fiber> batch(kBatch);
  const double start = now_ns(Clock::kCpu);
  for (int i = 0; i < n / kBatch; i++) {
    for (auto& fiber : batch)
      fiber = fibers::fiber(std::allocator_arg, stacks, [] {});
    for (auto& fiber : batch)
      fiber.join();
  }
  return now_ns(Clock::kCpu) - start;
}

double channel_round_trip(int n) {
  fibers::unbuffered_channel<int> ping;
  fibers::unbuffered_channel<int> pong;
  fibers::fiber echo([&] {
    int value = 0;
    while (ping.pop(value) == fibers::channel_op_status::success)
      pong.push(value);
  });
  const double start = now_ns(Clock::kCpu);
  for (int i = 0; i < n; i++) {
    int value = 0;
    ping.push(i);
    pong.pop(value);
  }
  const double ns = now_ns(Clock::kCpu) - start;
  ping.close();
  echo.join();
  return ns;
}

double mutex_lock_unlock(int n) {
  fibers::mutex mutex;
  const double start = now_ns(Clock::kCpu);
  for (int i = 0; i < n; i++) {
    mutex.lock();
    mutex.unlock();
  }
  return now_ns(Clock::kCpu) - start;
}

// Two fibers of one thread that suspend and wake each other.
double park_unpark(int n) {
  fibers::context* main = fibers::context::active();
  fibers::context* other = nullptr;
  bool stop = false;
  fibers::fiber fiber(fibers::launch::dispatch, [&] {
    other = fibers::context::active();
    other->suspend();
    while (!stop) {
      other->schedule(main);
      other->suspend();
    }
  });
  const double start = now_ns(Clock::kCpu);
  for (int i = 0; i < n; i++) {
    main->schedule(other);
    main->suspend();
  }
  const double ns = now_ns(Clock::kCpu) - start;
  stop = true;
  main->schedule(other);
  fiber.join();
  return ns;
}

double cross_thread_round_trip(int n) {
  fibers::buffered_channel<int> ping(2);
  fibers::buffered_channel<int> pong(2);
  std::thread echo([&] {
    int value = 0;
    while (ping.pop(value) == fibers::channel_op_status::success)
      pong.push(value);
  });
  const double start = now_ns(Clock::kWall);
  for (int i = 0; i < n; i++) {
    int value = 0;
    ping.push(i);
    pong.pop(value);
  }
  const double ns = now_ns(Clock::kWall) - start;
  ping.close();
  echo.join();
  return ns;
}

void parked(int count) {
  fibers::mutex mutex;
  fibers::condition_variable never;
  bool stop = false;
  std::vector<fibers::fiber> all(static_cast<std::size_t>(count));
  const double before = micro::memory();
  for (auto& fiber : all) {
    fiber = fibers::fiber(std::allocator_arg, fibers::fixedsize_stack(kStackSize), [&] {
      std::unique_lock lock(mutex);
      never.wait(lock, [&] { return stop; });
    });
  }
  boost::this_fiber::yield();
  micro::report("parked fiber", (micro::memory() - before) / count, "bytes");
  stop = true;
  never.notify_all();
  for (auto& fiber : all)
    fiber.join();
}

}  // namespace

int main(int argc, char** argv) {
  const char* mode = argc > 1 ? argv[1] : "";
  if (std::strcmp(mode, "one-core") == 0) {
    measure("yield", 400'000, yield);
    measure("spawn+join", 60'000, spawn_join);
    measure("spawn+join, 1000 at once", 60'000, spawn_join_batch);
    measure("channel round trip", 80'000, channel_round_trip);
    measure("mutex lock+unlock", 1'000'000, mutex_lock_unlock);
    measure("park+unpark round trip", 150'000, park_unpark);
  } else if (std::strcmp(mode, "two-cores") == 0) {
    measure("cross-hub round trip", 1'000, cross_thread_round_trip);
  } else if (std::strcmp(mode, "parked") == 0 && argc > 2) {
    parked(std::atoi(argv[2]));
  } else {
    return 64;
  }
}
