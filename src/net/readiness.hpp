// ReadinessPoll: the portable half of a hub's readiness backend: where PollDescs are registered,
// how fibers park on them, and the waits on descriptors that are not ours. A backend adds the
// few calls that know epoll or poll(2).
//
// Everything here belongs to the hub's thread (I2) unless it says otherwise.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "backends.hpp"
#include "foreign_fds.hpp"
#include "io_loop.hpp"
#include "poll_home.hpp"

namespace runloom::net {

class ReadinessPoll : public IoLoop, public PollHomeOwner, public ForeignKernel, public Backend {
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
  Result<void> link(PollDesc& desc, detail::WaitNode& node) final;
  void unlink(PollDesc& desc, detail::WaitNode& node) noexcept final;
  Result<void> link_foreign(int fd, detail::WaitNode& node) final {
    auto linked = foreign().link(fd, node);
    if (!linked && revive_after(linked.error())) linked = foreign().link(fd, node);
    return linked;
  }
  void unlink_foreign(int fd, detail::WaitNode& node) noexcept final { foreign().settle(fd, node); }
  // The waits on descriptors that are not ours.
  ForeignFds& foreign() noexcept {
    renew();
    return *foreign_;
  }

  bool wants_poll() const noexcept override {
    return registered_.load(std::memory_order_relaxed) != 0 || guests_ || !foreign_->empty();
  }
  void after_fork() noexcept final {
    note_fork();
    renew();
  }

  void claim_foreign(int fd, detail::WakeCode code, std::vector<detail::Waiter*>& claimed) final {
    if (!inherited()) foreign_->claim(fd, code, claimed);
  }

  void forget(PollDesc& desc) noexcept override {
    disarm(desc);
    registered_.fetch_sub(1, std::memory_order_relaxed);
  }

 protected:
  // --- what a backend supplies ---
  // Watches `desc` until disarm(), and delivers each event at least once: for both directions, or
  // without writing while `desc.reads_only` is set.
  virtual Result<void> arm(PollDesc& desc) = 0;
  // Whether arm() should leave out writing until somebody waits for it.
  virtual bool begins_reads_only(const PollDesc& desc) const noexcept {
    (void)desc;
    return false;
  }
  // Watches `desc` as arm() does, besides its home. Reports what is ready, also when it is watched
  // already. It ends with the descriptor; until then an event in vain is possible.
  virtual Result<void> arm_guest(PollDesc& desc) = 0;
  // Any thread.
  virtual void disarm(PollDesc& desc) noexcept = 0;
  // After a fork: gives up what is shared with the parent, without touching it, and builds anew.
  virtual void reopen() noexcept = 0;
  // After `error`: is it the poller's own descriptor that doesn't work, because other code closed
  // it? Then it has been replaced, see recover().
  bool revive_after(std::error_code error) noexcept {
    return (error == errno_code(EBADF) || error == errno_code(EINVAL)) && revive();
  }
  virtual bool revive() noexcept { return false; }

  // --- what it calls ---
  // True when the process was forked since: poll() and the operations begin with it.
  bool inherited() const noexcept {
    return home_->fork != fork_generation.load(std::memory_order_relaxed);
  }
  void renew() noexcept;
  // Other code has closed the poller's descriptors: after reopen(), registers everything anew. Who
  // waits on one of ours is woken to try again.
  void recover() noexcept;
  // The backend's destructor, before its descriptors go.
  void retire() noexcept;

  PollHome* home_;
  std::unique_ptr<ForeignFds> foreign_;
  Watcher watcher_;

 private:
  Result<detail::WakeCode> await_event(PollDesc& desc, Side side, std::uint32_t seen,
                                       WaitReason reason, Deadline deadline) final;
  Result<detail::WakeCode> await_watch(PollDesc& desc, Watch& watch, Deadline deadline) final;
  Result<void> adopt_slow(PollDesc& desc);
  bool is_guest(const PollHome& home) const noexcept;
  static bool must_announce(const PollHome& home, const PollDesc& desc,
                            unsigned directions) noexcept;
  Result<void> come_as_guest(PollDesc& desc);
  static bool known_drained(const PollDesc& desc, unsigned directions) noexcept;

  std::atomic<std::size_t> registered_{0};
  bool guests_ = false;  // there was one
};

}  // namespace runloom::net
