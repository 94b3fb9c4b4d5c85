#include "runloom/net/netpoll.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "hub_netpoll.hpp"
#include "netpoll_thread.hpp"
#include "readiness.hpp"
#include "runloom/sched/fiber.hpp"
#include "runloom/sched/scheduler.hpp"

namespace runloom::net {

using detail::WaitNode;
using detail::WakeCode;

std::atomic<unsigned> fork_generation{0};

namespace {
std::atomic<pid_t> known_pid{::getpid()};
}

void note_fork() noexcept {
  const pid_t pid = ::getpid();
  if (known_pid.exchange(pid, std::memory_order_relaxed) != pid)
    fork_generation.fetch_add(1, std::memory_order_relaxed);
}

// ---------------------------------------------------------------- which backend

namespace {

using Maker = Result<std::unique_ptr<Netpoll>> (*)();

Maker chosen_maker() noexcept {
  static const Maker chosen = [] {
    const char* name = std::getenv("RUNLOOM_NETPOLL");
    if (!name || *name == 0 || std::string_view(name) == "epoll") return &make_epoll_netpoll;
    if (std::string_view(name) == "poll") return &make_poll_netpoll;
    std::fprintf(stderr, "runloom: RUNLOOM_NETPOLL=%s is no backend (epoll, poll); using epoll\n",
                 name);
    return &make_epoll_netpoll;
  }();
  return chosen;
}

}  // namespace

Netpoll::Netpoll() noexcept : Driver(&kNetpollLayer) {}

Result<void> Netpoll::watch(const Watcher&) {
  return fail_errno(ENOTSUP);
}

Result<std::unique_ptr<Netpoll>> make_netpoll() {
  return chosen_maker()();
}

Result<Netpoll*> Netpoll::current() {
  if (Netpoll* netpoll = hub_netpoll()) return netpoll;
  Hub* hub = detail::fiber_hub();
  if (!hub) return &thread_netpoll();
  RUNLOOM_TRY(auto made, make_netpoll());
  auto* netpoll = made.get();
  hub->set_driver(std::move(made));
  return netpoll;
}

Result<std::size_t> Netpoll::recv_late(PollDesc& desc, RecvBuffer& buffer, Deadline deadline) {
  for (;;) {
    RUNLOOM_TRY([[maybe_unused]] const unsigned ready, poll_desc(desc, kRead, deadline));
    const std::span<std::byte> memory = buffer.take();
    if (memory.empty()) return fail_errno(ENOMEM);
    // A deadline that has passed: no wait, and nobody else runs in between.
    auto moved = recv(desc, memory, MSG_DONTWAIT, Deadline::now());
    buffer.give_back(moved ? static_cast<std::ptrdiff_t>(*moved) : -1);
    if (moved || moved.error() != errno_code(EAGAIN)) return moved;
  }
}

// ---------------------------------------------------------------- PollHome

void PollHome::forget(PollDesc& desc) noexcept {
  // A dead home's mutex may have been held by a thread that the fork left behind.
  if (!alive()) return;
  std::lock_guard hold(mutex);
  if (owner) owner->forget(desc);
}

void PollHome::announce(PollDesc& desc) noexcept {
  if (!alive()) return;
  std::lock_guard hold(mutex);
  if (owner) owner->waiter_added(desc);
}

void PollHome::retire() noexcept {
  ended.store(true, std::memory_order_release);
  if (fork == fork_generation.load(std::memory_order_relaxed)) {
    std::lock_guard hold(mutex);
    owner = nullptr;
  }
  drop_reference();
}

// ---------------------------------------------------------------- registration

ReadinessPoll::ReadinessPoll(bool follows_waiters)
    : home_(new PollHome(*this, Scheduler::current(), follows_waiters)) {}

ReadinessPoll::~ReadinessPoll() = default;

void ReadinessPoll::retire() noexcept {
  std::exchange(home_, nullptr)->retire();
}

void ReadinessPoll::renew() noexcept {
  if (!inherited()) return;
  auto* fresh = new PollHome(*this, home_->scheduler, home_->follows_waiters);
  std::exchange(home_, fresh)->retire();
  registered_.store(0, std::memory_order_relaxed);
  foreign_.clear();
  reopen();
}

// A PollDesc stays where it is if fibers of this scheduler can be woken from there, or if somebody
// waits on it there. Else it moves: nothing is lost, because a fresh registration reports what is
// ready.
Result<void> ReadinessPoll::adopt_slow(PollDesc& desc) {
  renew();
  PollHome* old;
  {
    std::lock_guard hold(desc.lock);
    if (desc.closed()) return fail(Errc::closed);
    old = desc.home.load(std::memory_order_relaxed);
    if (old == home_) return {};
    if (old && old->alive()) {
      const bool waited_on = desc.direction[kReadSide].waiter ||
                             desc.direction[kWriteSide].waiter || !desc.watchers.empty();
      if (waited_on || old->scheduler == home_->scheduler) return {};
    }
    home_->add_reference();
    desc.home.store(home_, std::memory_order_release);
  }
  if (old) {
    old->forget(desc);
    old->drop_reference();
  }
  registered_.fetch_add(1, std::memory_order_relaxed);
  auto armed = arm(desc);
  bool taken;  // closed, or moved on, while it was being registered
  {
    std::lock_guard hold(desc.lock);
    taken = desc.home.load(std::memory_order_relaxed) != home_;
    if (!armed && !taken) desc.home.store(nullptr, std::memory_order_relaxed);
  }
  if (armed) {
    if (taken) disarm(desc);
    return {};
  }
  if (!taken) {
    registered_.fetch_sub(1, std::memory_order_relaxed);
    home_->drop_reference();
    nudge(desc);  // who relied on this registration must make one of his own
  }
  return armed;
}

// ---------------------------------------------------------------- waits

Result<WakeCode> ReadinessPoll::await_event(PollDesc& desc, Side side, std::uint32_t seen,
                                            WaitReason reason, Deadline deadline) {
  if (auto adopted = adopt(desc); !adopted) return Unexpected{adopted.error()};
  PollDesc::Direction& direction = desc.direction[side];
  PollHome* follower = nullptr;
  desc.lock.lock();
  if (desc.closed()) {
    desc.lock.unlock();
    return WakeCode{detail::kWakeClosed};
  }
  PollHome* home = desc.home.load(std::memory_order_relaxed);
  if (direction.seq.load(std::memory_order_relaxed) != seen || !home) {
    desc.lock.unlock();
    return WakeCode{kWakeEvent};
  }
  WaitNode node(detail::begin_wait(), kWakeEvent);
  direction.waiter = &node;
  if (home->follows_waiters) {
    follower = home;
    follower->add_reference();
  }
  desc.lock.unlock();
  if (follower) {
    follower->announce(desc);
    follower->drop_reference();
  }
  const WakeCode code = detail::wait(
      node.token,
      {.reason = reason, .object = desc.shown(), .deadline = deadline, .external = true});
  if (code < kWakeEvent) {
    std::lock_guard hold(desc.lock);
    if (direction.waiter == &node) direction.waiter = nullptr;
  }
  return code;
}

bool ReadinessPoll::link_watch(PollDesc& desc, WaitNode& node) noexcept {
  PollHome* follower = nullptr;
  {
    std::lock_guard hold(desc.lock);
    PollHome* home = desc.home.load(std::memory_order_relaxed);
    if (desc.closed() || !home) return false;
    desc.watchers.push_back(node);
    if (home->follows_waiters) {
      follower = home;
      follower->add_reference();
    }
  }
  if (follower) {
    follower->announce(desc);
    follower->drop_reference();
  }
  return true;
}

void ReadinessPoll::unlink_watch(PollDesc& desc, WaitNode& node) noexcept {
  std::lock_guard hold(desc.lock);
  desc.watchers.remove_if_linked(node);
}

// True when the last attempt of each direction found it drained and no event has come since.
bool ReadinessPoll::known_drained(const PollDesc& desc, unsigned directions) noexcept {
  for (const Side side : {kReadSide, kWriteSide}) {
    const PollDesc::Direction& direction = desc.direction[side];
    if ((directions & direction_of(side)) && direction.seq.load(std::memory_order_acquire) !=
                                                 direction.drained.load(std::memory_order_relaxed))
      return false;
  }
  return true;
}

Result<WakeCode> ReadinessPoll::await_watch(PollDesc& desc, Watch& watch, Deadline deadline) {
  WaitNode node(detail::begin_wait(), kWakeEvent);
  node.data = &watch;
  do {
    // Without a home the registration has just failed elsewhere: try again.
    auto adopted = desc.closed() ? Result<void>(fail(Errc::closed)) : adopt(desc);
    if (!adopted) {
      detail::try_abandon(node.token);
      return Unexpected{adopted.error()};
    }
  } while (!link_watch(desc, node));
  // Linked first, then looked at: an event in between is not lost.
  std::error_code error;
  unsigned ready = 0;
  if (!known_drained(desc, watch.directions)) {
    const auto polled = poll_now(desc.fd, watch.directions);
    if (polled) {
      ready = *polled;
    } else {
      error = polled.error();
    }
  }
  WakeCode code = kWakeEvent;
  const bool decided = (ready != 0 || error) && detail::try_abandon(node.token);
  if (!decided)
    code = detail::wait(node.token, {.reason = WaitReason::io_poll,
                                     .object = desc.shown(),
                                     .deadline = deadline,
                                     .external = true});
  unlink_watch(desc, node);
  if (decided && error) return Unexpected{error};
  if (decided) watch.ready = ready;
  return code;
}

void ReadinessPoll::give_way() noexcept {
  this_fiber::yield();
}

void ReadinessPoll::before_accept() noexcept {
  constexpr int kAcceptsPerTurn = 64;
  constexpr int kLongestTurn = 64;  // yields
  const Hub& hub = *detail::fiber_hub();
  if (accept_turn_ == hub.turn_ns() && accepted_ >= kAcceptsPerTurn)
    for (int i = 0; i < kLongestTurn && accept_turn_ == hub.turn_ns(); ++i)
      this_fiber::yield();
  if (accept_turn_ != hub.turn_ns()) {
    accept_turn_ = hub.turn_ns();
    accepted_ = 0;
  }
  ++accepted_;
}

// ---------------------------------------------------------------- foreign descriptors

namespace {
// The number was closed behind our back and is now one of our own, whose registration with the
// same kernel object must not be touched.
bool is_ours(int fd) noexcept {
  PollDesc* desc = find_desc(fd);
  if (desc) leave(*desc);
  return desc != nullptr;
}
}  // namespace

Result<unsigned> ReadinessPoll::poll_foreign(int fd, unsigned directions, Deadline deadline) {
  Watch watch{directions};
  WaitNode node(detail::begin_wait(), kWakeEvent);
  node.data = &watch;
  if (auto linked = link_foreign(fd, node); !linked) {
    detail::try_abandon(node.token);
    return Unexpected{linked.error()};
  }
  const WakeCode code =
      detail::wait(node.token, {.reason = WaitReason::io_poll,
                                .object = reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)),
                                .deadline = deadline,
                                .external = true});
  unlink_foreign(fd, node);
  if (code == kWakeEvent) return watch.ready;
  return fail(detail::wake_error(code));
}

