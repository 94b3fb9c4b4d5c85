// Blocking calls: work that would stop its whole hub, run on a pool of threads.
//
// The pool belongs to the process. Threads start on demand and leave after some seconds without
// work; all signals but the synchronous ones are blocked in them. Options::blocking_threads is
// the size up to which calls of that scheduler make it grow; beyond it they queue, first come,
// first served.
#pragma once

#include <exception>
#include <new>
#include <type_traits>
#include <utility>

#include "runloom/sched/deadline.hpp"
#include "runloom/sched/fiber.hpp"
#include "runloom/sched/park.hpp"
#include "runloom/sched/result.hpp"
#include "runloom/sched/spin_lock.hpp"

namespace runloom {

namespace detail {

// One job of the pool. Intrusive: the pool allocates nothing for it.
struct BlockingJob {
  // Called once on a pool thread. The pool does not touch the job afterwards: run may free it.
  void (*run)(BlockingJob& job) noexcept = nullptr;
  // The pool's, while the job is queued.
  BlockingJob* prev = nullptr;
  BlockingJob* next = nullptr;
  bool queued = false;
};

// Hands the job to an idle thread, a new one or the queue. Any thread; parks never. Fails with
// thread_limit when the pool has no thread and none can be started; then run is not called.
Result<void> submit(BlockingJob& job) noexcept;

// Takes a job back that no thread has begun. False: run was called or is about to be.
bool withdraw(BlockingJob& job) noexcept;

// Makes the threads leave: idle ones at once, the others when the queue is empty. Waits for that.
// False: `deadline` passed first. The next submit starts threads again. For the end of a process
// and of a language runtime; blocks the calling thread.
bool retire_blocking_threads(Deadline deadline) noexcept;

// What blocking() keeps on the caller's stack. `body` may throw.
class BlockingCall : private BlockingJob {
 public:
  explicit BlockingCall(void (*body)(BlockingCall& call)) noexcept;
  BlockingCall(const BlockingCall&) = delete;
  BlockingCall& operator=(const BlockingCall&) = delete;

  // Runs body on the pool and parks until it has ended; rethrows what it threw. On an error body
  // was not called. Off a fiber body runs right here.
  Result<void> call(Deadline deadline);

 protected:
  ~BlockingCall() = default;

 private:
  static void run_job(BlockingJob& job) noexcept;
  void execute() noexcept;
  Result<void> run_on_pool(Deadline deadline);

  void (*const body_)(BlockingCall& call);
  std::exception_ptr exception_;
  SpinLock lock_{LockRank::primitive};  // guards what follows
  WaitToken token_;
  bool done_ = false;
};

template <class F>
class BlockingFrame final : public BlockingCall {
 public:
  using R = std::invoke_result_t<F&>;
  static_assert(!std::is_reference_v<R>, "return a pointer, or std::ref, from a blocking call");

  explicit BlockingFrame(F& fn) noexcept : BlockingCall(&invoke), fn_(fn) {}

  typename FlattenResult<R>::type get(Deadline deadline) {
    auto done = call(deadline);
    if (!done) return Unexpected{done.error()};
    if constexpr (std::is_void_v<R>) {
      return {};
    } else {
      struct Destroy {
        R& value;
        ~Destroy() { value.~R(); }
      } result{result_.get()};
      return std::move(result.value);
    }
  }

 private:
  static void invoke(BlockingCall& self) {
    auto& frame = static_cast<BlockingFrame&>(self);
    if constexpr (std::is_void_v<R>) {
      frame.fn_();
    } else {
      new (frame.result_.bytes) R(frame.fn_());
    }
  }

  F& fn_;
  ResultSlot<R> result_;
};

}  // namespace detail

// Calls `fn()` on a pool thread while the calling fiber is parked, and returns its value; a fn
// that returns Result<U> gives that Result. What fn throws is rethrown here. A cancel point:
// cancellation, `deadline` and enclosing scopes withdraw a call that no thread has begun. Once
// begun it is waited for, because fn may refer to the caller's frame, and its value is returned;
// a cancellation stays pending for the next parking call. Fails with thread_limit when no thread
// can be had, with park_forbidden where the fiber may not park. Off a fiber fn runs right here.
template <class F>
auto blocking(F&& fn, Deadline deadline = {}) ->
    typename detail::FlattenResult<std::invoke_result_t<std::remove_reference_t<F>&>>::type {
  detail::BlockingFrame<std::remove_reference_t<F>> frame(fn);
  return frame.get(deadline);
}

}  // namespace runloom
