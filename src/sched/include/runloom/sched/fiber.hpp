// Fibers: spawn, join, and what a fiber can do to itself.
//
// A fiber is a function on a stack of its own, run by one hub (a scheduler thread) from its first
// instruction to its last (I1): errno, thread_locals and everything registered per thread stay
// valid across a park.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <string_view>
#include <type_traits>
#include <utility>

#include "runloom/sched/deadline.hpp"
#include "runloom/sched/park.hpp"
#include "runloom/sched/result.hpp"

namespace runloom {

class Scheduler;

// Unique within a scheduler, never reused; 0 is no fiber.
using FiberId = std::uint64_t;

struct SpawnOptions {
  std::string_view name{};     // the first 23 bytes are kept
  std::size_t stack_size = 0;  // bytes of usable stack, rounded up to pages; 0: Options::stack_size
  int hub = -1;                // run on this hub; -1: the spawner's, unless an idle hub steals it
  std::size_t local_size = 0;  // bytes of fiber-local memory, kept by the stack
  bool noyield = false;        // the fiber promises not to park: a park fails, see Errc
  // A fiber of the language whose binding the scheduler serves, see GuestHooks: its code may run on
  // it. Spawned on that scheduler's own, single hub. Ignored where there is no such language.
  bool guest = false;
};

namespace detail {

struct Fiber;
struct StackSlot;

// How the core runs and destroys what a spawn stored on the fiber's stack.
struct FrameOps {
  void (*run)(void* frame);               // calls the function, then destroys it
  void (*discard)(void* frame) noexcept;  // destroys the function of a fiber that never ran
  void (*drop)(void* frame) noexcept;     // destroys the result of a fiber that returned
};

// Takes a stack; null and `error` set when none can be had. `scheduler` null: the current one.
Fiber* allocate_fiber(Scheduler* scheduler, const SpawnOptions& options, std::size_t frame_size,
                      std::size_t frame_align, std::error_code& error) noexcept;
void* fiber_frame(Fiber* fiber) noexcept;
// The fiber-local memory of SpawnOptions::local_size; null: none.
void* fiber_local(const Fiber* fiber) noexcept;
struct StackBounds {
  char* low;   // the last usable byte
  char* high;  // where the stack begins
};
StackBounds fiber_stack(const Fiber* fiber) noexcept;
FiberId fiber_id(const Fiber* fiber) noexcept;
// Gives back what was allocated and not started.
void discard_fiber(Fiber* fiber) noexcept;
// Queues it. With `joinable` one reference belongs to the caller (release_fiber), else none.
void start_fiber(Fiber* fiber, const FrameOps* ops, bool joinable) noexcept;
// Waits for the end; the fiber's exception, if any, is rethrown once.
Result<void> join_fiber(Fiber* fiber, Deadline deadline);
bool fiber_done(const Fiber* fiber) noexcept;
void release_fiber(Fiber* fiber) noexcept;
void cancel_fiber(Fiber* fiber) noexcept;

template <class R>
struct ResultSlot {
  alignas(R) unsigned char bytes[sizeof(R)];
  R& get() noexcept { return *std::launder(reinterpret_cast<R*>(bytes)); }
};
template <>
struct ResultSlot<void> {};

template <class F>
struct FiberFrame {
  using R = std::invoke_result_t<F&>;
  ResultSlot<R> result;  // first: JoinHandle<R> knows only R
  alignas(F) unsigned char fn[sizeof(F)];

