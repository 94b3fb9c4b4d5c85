// Scheduler: a set of hubs (one OS thread each) that run fibers.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runloom/sched/driver.hpp"
#include "runloom/sched/fiber.hpp"
#include "runloom/sched/hooks.hpp"
#include "runloom/sched/stats.hpp"

namespace runloom {

class Hub;

namespace detail {
struct SchedulerAccess;
}

// What else happens when a run ends with Errc::deadlock: warn writes the fibers to stderr, off and
// fail leave it at the error (a binding may make a difference of them).
enum class DeadlockMode : std::uint8_t { off, warn, fail };
// How stack guards are installed: madvise keeps one kernel map per slab (Linux 6.13+), mprotect
// costs two maps a stack. automatic probes per slab.
enum class GuardMode : std::uint8_t { automatic, madvise, mprotect };

struct Options {
  int hubs = 1;                                  // from 1 to 256, else the nearest
  std::size_t stack_size = 64 * 1024;            // bytes a fiber, when the spawn names none
  std::uint64_t max_fibers = 0;                  // 0: unlimited
  std::chrono::microseconds idle_spin{0};        // poll up to this long before sleeping, adaptive
  std::chrono::milliseconds stall_threshold{0};  // report a fiber that runs longer; 0: off
  DeadlockMode deadlock = DeadlockMode::warn;
  GuardMode guard = GuardMode::automatic;
  std::size_t blocking_threads = 64;  // most threads of the blocking pool
  bool crash_report = true;  // name the fiber whose stack overflows; only where SIGSEGV is SIG_DFL
  std::function<std::unique_ptr<Driver>(Hub&)> make_driver{};  // null: a futex, until net is used
  SwitchHooks hooks{};

