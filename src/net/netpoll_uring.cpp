#include "netpoll_uring.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "foreign_epoll.hpp"
#include "high_fd.hpp"
#include "poll_home.hpp"
#include "uring_operations.hpp"

namespace runloom::net {
namespace {

// A hub with many connections submits more than this in a turn in several system calls.
constexpr unsigned kEntries = 1024;

}  // namespace

// ---------------------------------------------------------------- life

UringNetpoll::UringNetpoll(std::unique_ptr<Uring> ring)
    : buffers_(UringBuffers::make(*ring)),
      ring_(std::move(ring)),
      foreign_(std::make_unique<ForeignFds>(*this)),
      fork_(fork_generation.load(std::memory_order_relaxed)),
      wake_poll_([](UringOp&, int, std::uint32_t) noexcept {}),
      epoll_poll_(
          [](UringOp& op, int, std::uint32_t) noexcept { static_cast<OwnPoll&>(op).came = true; }),
      watcher_poll_(
          [](UringOp& op, int, std::uint32_t) noexcept { static_cast<OwnPoll&>(op).came = true; }) {
  enlist();
}

UringNetpoll::~UringNetpoll() {
  delist();
  ring_.reset();
  while (selects_)
    drop(*selects_);
  close_all();
}

// The kernel takes a ring from one thread only, and closing it lets go of the descriptors in it
// only some time later. So what is being cancelled, by fibers that have left, comes to its end
// first.
void UringNetpoll::leave_thread() noexcept {
  if (inherited() || !ring_->usable()) return;
  for (OwnPoll* op : {&wake_poll_, &epoll_poll_, &watcher_poll_})
    ring_->cancel(*op);
  constexpr int kMostTurns = 100;
  constexpr std::int64_t kPatienceNs = 10'000'000;
  for (int turn = 0; turn < kMostTurns && ring_->ending() != 0; ++turn)
    ring_->enter(kPatienceNs);
  if (ring_->in_flight() != 0) return;  // there are fibers that still wait
  ring_->shut();
  forget_own();
}

void UringNetpoll::forget_own() noexcept {
  for (OwnPoll* op : {&wake_poll_, &epoll_poll_, &watcher_poll_})
    op->in_flight = op->cancelling = op->came = false;
}

Result<std::unique_ptr<UringNetpoll>> UringNetpoll::make(std::string* why) {
  RUNLOOM_TRY(auto ring, Uring::make(kEntries, why));
  std::unique_ptr<UringNetpoll> made(new UringNetpoll(std::move(ring)));
  if (const int err = made->open(); err != 0) {
    if (why) *why = "eventfd: " + errno_code(err).message();
    return fail_errno(err);
  }
  return made;
}

int UringNetpoll::open() noexcept {
  wake_ = move_high(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (wake_ >= 0) epoll_ = move_high(::epoll_create1(EPOLL_CLOEXEC));
  if (epoll_ >= 0) return 0;
  const int err = errno;
  close_all();
  return err;
}

void UringNetpoll::close_all() noexcept {
  if (wake_ >= 0) ::close(wake_);
  if (epoll_ >= 0) ::close(epoll_);
  wake_ = -1;
  epoll_ = -1;
}

bool UringNetpoll::inherited() const noexcept {
  return fork_ != fork_generation.load(std::memory_order_relaxed);
}

void UringNetpoll::after_fork() noexcept {
  note_fork();
  renew();
}

// In a forked child: nobody waits for what is in flight in the parent's ring.
void UringNetpoll::renew() noexcept {
  if (!inherited()) return;
  fork_ = fork_generation.load(std::memory_order_relaxed);
  ring_->abandon();
  close_all();
  watcher_ = {};
  forget_own();
  selects_ = nullptr;  // they belonged to fibers that are gone, and their PollDescs were reset
  [[maybe_unused]] ForeignFds* abandoned = foreign_.release();
  foreign_ = std::make_unique<ForeignFds>(*this);
  reopen();
}

void UringNetpoll::reopen() noexcept {
  auto ring = Uring::make(kEntries);
  if (!ring) return;
  ring_ = std::move(*ring);
  buffers_ = UringBuffers::make(*ring_);
  if (wake_ < 0) open();
}

// ---------------------------------------------------------------- polling

void UringNetpoll::poll_own(OwnPoll& op, int fd, bool many) noexcept {
  if (op.in_flight || fd < 0) return;
  io_uring_sqe* sqe = ring_->prepare();
  if (!sqe) return;  // with the next turn
  if (many) {
    io_uring_prep_poll_multishot(sqe, fd, POLLIN);
  } else {
    io_uring_prep_poll_add(sqe, fd, POLLIN);
  }
  ring_->start(*sqe, op);
}

int UringNetpoll::poll(std::int64_t timeout_ns) {
  if (inherited()) [[unlikely]]
    renew();
  if (!ring_->usable()) [[unlikely]]
    return wait_for_ring(timeout_ns);
  // One more system call a sleep: nothing else tells.
  if (timeout_ns != 0 && ::lseek(wake_, 0, SEEK_CUR) < 0 && errno == EBADF) [[unlikely]]
    lost();
  // Each write to the eventfd is an event: nobody needs to read it.
  poll_own(wake_poll_, wake_, true);
  if (!foreign_->empty()) poll_own(epoll_poll_, epoll_, false);
  poll_own(watcher_poll_, watcher_.fd, false);
  const int count = ring_->enter(timeout_ns);
  if (std::exchange(epoll_poll_.came, false)) drain_foreign();
  if (std::exchange(watcher_poll_.came, false) && watcher_.fd >= 0) watcher_.ready(watcher_.arg);
  return std::max(count, 0);
}

// A program that closes all descriptors, to become a daemon, say, closes ours as well. The ring
// doesn't need its number, and what is in flight in it goes on. The numbers may be others' by now,
// so nothing is done to them.
void UringNetpoll::lost() noexcept {
  tell_lost();
  ring_->forget_number();
  // They are armed anew when these have ended.
  ring_->cancel(wake_poll_);
  ring_->cancel(epoll_poll_);
  ring_->cancel(watcher_poll_);
  watcher_ = {};
  wake_ = -1;
  epoll_ = -1;
  open();
  foreign_->rearm_all();
}

bool UringNetpoll::revive_after(std::error_code error) noexcept {
  if (error != errno_code(EBADF) && error != errno_code(EINVAL)) return false;
  epoll_event event;
  if (::epoll_wait(epoll_, &event, 1, 0) >= 0) return false;
  lost();
  return true;
}

// A forked child without memory or descriptors to spare: nothing to wait for until there are some.
int UringNetpoll::wait_for_ring(std::int64_t timeout_ns) noexcept {
  reopen();
  if (ring_->usable()) return 0;
  constexpr std::int64_t kRetryNs = 10'000'000;
  const timespec nap{0, timeout_ns < 0 ? kRetryNs : std::min(timeout_ns, kRetryNs)};
  ::nanosleep(&nap, nullptr);
  return 0;
}

bool UringNetpoll::wants_poll() const noexcept {
  // poll() has to start the watch of descriptors that are not ours before anything can come of it.
  return ring_->has_work() || (!foreign_->empty() && !epoll_poll_.in_flight);
}

void UringNetpoll::wake() noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_, &one, sizeof one);
}

