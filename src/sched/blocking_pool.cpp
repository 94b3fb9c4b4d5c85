// The pool behind blocking(): threads of the process that run jobs which block.
//
// A job goes to an idle thread if there is one (the one that went idle last: its stack is warm,
// and the others get old enough to leave), else to a new thread while the pool is below the
// submitter's limit, else to the queue. A thread looks at the queue under the lock before it
// idles or leaves, and is counted only once it is known to run; so a job that was queued while
// the count was above zero is always found by one.
//
// One pool for the process, not one a scheduler: there may be a scheduler on every thread of the
// program, and a scheduler that ends must not wait for a call that never returns.
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>

#include "process.hpp"
#include "runloom/sched/blocking.hpp"
#include "scheduler_impl.hpp"

namespace runloom::detail {
namespace {

constexpr timespec kIdleTime{5, 0};  // a thread without work leaves after this
constexpr std::size_t kDefaultThreads = 64;
constexpr std::size_t kMostThreads = 1 << 16;

// A thread of the pool, on its own stack.
struct Worker {
  std::atomic<std::uint32_t> signal{0};  // futex: 1 when woken
  // Guarded by the pool's lock.
  BlockingJob* job = nullptr;  // handed over while idle
  bool idle = false;
  Worker* next = nullptr;
};

struct Pool {
  std::mutex starting;  // held while a thread is started; taken before `lock`
  SpinLock lock{LockRank::pool};
  // Guarded by lock.
  Worker* idle = nullptr;  // last in, first out
  BlockingJob* head = nullptr;
  BlockingJob* tail = nullptr;
  bool retiring = false;
  // Counted in by the starter and out by the thread, in either order: may be -1 for a moment.
  // Written under lock; the futex of retire_blocking_threads.
  std::atomic<std::int32_t> threads{0};
};

constinit Pool pool;  // trivially destructible: threads may outlive static destruction
constinit thread_local bool tl_is_worker = false;

template <class Word>
long futex(std::atomic<Word>& word, int op, Word value, const timespec* limit) noexcept {
  return ::syscall(SYS_futex, &word, op, value, limit, nullptr, 0);
}

void enqueue(BlockingJob& job) noexcept {
  job.prev = pool.tail;
  job.next = nullptr;
  (pool.tail ? pool.tail->next : pool.head) = &job;
  pool.tail = &job;
  job.queued = true;
}

void unlink(BlockingJob& job) noexcept {
  (job.prev ? job.prev->next : pool.head) = job.next;
  (job.next ? job.next->prev : pool.tail) = job.prev;
  job.queued = false;
}

BlockingJob* dequeue() noexcept {
  BlockingJob* job = pool.head;
  if (job) unlink(*job);
  return job;
}

void remove_idle(Worker& worker) noexcept {
  Worker** link = &pool.idle;
  while (*link != &worker)
    link = &(*link)->next;
  *link = worker.next;
  worker.idle = false;
}

void leave_pool() noexcept {  // with the lock held
  pool.threads.fetch_sub(1, std::memory_order_release);
}

// The next job, waiting for one a while; null when the thread shall leave.
BlockingJob* next_job(Worker& self) noexcept {
  {
    std::lock_guard hold(pool.lock);
    if (BlockingJob* job = dequeue()) return job;
    if (pool.retiring) {
      leave_pool();
      return nullptr;
    }
    self.job = nullptr;
    self.signal.store(0, std::memory_order_relaxed);
    self.idle = true;
    self.next = pool.idle;
    pool.idle = &self;
  }
  bool timed_out = false;
  while (!timed_out && self.signal.load(std::memory_order_acquire) == 0)
    timed_out = futex(self.signal, FUTEX_WAIT_PRIVATE, 0u, &kIdleTime) != 0 && errno == ETIMEDOUT;
  if (timed_out) {
    std::lock_guard hold(pool.lock);
    if (self.idle) {
      remove_idle(self);
      leave_pool();
      return nullptr;
    }
  }
  // Somebody took us off the list, with a job or to leave, and wakes us.
  while (self.signal.load(std::memory_order_acquire) == 0)
    futex(self.signal, FUTEX_WAIT_PRIVATE, 0u, nullptr);
  if (self.job) return self.job;
  std::lock_guard hold(pool.lock);
  leave_pool();
  return nullptr;
}

void work(BlockingJob* job) noexcept {
  pthread_setname_np(pthread_self(), "runloom-pool");
  tl_is_worker = true;
  Worker self;
  while (job) {
    job->run(*job);
    job = next_job(self);
  }
  futex(pool.threads, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr);  // retire_blocking_threads
}

void wake_worker(Worker& worker) noexcept {
  worker.signal.store(1, std::memory_order_release);
  // The worker may have left already, and its stack with it: the address is only a key here.
  futex(worker.signal, FUTEX_WAKE_PRIVATE, 1u, nullptr);
}

// Gives the job to a thread that exists, if one is idle or the pool may not grow.
bool place(BlockingJob& job, std::int32_t limit) noexcept {
  Worker* worker = nullptr;
  {
    std::lock_guard hold(pool.lock);
    worker = pool.idle;
    if (worker) {
      remove_idle(*worker);
      worker->job = &job;
    } else if (pool.threads.load(std::memory_order_relaxed) >= limit) {
      enqueue(job);
    } else {
      return false;
    }
  }
  if (worker) wake_worker(*worker);
  return true;
}

bool start_worker(BlockingJob& job) noexcept {
  try {
    start_thread([&job] { work(&job); }).detach();
  } catch (const std::exception&) {  // no thread, or no memory for one
    return false;
  }
  std::lock_guard hold(pool.lock);
  pool.threads.fetch_add(1, std::memory_order_relaxed);
  return true;
}

}  // namespace

Result<void> submit(BlockingJob& job) noexcept {
  const std::size_t most = tl_hub ? tl_hub->impl.options.blocking_threads : kDefaultThreads;
  const auto limit = static_cast<std::int32_t>(std::clamp<std::size_t>(most, 1, kMostThreads));
  if (place(job, limit)) return {};
  // One start at a time, so that nobody queues a job behind a thread that then fails to start.
  std::lock_guard hold(pool.starting);
  if (place(job, limit) || start_worker(job)) return {};
  if (place(job, 1)) return {};
  return fail(Errc::thread_limit);
}

bool withdraw(BlockingJob& job) noexcept {
  std::lock_guard hold(pool.lock);
  if (!job.queued) return false;
  unlink(job);
  return true;
}

bool retire_blocking_threads(Deadline deadline) noexcept {
  Worker* idle;
  {
    std::lock_guard no_start(pool.starting);  // whose thread would not be counted yet
    std::lock_guard hold(pool.lock);
    pool.retiring = true;
    idle = std::exchange(pool.idle, nullptr);
    for (Worker* worker = idle; worker; worker = worker->next)
      worker->idle = false;
  }
  while (idle) {
    Worker* next = idle->next;
    wake_worker(*idle);
    idle = next;
  }
  bool gone = true;
  while (const std::int32_t left = pool.threads.load(std::memory_order_acquire)) {
    const std::int64_t now = monotonic_ns();
    if (deadline.passed_at(now)) {
      gone = false;
      break;
    }
    const std::int64_t ns = std::min<std::int64_t>(deadline.ns() - now, 100'000'000);
    const timespec limit{ns / 1'000'000'000, ns % 1'000'000'000};
    futex(pool.threads, FUTEX_WAIT_PRIVATE, left, &limit);
  }
  std::lock_guard hold(pool.lock);
  pool.retiring = false;
  return gone;
}

void fork_blocking_pool(ForkStage stage) noexcept {
  switch (stage) {
    case ForkStage::prepare:
      pool.starting.lock();
      pool.lock.lock_for_fork();
      return;
    case ForkStage::child:
      // The threads are gone, but for the one that forks inside a job; the jobs belong to fibers
      // that are dropped.
      pool.idle = nullptr;
      pool.head = pool.tail = nullptr;
      pool.retiring = false;
      pool.threads.store(tl_is_worker ? 1 : 0, std::memory_order_relaxed);
      [[fallthrough]];
    case ForkStage::parent:
      pool.lock.unlock_for_fork();
      pool.starting.unlock();
      return;
  }
}

// ---------------------------------------------------------------- one call

BlockingCall::BlockingCall(void (*body)(BlockingCall& call)) noexcept : body_(body) {
  run = &run_job;
}

void BlockingCall::execute() noexcept {
  try {
    body_(*this);
  } catch (...) {
    exception_ = std::current_exception();
  }
}

// `done_` is set and the wait claimed in one step: either the waiter is still parked and woken
// here, or its wait ended otherwise and it finds `done_` when it gets the lock. In the second
// case its frame may be gone as soon as the lock is free.
void BlockingCall::run_job(BlockingJob& job) noexcept {
  auto& call = static_cast<BlockingCall&>(job);
  call.execute();
  Waiter* waiter = nullptr;
  {
    std::lock_guard hold(call.lock_);
    call.done_ = true;
    if (claim(call.token_, kWakeUser)) waiter = call.token_.waiter;
  }
  if (waiter) schedule(waiter);
}

Result<void> BlockingCall::call(Deadline deadline) {
  if (Fiber* self = current_fiber()) {
    if (self->noyield || self->forbid != 0) return fail(Errc::park_forbidden);
    if (auto cancelled = this_fiber::check_cancelled(); !cancelled) return cancelled;
    if (deadline.passed()) return fail(Errc::timed_out);
    if (auto ran = run_on_pool(deadline); !ran) return ran;
  } else {
    execute();
  }
  if (exception_) std::rethrow_exception(std::exchange(exception_, nullptr));
  return {};
}

Result<void> BlockingCall::run_on_pool(Deadline deadline) {
  WaitOptions options{.reason = WaitReason::blocking, .deadline = deadline, .external = true};
  token_ = begin_wait();
  if (auto submitted = submit(*this); !submitted) {
    try_abandon(token_);
    return submitted;
  }
  const WakeCode code = wait(token_, options);
  if (code == kWakeUser) return {};
  lock_.lock();
  if (!done_) {
    if (withdraw(*this)) {
      lock_.unlock();
      return fail(wake_error(code));
    }
    token_ = begin_wait();
    lock_.unlock();
    options.cancellable = false;
    options.deadline = Deadline::never();
    wait(token_, options);
    return {};
  }
  lock_.unlock();
  return {};
}

}  // namespace runloom::detail
