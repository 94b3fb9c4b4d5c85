// JoinSet: structured concurrency. Children that are started in a set end before the set does.
//
// The rules are those of a nursery: no child outlives the set; the first child that fails (throws,
// or returns a failed Result) cancels the others; its failure is what wait() reports.
//
//     JoinSet<> set;
//     set.spawn([&] { return copy(client, server); });
//     set.spawn([&] { return copy(server, client); });
//     return set.wait();
#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <system_error>
#include <type_traits>
#include <utility>

#include "runloom/sched/fiber.hpp"
#include "runloom/sched/park.hpp"
#include "runloom/sched/result.hpp"
#include "runloom/sched/spin_lock.hpp"

namespace runloom {
namespace detail {

// The part of a JoinSet that does not know its result type.
class JoinSetCore {
 public:
  // A child's entry, in its own frame. Guarded by the set's lock.
  struct Child {
    Child* prev = nullptr;
    Child* next = nullptr;
    Fiber* fiber = nullptr;
  };
  // A result on its way to next().
  struct Item {
    Item* next = nullptr;
  };

  explicit JoinSetCore(Scheduler* scheduler) noexcept : scheduler_(scheduler) {}
  ~JoinSetCore();
  JoinSetCore(const JoinSetCore&) = delete;
  JoinSetCore& operator=(const JoinSetCore&) = delete;

  Scheduler* scheduler() const noexcept { return scheduler_; }
  void add(Child& child) noexcept;  // before it is started
  // On the child: it has failed. Before finish().
  void failed(std::error_code error, std::exception_ptr exception) noexcept;
  // On the child: the last thing that it does to the set. `item` may be null.
  void finish(Child& child, Item* item) noexcept;
  void cancel() noexcept;
  std::size_t size() const noexcept;
  Result<void> wait(Deadline deadline);
  void wait_for_end() noexcept;  // whatever happens meanwhile; reports nothing
  // The oldest result; null with no error: no child is left.
  Result<Item*> next(Deadline deadline);
  Item* take_item() noexcept;

 private:
  void cancel_locked() noexcept;
  Item* pop_item() noexcept;
  Result<void> take_failure();  // releases the lock
  WakeCode park(WaitList& list, Deadline deadline, bool cancellable);

  Scheduler* const scheduler_;
  mutable SpinLock lock_{LockRank::join_set};

  // Guarded by lock_.
  Child* children_ = nullptr;  // that have not ended, newest first
  std::size_t count_ = 0;      // of them
  bool cancelled_ = false;
  bool failed_ = false;  // the first failure is known
  std::error_code error_;
  std::exception_ptr exception_;
  FiberId failed_id_ = 0;  // of the child that threw
  char failed_name_[24] = {};
  Item* oldest_ = nullptr;
  Item** newest_ = &oldest_;
  WaitList for_items_;  // in next(): woken for each item, and at the end
  WaitList for_end_;    // in wait(): woken when no child is left
};

template <class T>
struct JoinSetItem : JoinSetCore::Item {
  explicit JoinSetItem(T result) : value(std::move(result)) {}
  T value;
};

template <class R>
inline constexpr bool kIsResult = false;
template <class T>
inline constexpr bool kIsResult<Result<T>> = true;

}  // namespace detail

// Made and destroyed by one fiber or OS thread; everything else may be called from any fiber of
// the scheduler while it lives, its own children included.
//
// What cancelled children fail with is a consequence: once the set is cancelled their failed
// Results are not reported, nor a std::system_error of such a Result's value(). Any other
// exception is, by the set's destructor if need be (set_unhandled_exception_handler).
template <class T = void>
class JoinSet {
 public:
  // Children run in the calling fiber's scheduler, or in a given one.
  JoinSet() noexcept : core_(nullptr) {}
  explicit JoinSet(Scheduler& scheduler) noexcept : core_(&scheduler) {}
  // Cancels the children that still run and waits until all have ended. No cancel point. Nothing
  // of a child is left then, what its function had captured included.
  ~JoinSet() {
    core_.cancel();
    core_.wait_for_end();
    while (auto* item = core_.take_item())
      delete static_cast<Stored*>(item);
  }
  JoinSet(const JoinSet&) = delete;
  JoinSet& operator=(const JoinSet&) = delete;

