// PollHome: the part of a hub's backend that PollDescs point to.
//
// A PollDesc may outlive the hub that it is registered with (a stream that is used after its
// scheduler has ended), so it doesn't point to the backend itself. It owns a reference to the
// home, and the backend takes itself out when it ends. Whatever finds its home dead registers
// with the hub that uses it next.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

namespace runloom {
class Scheduler;
}

namespace runloom::net {

struct PollDesc;

// What a backend does for the PollDescs that are registered with it. Any thread, with the home's
// mutex held; must not park.
class PollHomeOwner {
 public:
  // Ends the registration of `desc`. When it is closed, also what it has in flight in the kernel.
  virtual void forget(PollDesc& desc) noexcept = 0;
  // A waiter was added to `desc`; only called when the home follows waiters, or when it waits to
  // write and `desc` is registered for reading only.
  virtual void waiter_added(PollDesc& desc) noexcept { (void)desc; }

 protected:
  ~PollHomeOwner() = default;
};

// Counts forks on the child's side. What was made under another count belongs to the parent.
extern std::atomic<unsigned> fork_generation;
// Counts the fork, if this process has not done so.
void note_fork() noexcept;

struct PollHome {
  PollHome(PollHomeOwner& backend, const Scheduler* hub_scheduler, bool follows) noexcept
      : owner(&backend),
        scheduler(hub_scheduler),
        follows_waiters(follows),
        fork(fork_generation.load(std::memory_order_relaxed)) {}

  // False: its backend has ended, or is the parent process's.
  bool alive() const noexcept {
    return !ended.load(std::memory_order_acquire) &&
           fork == fork_generation.load(std::memory_order_relaxed);
  }
  void add_reference() noexcept { references.fetch_add(1, std::memory_order_relaxed); }
  void drop_reference() noexcept {
    if (references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
  // As the owner's, if it still lives. Any thread.
  void forget(PollDesc& desc) noexcept;
  void announce(PollDesc& desc) noexcept;
  // The backend's end.
  void retire() noexcept;

  std::atomic<std::uint32_t> references{1};
  std::atomic<bool> ended{false};
  std::mutex mutex;  // guards owner against its end
  PollHomeOwner* owner;
  const Scheduler* const scheduler;
  const bool follows_waiters;
  const unsigned fork;
};

}  // namespace runloom::net
