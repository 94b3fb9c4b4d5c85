#include "runloom/net/netpoll.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "hub_netpoll.hpp"
#include "netpoll_thread.hpp"
#include "netpoll_uring.hpp"
#include "poll_home.hpp"

namespace runloom::net {

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

std::mutex fallback_mutex;
std::string fallback;  // guarded by it

}  // namespace

Result<std::unique_ptr<Netpoll>> make_uring_or_epoll_netpoll() {
  std::string why;
  auto made = UringNetpoll::make(&why);
  if (made) return std::unique_ptr<Netpoll>(std::move(*made));
  {
    std::lock_guard hold(fallback_mutex);
    if (fallback.empty()) {
      fallback = "io_uring can't be used: " + why;
      std::fprintf(stderr, "runloom: %s; using epoll\n", fallback.c_str());
    }
  }
  return make_epoll_netpoll();
}

namespace {

Maker chosen_maker() noexcept {
  static const Maker chosen = [] {
    const char* name = std::getenv("RUNLOOM_NETPOLL");
    if (!name || *name == 0 || std::string_view(name) == "epoll") return &make_epoll_netpoll;
    if (std::string_view(name) == "poll") return &make_poll_netpoll;
    if (std::string_view(name) == "io_uring") return &make_uring_or_epoll_netpoll;
    std::fprintf(stderr,
                 "runloom: RUNLOOM_NETPOLL=%s is no backend (io_uring, epoll, poll); using epoll\n",
                 name);
    return &make_epoll_netpoll;
  }();
  return chosen;
}

}  // namespace

std::string netpoll_fallback() {
  std::lock_guard hold(fallback_mutex);
  return fallback;
}

Netpoll::Netpoll() noexcept : Driver(&kNetpollLayer) {}

Result<void> Netpoll::link(PollDesc&, detail::WaitNode&) {
  return fail_errno(ENOTSUP);
}
void Netpoll::unlink(PollDesc&, detail::WaitNode&) noexcept {}
Result<void> Netpoll::link_foreign(int, detail::WaitNode&) {
  return fail_errno(ENOTSUP);
}
void Netpoll::unlink_foreign(int, detail::WaitNode&) noexcept {}

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

Result<std::size_t> Netpoll::attempt(PollDesc& desc, unsigned direction, Attempt& attempt,
                                     int flags, Deadline deadline) {
  for (;;) {
    const ssize_t moved = attempt.make(desc.fd);
    if (moved >= 0) return static_cast<std::size_t>(moved);
    if (errno == EINTR) continue;
    if (errno != EAGAIN || (flags & MSG_DONTWAIT)) return fail(last_errno());
    RUNLOOM_TRY([[maybe_unused]] const unsigned ready, poll_desc(desc, direction, deadline));
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

}  // namespace runloom::net