  // Starts a child that returns T or Result<T>. Fails as runloom::spawn does; the set is
  // unchanged then. In a cancelled set the child starts cancelled.
  template <class F>
  Result<void> spawn(F&& fn, const SpawnOptions& options = {}) {
    using Body = ChildBody<std::decay_t<F>>;
    using Frame = detail::FiberFrame<Body>;
    std::error_code error;
    detail::Fiber* fiber =
        detail::allocate_fiber(core_.scheduler(), options, sizeof(Frame), alignof(Frame), error);
    if (!fiber) return Unexpected{error};
    auto* frame = static_cast<Frame*>(detail::fiber_frame(fiber));
    struct Discard {
      detail::Fiber* fiber;
      ~Discard() {
        if (fiber) detail::discard_fiber(fiber);
      }
    } unless_stored{fiber};
    auto* body = new (frame->fn) Body(core_, std::forward<F>(fn));
    unless_stored.fiber = nullptr;
    body->child.fiber = fiber;
    core_.add(body->child);
    detail::start_fiber(fiber, &Frame::ops, false);
    return {};
  }

  // Parks until every child has ended. Then reports the first failure, once: rethrows a child's
  // exception or returns its error. Fails with timed_out or cancelled of the caller, and the
  // children go on; size() tells the two apart.
  Result<void> wait(Deadline deadline = {}) { return core_.wait(deadline); }
  // Cancels the children, those still to be spawned included.
  void cancel() noexcept { core_.cancel(); }
  // Children that have not ended.
  std::size_t size() const noexcept { return core_.size(); }

  // The next result in the order of completion, parking until there is one. When all children
  // have ended and all results were taken: the first failure, as wait() reports it, then nullopt.
  template <class U = T>
  requires(!std::is_void_v<U>) Result<std::optional<U>> next(Deadline deadline = {}) {
    RUNLOOM_TRY(auto* item, core_.next(deadline));
    if (!item) return std::optional<U>();
    std::unique_ptr<Stored> stored(static_cast<Stored*>(item));
    return std::optional<U>(std::move(stored->value));
  }

 private:
  using Stored = detail::JoinSetItem<std::conditional_t<std::is_void_v<T>, char, T>>;

  template <class F>
  struct ChildBody {
    template <class G>
    ChildBody(detail::JoinSetCore& owner, G&& function)
        : core(owner), fn(std::in_place, std::forward<G>(function)) {}
    ChildBody(const ChildBody&) = delete;
    ChildBody& operator=(const ChildBody&) = delete;

    void operator()() {
      detail::JoinSetCore::Item* item = nullptr;
      std::error_code error;
      std::exception_ptr exception;
      try {
        run(item, error);
      } catch (const std::system_error& failure) {
        error = failure.code();
        exception = std::current_exception();
      } catch (...) {
        exception = std::current_exception();
      }
      // What it captured may refer to what its owner destroys after the set.
      fn.reset();
      if (error || exception) core.failed(error, std::move(exception));
      core.finish(child, item);
    }
    void run(detail::JoinSetCore::Item*& item, std::error_code& error) {
      using R = std::invoke_result_t<F&>;
      if constexpr (detail::kIsResult<R>) {
        R result = (*fn)();
        error = result.error();
        if constexpr (!std::is_void_v<T>) {
          if (result) item = new Stored(*std::move(result));
        }
      } else if constexpr (std::is_void_v<R> || std::is_void_v<T>) {
        (*fn)();
      } else {
        item = new Stored((*fn)());
      }
    }

    detail::JoinSetCore& core;
    detail::JoinSetCore::Child child;
    std::optional<F> fn;
  };

  detail::JoinSetCore core_;
};

}  // namespace runloom
