// The epoll backend.
//
// A PollDesc is registered once, edge-triggered, for both directions: no system call a wait, and
// a level that nobody waits for doesn't spin. A foreign descriptor is registered one-shot while
// somebody waits on it.
//
// Never reads SO_ERROR: that would eat the error, and a reset would look like the end of the
// stream.
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdio>
#include <utility>

#include "file_ring.hpp"
#include "foreign_epoll.hpp"
#include "high_fd.hpp"
#include "readiness.hpp"

namespace runloom::net {
namespace {

constexpr int kBatch = 64;  // about what a turn runs
constexpr std::uint32_t kSticky = EPOLLRDHUP | EPOLLHUP | EPOLLERR | EPOLLPRI;
// An event of a PollDesc, and not one of a stranger's poller that has got our number.
bool is_desc(const epoll_event& event) noexcept {
  return event_tag(event.data.u64) == EventTag::desc && event.data.u64 >> 23 != 0;
}

class EpollNetpoll final : public ReadinessPoll {
 public:
  EpollNetpoll() : ReadinessPoll(false) {}
  ~EpollNetpoll() override {
    retire();
    close_all();
  }
  // Zero, or an errno; nothing is left open then.
  int open() noexcept;

  std::string_view name() const noexcept override { return "epoll"; }
  int poll(std::int64_t timeout_ns) override;
  void wake() noexcept override;
  bool wants_poll() const noexcept override { return ReadinessPoll::wants_poll() || files_.busy(); }
  void leave_thread() noexcept override {
    if (!inherited()) files_.leave_thread();
  }
  Uring* file_ring() noexcept override {
    renew();
    return files_.get(wake_);
  }
  Result<void> watch(const Watcher& watcher) override;

 private:
  Result<void> arm(PollDesc& desc) override;
  Result<void> arm_guest(PollDesc& desc) override { return add(desc, kBoth); }
  bool begins_reads_only(const PollDesc& desc) const noexcept override;
  void waiter_added(PollDesc& desc) noexcept override;
  void disarm(PollDesc& desc) noexcept override;
  Result<void> arm_foreign(ForeignFd& entry) override;
  void disarm_foreign(ForeignFd& entry) noexcept override;
  void reopen() noexcept override;
  bool revive() noexcept override;
  void close_all() noexcept;
  void lost() noexcept;
  int wait(std::int64_t timeout_ns) noexcept;
  static constexpr std::uint32_t kBoth = EPOLLIN | EPOLLOUT | EPOLLPRI | EPOLLRDHUP | EPOLLET;
  Result<void> add(PollDesc& desc, std::uint32_t events);
  int control(int operation, const PollDesc& desc, std::uint32_t events) noexcept;
  void deliver(int count) noexcept;
  void deliver(const epoll_event& event) noexcept;

