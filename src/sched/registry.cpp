// Introspection: which fibers live and what they wait for.
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "scheduler_impl.hpp"

namespace runloom {
namespace {

const char* state_name(detail::FiberState state) noexcept {
  switch (state) {
    case detail::FiberState::fresh:
      return "new";
    case detail::FiberState::runnable:
      return "runnable";
    case detail::FiberState::running:
      return "running";
    case detail::FiberState::parked:
      return "parked";
    case detail::FiberState::ended:
      return "ended";
  }
  return "?";
}

// A line in a fixed buffer: usable in a signal handler.
class Line {
 public:
  explicit Line(int fd) noexcept : fd_(fd) {}
  Line& text(const char* text) noexcept {
    while (*text && size_ < sizeof buffer_)
      buffer_[size_++] = *text++;
    return *this;
  }
  Line& number(std::uint64_t value) noexcept {
    char digits[20];
    int count = 0;
    do
      digits[count++] = static_cast<char>('0' + value % 10);
    while (value /= 10);
    while (count > 0 && size_ < sizeof buffer_)
      buffer_[size_++] = digits[--count];
    return *this;
  }
  void end() noexcept {
    text("\n");
    [[maybe_unused]] auto written = ::write(fd_, buffer_, size_);
    size_ = 0;
  }

 private:
  int fd_;
  std::size_t size_ = 0;
  char buffer_[256];
};

bool waits_on_descriptor(WaitReason reason) noexcept {
  return reason >= WaitReason::io_read && reason <= WaitReason::io_poll;
}

}  // namespace

std::vector<FiberInfo> Scheduler::fibers() const {
  std::vector<FiberInfo> all;
  const std::int64_t now = monotonic_ns();
  detail::for_each_fiber(this, [&](detail::Fiber& fiber) {
    const auto state = fiber.state.load(std::memory_order_relaxed);
    if (state == detail::FiberState::ended) return;
    FiberInfo info;
    info.id = detail::fiber_id(&fiber);
    info.name = fiber.name;
    info.state = state_name(state);
    if (state == detail::FiberState::parked) {
      info.reason = fiber.reason.load(std::memory_order_relaxed);
      info.object = fiber.object.load(std::memory_order_relaxed);
    }
    const std::int64_t since = fiber.since.load(std::memory_order_relaxed);
    if (since != 0 && now > since) info.age = std::chrono::nanoseconds(now - since);
    info.hub = fiber.hub_index.load(std::memory_order_relaxed);
    info.stack_size = static_cast<std::size_t>(fiber.slot->high() - fiber.slot->low());
    info.local = fiber.local;
    all.push_back(std::move(info));
  });
  return all;
}

void Scheduler::dump(int fd) const noexcept {
  std::uint64_t count[5] = {};
  detail::for_each_fiber(this, [&](detail::Fiber& fiber) {
    ++count[static_cast<int>(fiber.state.load(std::memory_order_relaxed))];
  });
  Line line(fd);
  line.text("fibers:");
  for (int i = 0; i < 4; ++i) {
    if (count[i] == 0) continue;
    line.text(" ").number(count[i]).text(" ").text(state_name(static_cast<detail::FiberState>(i)));
  }
  line.end();
  timespec clock;
  ::clock_gettime(CLOCK_MONOTONIC, &clock);
  const std::int64_t now = std::int64_t{clock.tv_sec} * 1'000'000'000 + clock.tv_nsec;
  detail::for_each_fiber(this, [&](detail::Fiber& fiber) {
    const auto state = fiber.state.load(std::memory_order_relaxed);
    if (state == detail::FiberState::ended) return;
    line.text("  fiber ").number(detail::fiber_id(&fiber)).text(" '").text(fiber.name);
    line.text("' hub ").number(
        static_cast<std::uint64_t>(fiber.hub_index.load(std::memory_order_relaxed)));
    line.text(" ").text(state_name(state));
    if (state == detail::FiberState::parked) {
      const WaitReason reason = fiber.reason.load(std::memory_order_relaxed);
      line.text(" in ").text(to_string(reason));
      if (waits_on_descriptor(reason))
        line.text(" fd ").number(
            reinterpret_cast<std::uintptr_t>(fiber.object.load(std::memory_order_relaxed)));
      const std::int64_t since = fiber.since.load(std::memory_order_relaxed);
      if (since != 0 && now > since)
        line.text(" for ").number(static_cast<std::uint64_t>(now - since) / 1'000'000).text(" ms");
    }
    line.end();
  });
}

void Scheduler::after_fork() noexcept {}

}  // namespace runloom
