// ConfigKeeper: the configuration of one resolver, read when it is first needed and whenever a file
// has changed since. Nothing runs while nobody asks: whoever asks looks whether inotify has news,
// at most every 50 ms.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "config.hpp"
#include "counters.hpp"
#include "file_watch.hpp"
#include "runloom/sched/deadline.hpp"
#include "runloom/sched/mutex.hpp"
#include "runloom/sched/result.hpp"

namespace runloom::dns {

class ConfigKeeper {
 public:
  ConfigKeeper(const ResolverOptions& options, Counters& counters) noexcept
      : options_(options), counters_(counters) {}

  // What the files say. Parks while they are read, on the blocking pool, for everyone at once.
  Result<std::shared_ptr<const Config>> get(Deadline deadline);
  Result<std::shared_ptr<const Config>> reload(Deadline deadline);
  // The last reading; null: there was none.
  std::shared_ptr<const Config> peek() const;
  // In a forked child.
  void abandon() noexcept { watch_.abandon(); }

 private:
  bool is_current();
  Result<std::shared_ptr<const Config>> load(bool force, Deadline deadline);

  const ResolverOptions& options_;
  Counters& counters_;
  Mutex loading_;  // one reading at a time; taken before mutex_
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::shared_ptr<const Config> config_;
  FileWatch watch_;
  std::string stamp_;  // without a watch: what the files looked like
  std::int64_t looked_at_ = 0;
  bool stale_ = false;
};

}  // namespace runloom::dns