  std::atomic<int> epoll_{-1};
  std::atomic<int> wake_{-1};
  FileRing files_;
  bool nanoseconds_ = true;  // epoll_pwait2 works
  epoll_event events_[kBatch];
};

epoll_event wake_event() noexcept {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;  // each write is an edge: nobody needs to read it
  event.data.u64 = static_cast<std::uint64_t>(EventTag::wake);
  return event;
}

int EpollNetpoll::open() noexcept {
  epoll_ = move_high(::epoll_create1(EPOLL_CLOEXEC));
  if (epoll_ >= 0) wake_ = move_high(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_event event = wake_event();
  if (wake_ >= 0 && ::epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &event) == 0) return 0;
  const int err = errno;
  close_all();
  return err;
}

void EpollNetpoll::close_all() noexcept {
  if (epoll_ >= 0) ::close(epoll_);
  if (wake_ >= 0) ::close(wake_);
  epoll_ = -1;
  wake_ = -1;
}

void EpollNetpoll::reopen() noexcept {
  watcher_ = {};
  files_.abandon();
  close_all();
  open();  // else tried again by whoever needs it
}

// ---------------------------------------------------------------- registration

int EpollNetpoll::control(int operation, const PollDesc& desc, std::uint32_t events) noexcept {
  epoll_event event{};
  event.events = events;
  event.data.u64 = event_word(desc);
  return ::epoll_ctl(epoll_, operation, desc.fd, &event) == 0 ? 0 : errno;
}

Result<void> EpollNetpoll::add(PollDesc& desc, std::uint32_t events) {
  if (epoll_ < 0) {
    if (const int err = open(); err != 0) return fail_errno(err);
  }
  int err = control(EPOLL_CTL_ADD, desc, events);
  // It is, or its description was, a guest here, and may have waiters of any kind.
  if (err == EEXIST) err = control(EPOLL_CTL_MOD, desc, kBoth);
  return err == 0 ? Result<void>() : fail_errno(err);
}

// A datagram socket has room again whenever one that it has sent was received: an event, and with
// it a system call more, for each. Streams tell of room only after they were full.
bool EpollNetpoll::begins_reads_only(const PollDesc& desc) const noexcept {
  return desc.kind == FdKind::datagram;
}

Result<void> EpollNetpoll::arm(PollDesc& desc) {
  if (!desc.reads_only.load()) return add(desc, kBoth);
  auto added = add(desc, kBoth & ~std::uint32_t{EPOLLOUT});
  // A writer of another hub has come meanwhile, perhaps before there was anything to change.
  if (added && !desc.reads_only.load()) (void)control(EPOLL_CTL_MOD, desc, kBoth);
  return added;
}

// Any thread. The change tells at once if there is room. Where it fails the descriptor is not
// registered yet, see arm(), or no longer, and then whoever waits is woken.
void EpollNetpoll::waiter_added(PollDesc& desc) noexcept {
  if (desc.reads_only.exchange(false)) (void)control(EPOLL_CTL_MOD, desc, kBoth);
}

void EpollNetpoll::disarm(PollDesc& desc) noexcept {
  ::epoll_ctl(epoll_, EPOLL_CTL_DEL, desc.fd, nullptr);
}

Result<void> EpollNetpoll::arm_foreign(ForeignFd& entry) {
  if (epoll_ < 0) {
    if (const int err = open(); err != 0) return fail_errno(err);
  }
  return epoll_arm_foreign(epoll_, entry);
}

void EpollNetpoll::disarm_foreign(ForeignFd& entry) noexcept {
  epoll_disarm_foreign(epoll_, entry);
}

Result<void> EpollNetpoll::watch(const Watcher& watcher) {
  if (watcher.fd == watcher_.fd && watcher.ready == watcher_.ready && watcher.arg == watcher_.arg)
    return {};
  if (watcher_.fd >= 0) ::epoll_ctl(epoll_, EPOLL_CTL_DEL, watcher_.fd, nullptr);
  watcher_ = watcher;
  if (watcher.fd < 0) return {};
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = static_cast<std::uint64_t>(EventTag::watcher);
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, watcher.fd, &event) == 0) return {};
  const auto error = last_errno();
  watcher_ = {};
  return fail(error);
}

// ---------------------------------------------------------------- polling

