#include "config_keeper.hpp"

#include <chrono>

#include "runloom/sched/blocking.hpp"

namespace runloom::dns {
namespace {

using namespace std::chrono_literals;

constexpr std::int64_t kLookEvery = std::chrono::nanoseconds(50ms).count();
// Without inotify every look costs a visit to the blocking pool.
constexpr std::int64_t kStampEvery = std::chrono::nanoseconds(1s).count();

}  // namespace

std::shared_ptr<const Config> ConfigKeeper::peek() const {
  std::lock_guard hold(mutex_);
  return config_;
}

// With mutex_ held.
bool ConfigKeeper::is_current() {
  if (!config_ || stale_) return false;
  const std::int64_t now = monotonic_ns();
  if (now - looked_at_ < (watch_ ? kLookEvery : kStampEvery)) return true;
  looked_at_ = now;
  stale_ = !watch_ || watch_.changed();
  return !stale_;
}

Result<std::shared_ptr<const Config>> ConfigKeeper::get(Deadline deadline) {
  {
    std::lock_guard hold(mutex_);
    if (is_current()) return config_;
  }
  return load(false, deadline);
}

Result<std::shared_ptr<const Config>> ConfigKeeper::reload(Deadline deadline) {
  return load(true, deadline);
}

Result<std::shared_ptr<const Config>> ConfigKeeper::load(bool force, Deadline deadline) {
  if (auto locked = loading_.lock(deadline); !locked) return Unexpected{locked.error()};
  const std::unique_lock unlock(loading_, std::adopt_lock);
  std::string old_stamp;
  {
    std::lock_guard hold(mutex_);
    if (!force && config_ && !stale_) return config_;  // somebody else has read them meanwhile
    if (config_ && !force) old_stamp = stamp_;
  }
  // What the call on the pool works with is its own, and is put in place afterwards.
  FileWatch watch;
  std::string stamp;
  std::shared_ptr<Config> fresh;
  auto read = blocking(
      [&] {
        // Watched before they are read: a change in between is seen, if anything, twice.
        if (!watch.watch(config_paths(options_))) {
          stamp = config_stamp(options_);
          if (!old_stamp.empty() && stamp == old_stamp) return;
        }
        fresh = load_config(options_);
      },
      deadline);
  if (!read) return Unexpected{read.error()};
  std::lock_guard hold(mutex_);
  watch_ = std::move(watch);
  stamp_ = std::move(stamp);
  looked_at_ = monotonic_ns();
  stale_ = false;
  if (fresh) {
    counters_.reloads.add();
    fresh->generation = config_ ? config_->generation + 1 : 1;
    config_ = std::move(fresh);
  }
  return config_;
}

}  // namespace runloom::dns
