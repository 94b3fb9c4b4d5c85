// ReadinessPoll: the portable half of a hub's readiness backend: where PollDescs are registered,
// how fibers park on them, and the waits on descriptors that are not ours. A backend adds the
// few calls that know epoll or poll(2).
//
// Everything here belongs to the hub's thread (I2) unless it says otherwise.
#pragma once

#include <atomic>
#include <memory>
#include <unordered_map>

#include "io_loop.hpp"
#include "poll_home.hpp"

namespace runloom::net {

// A descriptor that is not ours, while somebody waits on it: one registration, one-shot, for the
// directions of all its waiters together.
struct ForeignFd {
  int fd = -1;
  std::uint32_t id = 0;      // tells an event of this entry from one of an earlier entry
  unsigned armed = 0;        // the directions that the kernel watches for now
  bool registered = false;   // the kernel knows it, armed or not
  detail::WaitList waiters;  // each with a Watch
  unsigned wanted() const noexcept { return watched_directions(waiters); }
};

class ReadinessPoll : public IoLoop, public PollHomeOwner {
 public:
  // `follows_waiters`: the backend must be told of each new waiter.
  explicit ReadinessPoll(bool follows_waiters);
  ~ReadinessPoll() override;

  // Moves the registration of `desc` here, unless it is where it will do.
  Result<void> adopt(PollDesc& desc) {
    if (desc.home.load(std::memory_order_acquire) == home_ && !inherited()) return {};
    return adopt_slow(desc);
  }
  Result<unsigned> poll_foreign(int fd, unsigned directions, Deadline deadline) final;
  // Adds a node with a Watch to the watchers of a PollDesc that was adopted. False: it is closed
  // or has no home.
  static bool link_watch(PollDesc& desc, detail::WaitNode& node) noexcept;
  static void unlink_watch(PollDesc& desc, detail::WaitNode& node) noexcept;
  // Adds a node with a Watch to the waiters of a descriptor that is not ours.
  Result<void> link_foreign(int fd, detail::WaitNode& node);
  void unlink_foreign(int fd, detail::WaitNode& node) noexcept;
  // Wakes the waiters of a descriptor that is not ours with `code`. Returns how many.
  std::size_t end_foreign(int fd, detail::WakeCode code) noexcept;

  bool wants_poll() const noexcept final {
    return registered_.load(std::memory_order_relaxed) != 0 || !foreign_.empty();
  }
  void after_fork() noexcept final {
    note_fork();
    renew();
  }

  void forget(PollDesc& desc) noexcept override {
    disarm(desc);
    registered_.fetch_sub(1, std::memory_order_relaxed);
  }

 protected:
  // --- what a backend supplies ---
  // Watches `desc` for both directions until disarm(), and delivers each event at least once.
  virtual Result<void> arm(PollDesc& desc) = 0;
  // Any thread.
  virtual void disarm(PollDesc& desc) noexcept = 0;
  // Watches for the entry's wanted() directions, until one event has come.
  virtual Result<void> arm_foreign(ForeignFd& entry) = 0;
  virtual void disarm_foreign(ForeignFd& entry) noexcept = 0;
  // After a fork: gives up what is shared with the parent, without touching it, and builds anew.
  virtual void reopen() noexcept = 0;

  // --- what it calls ---
  // A foreign event. Dropped when the entry is another one by now.
  void foreign_event(int fd, std::uint32_t id, unsigned ready) noexcept;
  // True when the process was forked since: poll() and the operations begin with it.
  bool inherited() const noexcept {
    return home_->fork != fork_generation.load(std::memory_order_relaxed);
  }
  void renew() noexcept;
  // The backend's destructor, before its descriptors go.
  void retire() noexcept;

  PollHome* home_;
  std::unordered_map<int, ForeignFd> foreign_;
  Watcher watcher_;

 private:
  Result<detail::WakeCode> await_event(PollDesc& desc, Side side, std::uint32_t seen,
                                       WaitReason reason, Deadline deadline) final;
  Result<detail::WakeCode> await_watch(PollDesc& desc, Watch& watch, Deadline deadline) final;
  void give_way() noexcept final;
  void before_accept() noexcept final;
  Result<void> adopt_slow(PollDesc& desc);
  static bool known_drained(const PollDesc& desc, unsigned directions) noexcept;
  void drop_foreign(std::unordered_map<int, ForeignFd>::iterator entry) noexcept;

  std::atomic<std::size_t> registered_{0};
  std::uint32_t next_foreign_id_ = 0;
  std::int64_t accept_turn_ = 0;  // the turn that accepted_ counts for
  int accepted_ = 0;
};

}  // namespace runloom::net
