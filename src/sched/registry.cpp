// Introspection: which fibers live and what they wait for.
#include <cstring>
#include <mutex>

#include "line.hpp"
#include "runloom/sched/fault.hpp"
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

bool waits_on_descriptor(WaitReason reason) noexcept {
  return reason >= WaitReason::io_read && reason <= WaitReason::io_poll;
}

void describe(detail::Line& line, const detail::StackSlot& slot, const detail::Fiber& fiber,
              std::int64_t now) noexcept {
  const auto state = fiber.state.load(std::memory_order_relaxed);
  line.text("  fiber ").number(slot.id.load(std::memory_order_relaxed)).text(" '");
  line.text(fiber.name, sizeof fiber.name).text("' hub ");
  line.number(static_cast<std::uint64_t>(fiber.hub_index.load(std::memory_order_relaxed)));
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
}

}  // namespace

std::vector<FiberInfo> Scheduler::fibers() const {
  struct Seen {  // copied under the fiber's lock; the rest is worked out after it
    FiberId id;
    char name[sizeof(detail::Fiber::name)];
    detail::FiberState state;
    WaitReason reason;
    const void* object;
    std::int64_t since;
    int hub;
    std::size_t stack_size;
    void* local;
  };
  std::vector<FiberInfo> all;
  const std::int64_t now = monotonic_ns();
  detail::for_each_slot([&](detail::StackSlot& slot) {
    Seen seen;
    if (!detail::with_fiber(slot, this, [&](const detail::Fiber& fiber) {
          seen.id = slot.id.load(std::memory_order_relaxed);
          std::memcpy(seen.name, fiber.name, sizeof seen.name);
          seen.state = fiber.state.load(std::memory_order_relaxed);
          seen.reason = fiber.reason.load(std::memory_order_relaxed);
          seen.object = fiber.object.load(std::memory_order_relaxed);
          seen.since = fiber.since.load(std::memory_order_relaxed);
          seen.hub = fiber.hub_index.load(std::memory_order_relaxed);
          seen.stack_size = static_cast<std::size_t>(slot.high() - slot.low());
          seen.local = fiber.local;
        }))
      return;
    FiberInfo info;
    info.id = seen.id;
    info.name = seen.name;
    info.state = state_name(seen.state);
    if (seen.state == detail::FiberState::parked) {
      info.reason = seen.reason;
      info.object = seen.object;
    }
    if (seen.since != 0 && now > seen.since) info.age = std::chrono::nanoseconds(now - seen.since);
    info.hub = seen.hub;
    info.stack_size = seen.stack_size;
    info.local = seen.local;
    all.push_back(std::move(info));
  });
  return all;
}

namespace {

// Of one scheduler, or (null) of all. In a signal handler the lock of a fiber may be held by the
// very thread that was interrupted, so it is tried only; a fiber that can't be locked is shown by
// its number.
void dump_fibers(const Scheduler* scheduler, int fd) noexcept {
  std::uint64_t count[5] = {};
  std::uint64_t busy = 0;
  timespec clock;
  ::clock_gettime(CLOCK_MONOTONIC, &clock);
  const std::int64_t now = std::int64_t{clock.tv_sec} * 1'000'000'000 + clock.tv_nsec;
  detail::Line line(fd);
  detail::for_each_slot([&](detail::StackSlot& slot) {
    if (slot.done.load(std::memory_order_acquire)) return;
    if (!slot.lock.try_lock()) {
      ++busy;
      return;
    }
    const detail::Fiber& fiber = detail::fiber_of(slot);
    if (!slot.done.load(std::memory_order_acquire) &&
        (!scheduler || fiber.scheduler == scheduler)) {
      ++count[static_cast<int>(fiber.state.load(std::memory_order_relaxed))];
      describe(line, slot, fiber, now);
    }
    slot.lock.unlock();
  });
  line.text("fibers:");
  for (int i = 0; i < 5; ++i) {
    if (count[i] == 0) continue;
    line.text(" ").number(count[i]).text(" ").text(state_name(static_cast<detail::FiberState>(i)));
  }
  if (busy != 0) line.text(" ").number(busy).text(" changing");
  line.end();
}

}  // namespace

void Scheduler::dump(int fd) const noexcept {
  dump_fibers(this, fd);
}

void dump_all_fibers(int fd) noexcept {
  dump_fibers(nullptr, fd);
}

}  // namespace runloom