Result<void> UringNetpoll::watch(const Watcher& watcher) {
  if (watcher.fd == watcher_.fd && watcher.ready == watcher_.ready && watcher.arg == watcher_.arg)
    return {};
  // poll() watches the new one when the old one's operation has ended.
  ring_->cancel(watcher_poll_);
  watcher_ = watcher;
  return {};
}

// ---------------------------------------------------------------- descriptors that are not ours

void UringNetpoll::drain_foreign() noexcept {
  constexpr int kBatch = 64;
  epoll_event events[kBatch];
  const int count = ::epoll_wait(epoll_, events, kBatch, 0);
  if (count < 0) (void)revive_after(last_errno());
  for (int k = 0; k < count; ++k)
    epoll_foreign_event(*foreign_, events[k]);
}

Result<void> UringNetpoll::arm_foreign(ForeignFd& entry) {
  return epoll_arm_foreign(epoll_, entry);
}

void UringNetpoll::disarm_foreign(ForeignFd& entry) noexcept {
  epoll_disarm_foreign(epoll_, entry);
}

void UringNetpoll::claim_foreign(int fd, detail::WakeCode code,
                                 std::vector<detail::Waiter*>& claimed) {
  if (!inherited()) foreign_->claim(fd, code, claimed);
}

Result<void> UringNetpoll::link_foreign(int fd, detail::WaitNode& node) {
  if (inherited()) renew();
  auto linked = foreign_->link(fd, node);
  if (!linked && revive_after(linked.error())) linked = foreign_->link(fd, node);
  return linked;
}

void UringNetpoll::unlink_foreign(int fd, detail::WaitNode& node) noexcept {
  foreign_->settle(fd, node);
}

Result<unsigned> UringNetpoll::poll_foreign(int fd, unsigned directions, Deadline deadline) {
  if (inherited()) renew();
  auto ready = foreign_->wait(fd, directions, deadline);
  if (!ready && revive_after(ready.error())) ready = foreign_->wait(fd, directions, deadline);
  return ready;
}

// ---------------------------------------------------------------- making

Result<std::unique_ptr<Netpoll>> make_uring_netpoll() {
  RUNLOOM_TRY(auto made, UringNetpoll::make(nullptr));
  return std::unique_ptr<Netpoll>(std::move(made));
}

}  // namespace runloom::net