  // The defaults, changed by RUNLOOM_HUBS, RUNLOOM_STACK_SIZE, RUNLOOM_MAX_GOROUTINES,
  // RUNLOOM_SPIN_US, RUNLOOM_STALL_MS, RUNLOOM_DEADLOCK (off|warn|raise), RUNLOOM_GUARD
  // (auto|madvise|mprotect). A value that can't be read is reported on stderr and ignored.
  static Options from_environment();
  static Options from_environment(Options defaults);
};

// What the registry tells of one fiber.
struct FiberInfo {
  FiberId id = 0;
  std::string name;
  const char* state = "";  // running, runnable, parked, new, ended
  WaitReason reason = WaitReason::none;
  const void* object = nullptr;     // what it waits for; the descriptor for io_*
  std::chrono::nanoseconds age{0};  // in this state, to the precision of a loop turn
  int hub = -1;
  std::size_t stack_size = 0;
  void* local = nullptr;  // fiber-local memory
};

class Scheduler {
 public:
  explicit Scheduler(Options options = {});
  // Ends what is left: every park, present and future, fails with cancelled; after 3 rounds or
  // 1 s the fibers that still live are reported by name and leaked with their stacks. No forced
  // unwind. Never on one of its own fibers.
  ~Scheduler();
  // Ends what is left, as the destructor does, and returns how many fibers did not end. An owner
  // for whom late wakes of those must stay harmless then keeps the scheduler for ever.
  std::uint64_t shutdown() noexcept;
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Runs `main` on a fiber and drives the scheduler on the calling thread (hub 0; the other hubs
  // get threads of their own for the duration) until every fiber has ended; returns what main
  // returned, or rethrows what it threw. Fails with deadlock when all fibers are blocked and
  // nothing outside can wake one (Options::deadlock; they stay parked and a later wake and run()
  // resume them), cancelled after stop(), thread_limit when a hub gets no thread.
  //
  // Outside are descriptors, timers, blocking() calls, mutexes that OS threads hold, and whatever
  // SwitchHooks::expects_wake knows of. That a thread of the program is going to use a channel, an
  // event or another primitive can't be seen: keep a fiber in a foreign_wakeable park meanwhile.
  template <class F>
  auto run(F&& main) -> typename JoinHandle<std::invoke_result_t<std::decay_t<F>&>>::JoinResult {
    auto handle = spawn(std::forward<F>(main), {.name = "main", .hub = 0});
    if (!handle) return Unexpected{handle.error()};
    auto drained = run();
    if (!handle.done())
      return Unexpected{drained ? make_error_code(Errc::cancelled) : drained.error()};
    return handle.join();
  }
  // Drives until every fiber has ended, stop(), or deadlock. Returns the number of fibers that
  // ended. On one of the scheduler's own fibers: parks it until every fiber that is not itself
  // inside such a nested run has ended.
  Result<std::uint64_t> run();
  // Makes run() return at its next safe point; what is queued stays for the next run(). Any
  // thread; async-signal-safe.
  void stop() noexcept;
  // Cancels every live fiber. Any thread.
  void cancel_all() noexcept;

  // As runloom::spawn, from any thread; the fiber begins while a run() drives the scheduler. The
  // scheduler must outlive the handle's use.
  template <class F>
  auto spawn(F&& fn, const SpawnOptions& options = {})
      -> JoinHandle<std::invoke_result_t<std::decay_t<F>&>> {
    std::error_code error;
    auto* fiber = detail::spawn_fiber(this, std::forward<F>(fn), options, true, error);
    using Handle = JoinHandle<std::invoke_result_t<std::decay_t<F>&>>;
    return fiber ? Handle(fiber) : Handle(error);
  }

  // Makes the calling thread hub 0 outside run() too, so that spawn and current() find this
  // scheduler there. For a thread's home scheduler.
  void bind_thread();
  void unbind_thread();

  // The scheduler of the calling thread's hub; null off hubs.
  static Scheduler* current() noexcept;
  int hubs() const noexcept;
  Hub& hub(int index) noexcept;  // from 0 to hubs() - 1
  // The hub with the fewest live fibers.
  int least_loaded_hub() const noexcept;
  // Any thread, as the setters below, which hold for what comes.
  Stats stats() const noexcept;
  const Options& options() const noexcept;  // as the scheduler was made with
  void set_max_fibers(std::uint64_t limit) noexcept;
  void set_default_stack_size(std::size_t bytes) noexcept;
  void set_deadlock_mode(DeadlockMode mode) noexcept;

  // Live fibers. Any thread; the picture of other hubs is racy but never torn per field.
  std::vector<FiberInfo> fibers() const;
  // The C++ frames of a fiber that is suspended, innermost first, for diagnostics:
  // "function+0x12 (object)". Up to the first function that was compiled without frame pointers;
  // empty for a fiber that runs, has not begun, or has ended. No fiber may run on the fiber's hub
  // meanwhile: call it there.
  std::vector<std::string> parked_stack(FiberId id) const;
  // A line per fiber and a state histogram, written to `fd`. Async-signal-safe.
  void dump(int fd) const noexcept;

  // Forked child, on the thread that forked: every fiber but the calling one is dropped without
  // running, hubs other than the calling thread's are gone, drivers are told.
  void after_fork() noexcept;

  struct Impl;  // opaque

 private:
  friend struct detail::SchedulerAccess;
  std::unique_ptr<Impl> impl_;
};

// Makes a scheduler, runs `main` on it as Scheduler::run() does, and destroys it. Blocks the
// calling thread, also when that is a fiber's.
template <class F>
auto run(F&& main, Options options = Options::from_environment()) {
  Scheduler scheduler(std::move(options));
  return scheduler.run(std::forward<F>(main));
}

// One OS thread of a scheduler, as layers above see it.
class Hub {
 public:
  // The calling thread's hub; null on other threads.
  static Hub* current() noexcept;
  int index() const noexcept { return index_; }
  Scheduler& scheduler() const noexcept { return *scheduler_; }
  // The driver; only on the hub's own thread.
  Driver& driver() const noexcept { return *driver_; }
  // Replaces the driver, on the hub's own thread. The old one is kept until the hub ends, because
  // a thread may be inside its wake().
  void set_driver(std::unique_ptr<Driver> driver);
  // The clock of this loop turn, in nanoseconds; at most as old as the turn.
  std::int64_t turn_ns() const noexcept { return turn_ns_.load(std::memory_order_relaxed); }
  // Runs `fn(arg)` on the hub's thread, in its own context, in order. `node` is the caller's
  // memory and free again when fn is called. Any thread.
  struct Message {
    Message* next = nullptr;
    void (*fn)(Hub& hub, Message& message) = nullptr;
  };
  void post(Message& message) noexcept;

  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

 protected:
  Hub(Scheduler& scheduler, int index) noexcept : scheduler_(&scheduler), index_(index) {}
  ~Hub();
  Scheduler* scheduler_;
  int index_;
  std::atomic<std::int64_t> turn_ns_{0};
  std::unique_ptr<Driver> driver_;
};

}  // namespace runloom