  F& function() noexcept { return *std::launder(reinterpret_cast<F*>(fn)); }
  static void run(void* memory) {
    auto& frame = *static_cast<FiberFrame*>(memory);
    struct Destroy {
      F& fn;
      ~Destroy() { fn.~F(); }
    } destroy{frame.function()};
    if constexpr (std::is_void_v<R>) {
      destroy.fn();
    } else {
      new (frame.result.bytes) R(destroy.fn());
    }
  }
  static void discard(void* memory) noexcept { static_cast<FiberFrame*>(memory)->function().~F(); }
  static void drop(void* memory) noexcept {
    if constexpr (!std::is_void_v<R>) static_cast<FiberFrame*>(memory)->result.get().~R();
    (void)memory;
  }
  static constexpr FrameOps ops{&run, &discard, &drop};
};

template <class F>
Fiber* spawn_fiber(Scheduler* scheduler, F&& fn, const SpawnOptions& options, bool joinable,
                   std::error_code& error) {
  using Frame = FiberFrame<std::decay_t<F>>;
  Fiber* fiber = allocate_fiber(scheduler, options, sizeof(Frame), alignof(Frame), error);
  if (!fiber) return nullptr;
  struct Discard {
    Fiber* fiber;
    ~Discard() {
      if (fiber) discard_fiber(fiber);
    }
  } unless_stored{fiber};  // copying fn may throw
  auto* frame = static_cast<Frame*>(fiber_frame(fiber));
  new (frame->fn) std::decay_t<F>(std::forward<F>(fn));
  unless_stored.fiber = nullptr;
  start_fiber(fiber, &Frame::ops, joinable);
  return fiber;
}

template <class T>
struct FlattenResult {
  using type = Result<T>;
};
template <class T>
struct FlattenResult<Result<T>> {
  using type = Result<T>;
};

}  // namespace detail

// A weak name of a fiber: using it after the fiber has ended is a no-op that returns false.
// Copyable; any thread.
class FiberHandle {
 public:
  FiberHandle() = default;
  explicit FiberHandle(detail::Fiber* fiber) noexcept;  // of a fiber that is known to live
  FiberId id() const noexcept { return id_; }

  // Gives the fiber one permit: wakes its this_fiber::park(), or lets the next one return at
  // once. Permits are counted. False when the fiber has ended.
  bool unpark() const noexcept;
  // Cancels the fiber: its parking calls, present and future, fail with Errc::cancelled
  // (level-triggered) except under a Shield. False when the fiber has ended.
  bool cancel() const noexcept;
  // Takes cancel() back: parking calls that have not failed yet succeed again.
  bool uncancel() const noexcept;
  bool alive() const noexcept;
  friend bool operator==(const FiberHandle& a, const FiberHandle& b) noexcept {
    return a.slot_ == b.slot_ && a.id_ == b.id_;
  }

 private:
  detail::Fiber* fiber_ = nullptr;
  detail::StackSlot* slot_ = nullptr;
  FiberId id_ = 0;
};

// Owns the right to a fiber's result. Move-only. Dropping it detaches the fiber. The stack is
// kept until the fiber has ended and the handle is gone. An exception that nobody joins is
// reported once on stderr with the fiber's name (see set_unhandled_exception_handler). A result or
// exception that nobody takes is destroyed by whoever drops the handle, or by the fiber itself if
// that was before its end.
template <class T>
class [[nodiscard]] JoinHandle {
 public:
  using JoinResult = typename detail::FlattenResult<T>::type;

  JoinHandle() = default;
  explicit JoinHandle(detail::Fiber* fiber) noexcept : fiber_(fiber) {}
  explicit JoinHandle(std::error_code error) noexcept : error_(error) {}
  JoinHandle(JoinHandle&& other) noexcept
      : fiber_(std::exchange(other.fiber_, nullptr)), error_(other.error_) {}
  JoinHandle& operator=(JoinHandle&& other) noexcept {
    if (this != &other) {
      detach();
      fiber_ = std::exchange(other.fiber_, nullptr);
      error_ = other.error_;
    }
    return *this;
  }
  ~JoinHandle() { detach(); }

  // Why the spawn failed; zero when the fiber was started.
  std::error_code error() const noexcept { return error_; }
  // False when the spawn failed, and once it was joined or detached.
  explicit operator bool() const noexcept { return fiber_ != nullptr; }
  // A snapshot: whether the fiber has ended, so that join() would not wait.
  bool done() const noexcept { return fiber_ && detail::fiber_done(fiber_); }

