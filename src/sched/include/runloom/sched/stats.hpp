// Counters of a scheduler, see Scheduler::stats(). Read without stopping anything: a snapshot is
// consistent per counter, not across counters.
#pragma once

#include <cstdint>

namespace runloom {

struct Stats {
  std::uint64_t spawned = 0;        // fibers started since the scheduler was made
  std::uint64_t completed = 0;      // fibers ended
  std::uint64_t live = 0;           // fibers that have not ended
  std::uint64_t ready = 0;          // queued to run
  std::uint64_t sleeping = 0;       // timers armed
  std::uint64_t io_parked = 0;      // parked in a wait that something outside can end
  std::uint64_t switches = 0;       // switches to a fiber
  std::uint64_t turns = 0;          // loop turns
  std::uint64_t polls = 0;          // calls of a driver's poll
  std::uint64_t sleeps = 0;         // polls that were allowed to block
  std::uint64_t wakes_sent = 0;     // Driver::wake calls made
  std::uint64_t stolen = 0;         // unstarted fibers run by another hub than their spawner's
  std::uint64_t stacks_mapped = 0;  // stacks carved from slabs, process-wide
  std::uint64_t stacks_free = 0;    // of those, waiting for reuse, process-wide
  std::uint64_t stack_trims = 0;    // free stacks whose memory was returned, process-wide
};

}  // namespace runloom
