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

  JoinSetCore() = default;
  ~JoinSetCore();  // cancels the children and waits for them, whatever happens meanwhile
  JoinSetCore(const JoinSetCore&) = delete;
  JoinSetCore& operator=(const JoinSetCore&) = delete;

  void add(Child& child) noexcept;  // before it is started
  // The child has ended; at most one of the three is set.
  void finish(Child& child, Item* item, std::error_code error,
              std::exception_ptr exception) noexcept;
  void cancel() noexcept;
  std::size_t size() const noexcept;
  Result<void> wait(Deadline deadline, bool cancellable);
  // The oldest result; null with no error: no child is left. Rethrows the first exception.
  Result<Item*> next(Deadline deadline);
  Item* take_item() noexcept;

 private:
  void cancel_locked() noexcept;
  Result<void> failure();
  WakeCode park(Deadline deadline, bool cancellable);  // with the lock held; releases it

  mutable SpinLock lock_{LockRank::join_set};
  Child* children_ = nullptr;
  std::size_t count_ = 0;
  bool cancelled_ = false;
  bool failed_ = false;
  Item* oldest_ = nullptr;
  Item** newest_ = &oldest_;
  std::error_code error_;
  std::exception_ptr exception_;
  WaitList waiters_;
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

// Made and destroyed by one fiber (or OS thread); spawn and cancel may be called from any fiber
// of the same scheduler while it lives, its own children included.
template <class T = void>
class JoinSet {
 public:
  JoinSet() = default;
  // Cancels the children that still run and waits until all have ended. No cancel point.
  ~JoinSet() {
    core_.cancel();
    (void)core_.wait(Deadline::never(), false);
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
        detail::allocate_fiber(nullptr, options, sizeof(Frame), alignof(Frame), error);
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

  // Parks until every child has ended. Rethrows the first child's exception, or returns its
  // error; fails with timed_out or cancelled of the caller, and the children go on.
  Result<void> wait(Deadline deadline = {}) { return core_.wait(deadline, true); }
  // Cancels the children, those still to be spawned included.
  void cancel() noexcept { core_.cancel(); }
  // Children that have not ended.
  std::size_t size() const noexcept { return core_.size(); }

  // The next result in the order of completion, parking until there is one; nullopt when all
  // children have ended and all results were taken. Fails as wait() does.
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
        : core(owner), fn(std::forward<G>(function)) {}
    ChildBody(const ChildBody&) = delete;
    ChildBody& operator=(const ChildBody&) = delete;

    void operator()() {
      detail::JoinSetCore::Item* item = nullptr;
      std::error_code error;
      std::exception_ptr exception;
      try {
        run(item, error);
      } catch (...) {
        exception = std::current_exception();
      }
      core.finish(child, item, error, std::move(exception));
    }
    void run(detail::JoinSetCore::Item*& item, std::error_code& error) {
      using R = std::invoke_result_t<F&>;
      if constexpr (detail::kIsResult<R>) {
        R result = fn();
        error = result.error();
        if constexpr (!std::is_void_v<T>) {
          if (result) item = new Stored(*std::move(result));
        }
      } else if constexpr (std::is_void_v<R> || std::is_void_v<T>) {
        fn();
      } else {
        item = new Stored(fn());
      }
    }

    detail::JoinSetCore& core;
    detail::JoinSetCore::Child child;
    F fn;
  };

  detail::JoinSetCore core_;
};

}  // namespace runloom
