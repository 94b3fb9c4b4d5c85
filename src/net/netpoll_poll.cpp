// The poll(2) backend, for where epoll can't be had. Level-triggered, so each turn asks only for
// the directions that somebody waits for: a level that nobody wants can't spin.
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

#include "high_fd.hpp"
#include "readiness.hpp"
#include "runloom/sched/scheduler.hpp"

namespace runloom::net {
namespace {

constexpr short kStickyEvents = POLLRDHUP | POLLHUP | POLLERR | POLLPRI;

class PollNetpoll final : public ReadinessPoll {
 public:
  PollNetpoll() : ReadinessPoll(true), hub_(Hub::current()) {}
  ~PollNetpoll() override {
    retire();
    if (wake_ >= 0) ::close(wake_);
  }
  int open() noexcept {
    wake_ = move_high(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    return wake_ >= 0 ? 0 : errno;
  }

  std::string_view name() const noexcept override { return "poll"; }
  int poll(std::int64_t timeout_ns) override;
  void wake() noexcept override {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(wake_, &one, sizeof one);
  }
  void waiter_added(PollDesc& desc) noexcept override;
  void forget(PollDesc& desc) noexcept override;
  Result<void> watch(const Watcher& watcher) override {
    watcher_ = watcher;
    return {};
  }

 private:
  static constexpr std::size_t kFixed = 2;  // requests that are no descriptor's: wake_, watcher_

  // What a slot of the request array stands for.
  struct Target {
    PollDesc* desc;  // null: foreign
    std::uint32_t generation;
  };

  Result<void> arm(PollDesc&) override { return {}; }
  Result<void> arm_guest(PollDesc& desc) override;
  void disarm(PollDesc&) noexcept override {}
  Result<void> arm_foreign(ForeignFd& entry) override;
  void disarm_foreign(ForeignFd&) noexcept override {}
  void reopen() noexcept override {
    if (wake_ >= 0) ::close(wake_);
    watcher_ = {};
    waited_on_.clear();
    guests_on_.clear();
    open();
  }
  void remove(PollDesc& desc) noexcept;  // the home's mutex is held
  void collect();
  bool collect(PollDesc& desc);  // false: nobody waits there
  void add(int fd, unsigned directions, Target target) {
    requests_.push_back({fd, poll_events(directions), 0});
    targets_.push_back(target);
  }

  Hub* const hub_;
  std::atomic<int> wake_{-1};
  std::vector<PollDesc*> waited_on_;  // guarded by the home's mutex; may hold some in vain
  std::vector<Target> guests_on_;     // whose home is elsewhere, until nobody waits on them
  // Of one poll().
  std::vector<pollfd> requests_;
  std::vector<Target> targets_;
};

void PollNetpoll::waiter_added(PollDesc& desc) noexcept {
  {
    std::lock_guard hold(desc.lock);
    if (desc.home.load(std::memory_order_relaxed) != home_) return;  // closed or moved meanwhile
  }
  if (desc.poll_index == 0) {
    waited_on_.push_back(&desc);
    desc.poll_index = waited_on_.size();
  }
  if (Hub::current() != hub_) wake();
}

void PollNetpoll::remove(PollDesc& desc) noexcept {
  if (desc.poll_index == 0) return;
  PollDesc* last = waited_on_.back();
  waited_on_[desc.poll_index - 1] = last;
  last->poll_index = desc.poll_index;
  waited_on_.pop_back();
  desc.poll_index = 0;
}

void PollNetpoll::forget(PollDesc& desc) noexcept {
  remove(desc);
  ReadinessPoll::forget(desc);
  // A poll(2) in progress keeps the connection open, so that its peer would not see the end.
  if (Hub::current() != hub_) wake();
}

Result<void> PollNetpoll::arm_guest(PollDesc& desc) {
  const std::uint32_t generation = desc.generation();
  for (const Target& guest : guests_on_)
    if (guest.desc == &desc && guest.generation == generation) return {};
  guests_on_.push_back({&desc, generation});
  return {};
}

// poll(2) takes any descriptor; what epoll refuses must be refused here, too.
Result<void> PollNetpoll::arm_foreign(ForeignFd& entry) {
  if (auto ok = check_pollable(entry.fd); !ok) return ok;
  entry.registered = true;
  return {};
}

bool PollNetpoll::collect(PollDesc& desc) {
  unsigned wanted = 0;
  std::uint32_t generation;
  int fd;
  {
    std::lock_guard locked(desc.lock);
    for (const Side side : {kReadSide, kWriteSide})
      if (desc.direction[side].waiter) wanted |= direction_of(side);
    wanted |= watched_directions(desc.watchers);
    generation = desc.generation();
    fd = desc.fd;
  }
  if (wanted != 0) add(fd, wanted, {&desc, generation});
  return wanted != 0;
}

void PollNetpoll::collect() {
  requests_.clear();
  targets_.clear();
  requests_.push_back({wake_, POLLIN, 0});
  requests_.push_back({watcher_.fd, POLLIN, 0});  // -1: passed over
  targets_.resize(kFixed);
  std::lock_guard hold(home_->mutex);
  for (std::size_t i = 0; i < waited_on_.size();) {
    PollDesc& desc = *waited_on_[i];
    if (collect(desc)) {
      ++i;
    } else {
      remove(desc);
    }
  }
  std::erase_if(guests_on_, [this](const Target& guest) {
    return guest.desc->generation() != guest.generation || !collect(*guest.desc);
  });
  foreign_->for_each_armed([this](const ForeignFd& entry) {
    add(entry.fd, entry.armed, {nullptr, entry.id});
  });
}

int PollNetpoll::poll(std::int64_t timeout_ns) {
  if (inherited()) [[unlikely]]
    renew();
  if (wake_ < 0) [[unlikely]] {
    // Without descriptors to spare: nobody can wake the hub, so it looks often.
    constexpr std::int64_t kRetryNs = 10'000'000;
    if (open() != 0) timeout_ns = timeout_ns < 0 ? kRetryNs : std::min(timeout_ns, kRetryNs);
  }
  collect();
  timespec limit{};
  const timespec* timeout = nullptr;
  if (timeout_ns >= 0) {
    limit.tv_sec = timeout_ns / 1'000'000'000;
    limit.tv_nsec = timeout_ns % 1'000'000'000;
    timeout = &limit;
  }
  int left = ::ppoll(requests_.data(), requests_.size(), timeout, nullptr);
  if (left <= 0) return 0;
  const int delivered = left;
  if (requests_[0].revents & POLLNVAL) [[unlikely]] {
    wake_ = -1;  // closed by other code, and not ours to close
    open();
    --left;
  } else if (requests_[0].revents != 0) {
    std::uint64_t count;
    [[maybe_unused]] const auto read = ::read(wake_, &count, sizeof count);
    --left;
  }
  if (requests_[1].revents != 0) {
    if (requests_[1].revents & POLLNVAL) {
      watcher_ = {};
    } else {
      watcher_.ready(watcher_.arg);
    }
    --left;
  }
  for (std::size_t i = kFixed; left > 0 && i < requests_.size(); ++i) {
    const pollfd& request = requests_[i];
    if (request.revents == 0) continue;
    --left;
    // A number that was closed behind our back: its waiters find out by their own calls.
    const unsigned ready =
        request.revents & POLLNVAL ? kRead | kWrite : poll_ready(request.revents, kRead | kWrite);
    if (targets_[i].desc) {
      deliver_event(*targets_[i].desc, targets_[i].generation, ready,
                    static_cast<std::uint32_t>(request.revents & kStickyEvents));
    } else {
      foreign_->event(request.fd, targets_[i].generation, ready);
    }
  }
  return delivered;
}

}  // namespace

Result<std::unique_ptr<Netpoll>> make_poll_netpoll() {
  auto netpoll = std::make_unique<PollNetpoll>();
  if (const int err = netpoll->open(); err != 0) return fail_errno(err);
  return std::unique_ptr<Netpoll>(std::move(netpoll));
}

}  // namespace runloom::net