int EpollNetpoll::wait(std::int64_t timeout_ns) noexcept {
  if (timeout_ns > 0) {
    if (nanoseconds_) {
      const timespec timeout{static_cast<time_t>(timeout_ns / 1'000'000'000),
                             static_cast<long>(timeout_ns % 1'000'000'000)};
      const long count =
          ::syscall(SYS_epoll_pwait2, epoll_.load(), events_, kBatch, &timeout, nullptr, 0);
      if (count >= 0 || (errno != ENOSYS && errno != EPERM)) return static_cast<int>(count);
      // ENOSYS from an older kernel, EPERM from a container's filter of system calls.
      nanoseconds_ = false;
    }
    const std::int64_t ms = (timeout_ns - 1) / 1'000'000 + 1;  // never early
    return ::epoll_wait(epoll_, events_, kBatch,
                        static_cast<int>(std::min<std::int64_t>(ms, INT_MAX)));
  }
  return ::epoll_wait(epoll_, events_, kBatch, timeout_ns == 0 ? 0 : -1);
}

int EpollNetpoll::poll(std::int64_t timeout_ns) {
  if (inherited()) [[unlikely]]
    renew();
  if (epoll_ < 0) [[unlikely]] {
    // A forked child without descriptors to spare: nothing to wait for until there are some.
    if (open() != 0) {
      constexpr std::int64_t kRetryNs = 10'000'000;
      const timespec nap{0, timeout_ns < 0 ? kRetryNs : std::min(timeout_ns, kRetryNs)};
      ::nanosleep(&nap, nullptr);
      return 0;
    }
  }
  if (files_.submit() > 0 || files_.has_work()) timeout_ns = 0;
  timeout_ns = files_.most_sleep(timeout_ns);
  const int count = wait(timeout_ns);
  if (files_.is_blind()) [[unlikely]]
    files_.turn();
  if (count < 0 && errno != EINTR) [[unlikely]]
    lost();
  deliver(std::max(count, 0));
  return std::max(count, 0);
}

bool EpollNetpoll::revive() noexcept {
  epoll_event event = wake_event();
  if (epoll_ < 0 || ::epoll_ctl(epoll_, EPOLL_CTL_MOD, wake_, &event) == 0) return false;
  lost();
  return true;
}

// A program that closes all descriptors, to become a daemon, say, closes ours as well. Their
// numbers may be others' by now, so nothing is done to them. A hub that sleeps in the kernel when
// that happens finds out when its next event or timer ends the sleep: nothing else can wake it.
void EpollNetpoll::lost() noexcept {
  tell_lost();
  watcher_ = {};  // its number may be another's, too
  epoll_ = -1;
  wake_ = -1;
  files_.lost();
  open();
  recover();
}

// With many connections each event finds cold what it touches: the PollDesc, then the wait node,
// then the fiber. They are fetched a few events ahead, so that these misses overlap.
void EpollNetpoll::deliver(int count) noexcept {
  constexpr int kAhead = 4;
  const auto fetch_desc = [this, count](int k) {
    if (k >= count || !is_desc(events_[k])) return;
    const auto* desc = reinterpret_cast<const char*>(&event_desc(events_[k].data.u64));
    __builtin_prefetch(desc, 1);
    __builtin_prefetch(desc + 64, 1);
  };
  const auto fetch_reader = [this, count](int k) {
    if (k >= count || !is_desc(events_[k])) return;
    const PollDesc& desc = event_desc(events_[k].data.u64);
    const auto* waiter = static_cast<const char*>(desc.reader.load(std::memory_order_relaxed));
    __builtin_prefetch(desc.reader_node.load(std::memory_order_relaxed));
    __builtin_prefetch(waiter, 1);
    __builtin_prefetch(waiter + 64, 1);
  };
  for (int k = 0; k < 2 * kAhead; ++k)
    fetch_desc(k);
  for (int k = 0; k < kAhead; ++k)
    fetch_reader(k);
  for (int k = 0; k < count; ++k) {
    fetch_desc(k + 2 * kAhead);
    fetch_reader(k + kAhead);
    deliver(events_[k]);
  }
}

void EpollNetpoll::deliver(const epoll_event& event) noexcept {
  const std::uint64_t word = event.data.u64;
  switch (event_tag(word)) {
    case EventTag::desc:
      if (!is_desc(event)) break;
      deliver_event(event_desc(word), event_generation(word), ready_of(event.events),
                    event.events & kSticky);
      break;
    case EventTag::foreign:
      epoll_foreign_event(*foreign_, event);
      break;
    case EventTag::wake:
      if (files_.busy()) files_.turn();
      break;
    case EventTag::watcher:
      if (watcher_.fd >= 0) watcher_.ready(watcher_.arg);
      break;
  }
}

void EpollNetpoll::wake() noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_, &one, sizeof one);
}

}  // namespace

Result<std::unique_ptr<Netpoll>> make_epoll_netpoll() {
  auto netpoll = std::make_unique<EpollNetpoll>();
  if (const int err = netpoll->open(); err != 0) return fail_errno(err);
  return std::unique_ptr<Netpoll>(std::move(netpoll));
}

}  // namespace runloom::net