Result<void> ReadinessPoll::link_foreign(int fd, WaitNode& node) {
  renew();
  if (is_ours(fd)) return fail_errno(EBUSY);
  auto [it, fresh] = foreign_.try_emplace(fd);
  ForeignFd& entry = it->second;
  if (fresh) {
    entry.fd = fd;
    entry.id = ++next_foreign_id_ & kGenerationMask;
  }
  entry.waiters.push_back(node);
  if ((watch_of(node).directions & ~entry.armed) == 0) return {};
  auto armed = arm_foreign(entry);
  if (armed) {
    entry.armed = entry.wanted();
    return {};
  }
  entry.waiters.remove(node);
  if (entry.waiters.empty()) drop_foreign(it);
  return armed;
}

void ReadinessPoll::unlink_foreign(int fd, WaitNode& node) noexcept {
  if (!node.linked) return;
  const auto it = foreign_.find(fd);  // a linked node has kept its entry
  it->second.waiters.remove(node);
  if (it->second.waiters.empty()) drop_foreign(it);
}

void ReadinessPoll::drop_foreign(std::unordered_map<int, ForeignFd>::iterator entry) noexcept {
  if (!is_ours(entry->first)) disarm_foreign(entry->second);
  foreign_.erase(entry);
}

void ReadinessPoll::foreign_event(int fd, std::uint32_t id, unsigned ready) noexcept {
  const auto it = foreign_.find(fd);
  if (it == foreign_.end() || it->second.id != id) return;
  ForeignFd& entry = it->second;
  entry.armed = 0;
  const auto schedule = [](WaitNode& node) { detail::schedule(node.token.waiter); };
  claim_watchers(entry.waiters, ready, schedule);
  if (entry.waiters.empty()) {
    drop_foreign(it);
    return;
  }
  if (!is_ours(fd) && arm_foreign(entry)) {
    entry.armed = entry.wanted();
    return;
  }
  // It can't be watched any longer (closed meanwhile): let the waiters find out themselves.
  claim_watchers(entry.waiters, kRead | kWrite, schedule);
  drop_foreign(it);
}

std::size_t ReadinessPoll::end_foreign(int fd, WakeCode code) noexcept {
  const auto it = foreign_.find(fd);
  if (it == foreign_.end()) return 0;
  std::size_t count = 0;
  while (WaitNode* node = it->second.waiters.pop_front())
    count += detail::wake(node->token, code) ? 1 : 0;
  drop_foreign(it);
  return count;
}

}  // namespace runloom::net