  // Parks until the fiber ends (on an OS thread: blocks) and returns its value, once; a fiber
  // that returns Result<U> gives that Result. Rethrows the fiber's exception. Fails with the
  // spawn's error, or with timed_out or cancelled of the caller; then it may be joined again; with
  // closed when it was joined or detached before. An OS thread that is to run the scheduler itself
  // must not join before that: the fiber would never begin.
  JoinResult join(Deadline deadline = {}) {
    if (!fiber_) return Unexpected{error_ ? error_ : make_error_code(Errc::closed)};
    struct Release {
      JoinHandle* handle;
      ~Release() {
        if (handle) handle->detach();
      }
    } release{this};
    auto joined = detail::join_fiber(fiber_, deadline);
    if (!joined) {
      release.handle = nullptr;
      return Unexpected{joined.error()};
    }
    if constexpr (std::is_void_v<T>) {
      return {};
    } else {
      return std::move(static_cast<detail::ResultSlot<T>*>(detail::fiber_frame(fiber_))->get());
    }
  }
  // As FiberHandle::cancel(). Doesn't wait for the end.
  void cancel() const noexcept {
    if (fiber_) detail::cancel_fiber(fiber_);
  }
  // A weak name of the fiber; of none when there is none.
  FiberHandle handle() const noexcept { return fiber_ ? FiberHandle(fiber_) : FiberHandle(); }
  // Gives the right to the result up; the fiber goes on.
  void detach() noexcept {
    if (fiber_) detail::release_fiber(std::exchange(fiber_, nullptr));
  }

 private:
  detail::Fiber* fiber_ = nullptr;
  std::error_code error_;
};

// Starts `fn()` on a fiber of the calling thread's scheduler. Does not park and does not run the
// fiber yet. When no fiber can be had (fiber_limit, map_limit, stack_size, or no scheduler:
// not_in_fiber) the handle carries the error and join() returns it.
template <class F>
auto spawn(F&& fn, const SpawnOptions& options = {})
    -> JoinHandle<std::invoke_result_t<std::decay_t<F>&>> {
  std::error_code error;
  auto* fiber = detail::spawn_fiber(nullptr, std::forward<F>(fn), options, true, error);
  using Handle = JoinHandle<std::invoke_result_t<std::decay_t<F>&>>;
  return fiber ? Handle(fiber) : Handle(error);
}

// As spawn, detached. The Result says whether it was started.
template <class F>
Result<FiberHandle> go(F&& fn, const SpawnOptions& options = {}) {
  std::error_code error;
  auto* fiber = detail::spawn_fiber(nullptr, std::forward<F>(fn), options, true, error);
  if (!fiber) return Unexpected{error};
  FiberHandle handle(fiber);
  detail::release_fiber(fiber);
  return handle;
}

// Called with a fiber's name and exception when nobody joins it; default, and null: one line on
// stderr. For the whole process; any thread.
using UnhandledExceptionHandler = void (*)(std::string_view fiber, std::exception_ptr exception);
void set_unhandled_exception_handler(UnhandledExceptionHandler handler) noexcept;

namespace this_fiber {

// True on a fiber. Off one the calls below give 0, a handle of no fiber, an empty name, null.
bool exists() noexcept;
FiberId id() noexcept;
FiberHandle handle() noexcept;
std::string_view name() noexcept;
// The fiber-local memory asked for with SpawnOptions::local_size; null when none.
void* local() noexcept;
// Bytes of stack left below the caller's frame.
std::size_t stack_left() noexcept;

// Lets every other ready fiber of the hub run first. Not a cancel point. A no-op off a fiber.
void yield() noexcept;
// Parks until the time has come. Fails with cancelled, or timed_out of an enclosing scope. Off a
// fiber it blocks the thread. A deadline that has passed yields.
Result<void> sleep_until(Deadline deadline);
template <class Rep, class Period>
Result<void> sleep_for(std::chrono::duration<Rep, Period> duration) {
  return sleep_until(Deadline::after(duration));
}
// Consumes one permit of FiberHandle::unpark(), parking until there is one. With
// `foreign_wakeable` another OS thread is expected to unpark it: Scheduler::run() waits for that
// instead of reporting a deadlock. Fails with timed_out, cancelled, not_in_fiber.
Result<void> park(Deadline deadline = {}, bool foreign_wakeable = false);
// While one lives, a call of this fiber that would have to park fails with park_forbidden (inside
// callbacks of a language runtime or a library that must not be left by a switch).
class ForbidPark {
 public:
  ForbidPark() noexcept;
  ~ForbidPark();
  ForbidPark(const ForbidPark&) = delete;
  ForbidPark& operator=(const ForbidPark&) = delete;
};
// Errc::cancelled or timed_out when the fiber's next parking call would fail with it.
Result<void> check_cancelled() noexcept;

}  // namespace this_fiber
}  // namespace runloom
