// Peer: microcosts of plain C++: std::thread and what goes with it, and a stack straight from the
// kernel. "one-core" is run with the process pinned to one CPU, as the fibers are.
// Usage: micro_std_thread one-core | two-cores | parked COUNT
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <semaphore>
#include <thread>
#include <vector>

#include "micro.hpp"

using micro::Clock;
using micro::measure;
using micro::now_ns;

namespace {

double yield(int n) {
  std::atomic<bool> started{false};
  std::atomic<bool> stop{false};
  std::thread other([&] {
    started = true;
    while (!stop)
      std::this_thread::yield();
  });
  while (!started)
    std::this_thread::yield();
  const double start = now_ns(Clock::kCpu);
  for (int i = 0; i < n / 2; i++)
    std::this_thread::yield();
  const double ns = now_ns(Clock::kCpu) - start;
  stop = true;
  other.join();
  return ns;
}

double spawn_join(int n) {
  const double start = now_ns(Clock::kCpu);
  for (int i = 0; i < n; i++)
    std::thread([] {}).join();
  return now_ns(Clock::kCpu) - start;
}

double spawn_join_batch(int n) {
  constexpr int kBatch = 1000;
  std::vector<std::thread> batch(kBatch);
  const double start = now_ns(Clock::kCpu);
  for (int i = 0; i < n / kBatch; i++) {
    for (auto& thread : batch)
      thread = std::thread([] {});
    for (auto& thread : batch)
      thread.join();
  }
  return now_ns(Clock::kCpu) - start;
}

// A one-place hand-over: C++ has no channel.
class Handover {
 public:
  void send(int value) {
    std::unique_lock lock(mutex_);
    value_ = value;
    full_ = true;
    changed_.notify_one();
    changed_.wait(lock, [&] { return !full_; });
  }
  int receive() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return full_; });
    full_ = false;
    changed_.notify_one();
    return value_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int value_ = 0;
  bool full_ = false;
};

double channel_round_trip(int n) {
  Handover ping;
  Handover pong;
  std::thread echo([&] {
    for (int value = ping.receive(); value >= 0; value = ping.receive())
      pong.send(value);
  });
  const double start = now_ns(Clock::kCpu);
  for (int i = 0; i < n; i++) {
    ping.send(i);
    pong.receive();
  }
  const double ns = now_ns(Clock::kCpu) - start;
  ping.send(-1);
  echo.join();
  return ns;
}

double mutex_lock_unlock(int n) {
  std::mutex mutex;
  const double start = now_ns(Clock::kCpu);
  for (int i = 0; i < n; i++) {
    mutex.lock();
    mutex.unlock();
  }
  return now_ns(Clock::kCpu) - start;
}

double semaphore_round_trip(int n, Clock clock) {
  std::binary_semaphore ping{0};
  std::binary_semaphore pong{0};
  std::atomic<bool> stop{false};
  std::thread other([&] {
    for (ping.acquire(); !stop; ping.acquire())
      pong.release();
  });
  const double start = now_ns(clock);
  for (int i = 0; i < n; i++) {
    ping.release();
    pong.acquire();
  }
  const double ns = now_ns(clock) - start;
  stop = true;
  ping.release();
  other.join();
  return ns;
}

double park_unpark(int n) {
  return semaphore_round_trip(n, Clock::kCpu);
}
double cross_thread_round_trip(int n) {
  return semaphore_round_trip(n, Clock::kWall);
}

// A guarded stack whose first page is touched, as a program would get one without a pool.
double stack_get_put(int n) {
  constexpr std::size_t kSize = 64 * 1024;
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const double start = now_ns(Clock::kCpu);
  for (int i = 0; i < n; i++) {
    void* stack = mmap(nullptr, kSize, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED || mprotect(stack, page, PROT_NONE) != 0) std::abort();
    static_cast<volatile char*>(stack)[kSize - 1] = 1;
    munmap(stack, kSize);
  }
  return now_ns(Clock::kCpu) - start;
}

void parked(int count) {
  std::binary_semaphore never{0};
  std::vector<std::thread> all(static_cast<std::size_t>(count));
  std::atomic<int> started{0};
  const double before = micro::memory();
  for (auto& thread : all) {
    thread = std::thread([&] {
      started++;
      never.acquire();
    });
  }
  while (started < count)
    std::this_thread::yield();
  micro::report("parked fiber", (micro::memory() - before) / count, "bytes");
  for (int i = 0; i < count; i++) {
    never.release();
    all[static_cast<std::size_t>(i)].detach();
  }
  std::_Exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  const char* mode = argc > 1 ? argv[1] : "";
  if (std::strcmp(mode, "one-core") == 0) {
    measure("yield", 60'000, yield);
    measure("spawn+join", 2'000, spawn_join);
    measure("spawn+join, 1000 at once", 2'000, spawn_join_batch);
    measure("channel round trip", 6'000, channel_round_trip);
    measure("mutex lock+unlock", 1'000'000, mutex_lock_unlock);
    measure("park+unpark round trip", 8'000, park_unpark);
    measure("stack get+put", 6'000, stack_get_put);
  } else if (std::strcmp(mode, "two-cores") == 0) {
    measure("cross-hub round trip", 1'000, cross_thread_round_trip);
  } else if (std::strcmp(mode, "parked") == 0 && argc > 2) {
    parked(std::atoi(argv[2]));
  } else {
    return 64;
  }
}
