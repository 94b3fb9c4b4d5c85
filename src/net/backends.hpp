// The hubs' backends of the process, for whoever must reach the waiters of every hub.
#pragma once

#include <mutex>
#include <vector>

#include "runloom/sched/park.hpp"

namespace runloom::net {

class Backend {
 public:
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  // Claims with `code` those who wait on `fd`, a descriptor that is not ours, to be scheduled by
  // the caller. Any thread, with the list locked.
  virtual void claim_foreign(int fd, detail::WakeCode code,
                             std::vector<detail::Waiter*>& claimed) = 0;

 protected:
  Backend() noexcept = default;
  ~Backend() = default;
  // At the end of the construction.
  void enlist() noexcept;
  // Before the end, while claim_foreign still works.
  void delist() noexcept;
  // Held while the list is walked.
  static std::mutex& list_mutex() noexcept;

 private:
  friend class BackendList;
  Backend* next_ = nullptr;
};

enum class ForkStage { prepare, parent, child };
// Keeps the list in order around a fork.
void lock_backends(ForkStage stage) noexcept;

}  // namespace runloom::net
