// select over SelectSources.
//
// Two passes, each in a fresh random order: take what is ready without publishing anything; else
// enqueue one node per case, all with the same token, and park. A source that turns out to be
// ready meanwhile completes the case itself, after it won the wait (Joined::done).
//
// Locks are taken one at a time. Rejected: holding the locks of all channels, in address order,
// around both passes, as Go does. It needs no retry, but ties sources of every kind to one kind of
// lock, and holds n locks for 2n operations.
#include "runloom/sched/select.hpp"

#include <atomic>
#include <cstdint>

namespace runloom {
namespace detail {

struct SelectAccess {
  static WaitNode& node(SelectSource& source) noexcept { return source.node_; }
  static std::uint16_t& order(SelectSource& source) noexcept { return source.order_; }
};

namespace {

std::uint64_t scramble(std::uint64_t x) noexcept {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

std::uint64_t thread_seed() noexcept {
  static std::atomic<std::uint64_t> threads{0};
  return scramble(threads.fetch_add(1, std::memory_order_relaxed) + 1) ^
         static_cast<std::uint64_t>(monotonic_ns());
}

constinit thread_local std::uint64_t random_state = 0;

std::uint32_t random_below(std::uint32_t bound) noexcept {
  if (random_state == 0) [[unlikely]]
    random_state = thread_seed() | 1;
  // xorshift64*; the high half scaled, whose bias is below 2^-16 for 65,519 cases.
  random_state ^= random_state >> 12;
  random_state ^= random_state << 25;
  random_state ^= random_state >> 27;
  const auto high = static_cast<std::uint32_t>((random_state * 0x2545f4914f6cdd1d) >> 32);
  return static_cast<std::uint32_t>((std::uint64_t{high} * bound) >> 32);
}

using Cases = std::span<SelectSource* const>;
constexpr std::size_t kMostCases = 0xffff - kWakeUser;

// Fisher-Yates; the permutation lies in the cases, so that a select allocates nothing.
void shuffle(Cases cases) noexcept {
  for (std::uint32_t i = 0; i < cases.size(); ++i) {
    std::uint16_t& here = SelectAccess::order(*cases[i]);
    const std::uint32_t j = i == 0 ? 0 : random_below(i + 1);
    std::uint16_t& there = SelectAccess::order(*cases[j]);
    here = there;
    there = static_cast<std::uint16_t>(i);
  }
}

bool take_ready(Cases cases, std::size_t& fired) {
  shuffle(cases);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const std::size_t index = SelectAccess::order(*cases[i]);
    if (!cases[index]->try_take()) continue;
    fired = index;
    return true;
  }
  return false;
}

// One wait for all cases. kWakePending: start over.
WakeCode wait_for_any(Cases cases, Deadline deadline) {
  const WaitToken token = begin_wait();
  WakeCode code = kWakePending;
  Joined joined = Joined::waiting;
  bool external = false;
  std::size_t linked = 0;
  for (; linked < cases.size(); ++linked) {
    const std::size_t index = SelectAccess::order(*cases[linked]);
    WaitNode& node = SelectAccess::node(*cases[index]);
    node.token = token;
    node.code = static_cast<WakeCode>(kWakeUser + index);
    joined = cases[index]->enqueue(node);
    if (joined != Joined::waiting) {
      if (joined == Joined::done) code = node.code;
      break;
    }
    external |= cases[index]->external();
  }
  // Also when the wait is lost already: its claimer has made us runnable.
  if (joined == Joined::waiting || joined == Joined::lost)
    code = wait(token, {.reason = WaitReason::select, .deadline = deadline, .external = external});
  for (std::size_t i = 0; i < linked; ++i) {
    const std::size_t index = SelectAccess::order(*cases[i]);
    WaitNode& node = SelectAccess::node(*cases[index]);
    cases[index]->dequeue(node, node.code == code);
  }
  return code;
}

}  // namespace

void seed_select(std::uint64_t seed) noexcept {
  random_state = scramble(seed) | 1;
}

bool ChannelCase::try_take() {
  reset();
  const WakeCode code = direction_ == Direction::send ? core_.try_send(transfer_.value)
                                                      : core_.try_recv(transfer_.value);
  if (code == kWakePending) return false;
  outcome_ = code == kWakeUser ? Outcome::done : Outcome::closed;
  return true;
}

Joined ChannelCase::enqueue(WaitNode& node) {
  transfer_.closed = false;
  node.data = &transfer_;
  const Joined joined =
      direction_ == Direction::send ? core_.join_send(node) : core_.join_recv(node);
  if (joined == Joined::done) outcome_ = transfer_.closed ? Outcome::closed : Outcome::done;
  return joined;
}

void ChannelCase::dequeue(WaitNode& node, bool fired) noexcept {
  if (fired) {
    // The waker has unlinked the node.
    outcome_ = transfer_.closed ? Outcome::closed : Outcome::done;
  } else if (direction_ == Direction::send) {
    core_.leave_send(node);
  } else {
    core_.leave_recv(node);
  }
}

}  // namespace detail

Result<std::size_t> select(std::span<SelectSource* const> cases, Deadline deadline) {
  if (cases.empty() || cases.size() > detail::kMostCases)
    return fail(std::make_error_code(std::errc::invalid_argument));
  for (;;) {
    std::size_t fired = 0;
    if (detail::take_ready(cases, fired)) return fired;
    const detail::WakeCode code = detail::wait_for_any(cases, deadline);
    if (code >= detail::kWakeUser) return static_cast<std::size_t>(code - detail::kWakeUser);
    if (code != detail::kWakePending) return fail(detail::wake_error(code));
  }
}

Result<std::size_t> try_select(std::span<SelectSource* const> cases) {
  if (cases.empty() || cases.size() > detail::kMostCases)
    return fail(std::make_error_code(std::errc::invalid_argument));
  std::size_t fired = 0;
  if (detail::take_ready(cases, fired)) return fired;
  return fail(Errc::would_block);
}

}  // namespace runloom
