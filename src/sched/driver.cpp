#include "runloom/sched/driver.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

namespace runloom {
namespace {

class FutexDriver final : public Driver {
 public:
  int poll(std::int64_t timeout_ns) override {
    if (timeout_ns != 0 && signal_.load(std::memory_order_acquire) == 0) {
      timespec relative{};
      timespec* limit = nullptr;
      if (timeout_ns > 0) {
        relative.tv_sec = timeout_ns / 1'000'000'000;
        relative.tv_nsec = timeout_ns % 1'000'000'000;
        limit = &relative;
      }
      ::syscall(SYS_futex, &signal_, FUTEX_WAIT_PRIVATE, 0, limit, nullptr, 0);
    }
    signal_.store(0, std::memory_order_relaxed);
    return 0;
  }
  void wake() noexcept override {
    signal_.store(1, std::memory_order_release);
    ::syscall(SYS_futex, &signal_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  }
  bool wants_poll() const noexcept override { return false; }

 private:
  std::atomic<std::uint32_t> signal_{0};
};

}  // namespace

std::unique_ptr<Driver> make_futex_driver() {
  return std::make_unique<FutexDriver>();
}

}  // namespace runloom
