#include "file_engine.hpp"

#include <atomic>
#include <mutex>

#include "runloom/sched/cancel.hpp"
#include "runloom/sched/fiber.hpp"

namespace runloom::net {
namespace {

std::atomic<bool> pool_only{false};

class PoolFileEngine final : public FileEngine {
 public:
  Result<void> start(FileOp& op) noexcept override { return detail::submit(op); }
  bool withdraw(FileOp& op) noexcept override { return detail::withdraw(op); }
};
constinit PoolFileEngine pool;

Result<long> outcome(const FileOp& op) noexcept {
  if (op.result < 0) return fail_errno(static_cast<int>(-op.result));
  return op.result;
}

// On the calling thread. The hooks let a language runtime run its other threads meanwhile.
void perform_here(FileOp& op) noexcept {
  const auto hooks = detail::on_fiber() ? detail::ThreadWaitHooks{} : detail::thread_wait_hooks();
  void* const state = hooks.before ? hooks.before() : nullptr;
  op.result = op.perform();
  if (hooks.after) hooks.after(state);
}

constexpr detail::WaitOptions kWait{.reason = WaitReason::blocking, .external = true};

// Stays until the operation has ended: neither a deadline nor a cancel ends this wait.
void await_end(const FileOp& op) {
  detail::WaitOptions options = kWait;
  options.cancellable = false;
  detail::wait(op.token, options);
}

Result<long> run(FileOp& op, Deadline deadline, bool may_leave, bool& left) {
  if (!detail::on_fiber()) {
    perform_here(op);
    return outcome(op);
  }
  if (!detail::may_park()) return fail(Errc::park_forbidden);
  if (const auto allowed = this_fiber::check_cancelled(); !allowed)
    return Unexpected{allowed.error()};
  if (deadline.passed()) return fail(Errc::timed_out);

  FileEngine& engine = file_engine(op);
  op.token = detail::begin_wait();
  if (const auto started = engine.start(op); !started) {
    detail::try_abandon(op.token);
    return Unexpected{started.error()};
  }
  detail::WaitOptions options = kWait;
  options.deadline = deadline;
  const detail::WakeCode code = detail::wait(op.token, options);
  if (code == detail::kWakeUser) return outcome(op);

  std::unique_lock hold(op.lock);
  if (op.done) return outcome(op);  // it was quicker
  if (engine.withdraw(op)) return fail(detail::wake_error(code));
  if (may_leave) {
    op.left = true;
    left = true;
    return fail(detail::wake_error(code));
  }
  op.token = detail::begin_wait();
  hold.unlock();
  await_end(op);
  if (op.result == -ECANCELED) return fail(detail::wake_error(code));
  return outcome(op);
}

}  // namespace

FileEngine& pool_file_engine() noexcept {
  return pool;
}

void prefer_pool_for_files(bool prefer) noexcept {
  pool_only.store(prefer, std::memory_order_relaxed);
}

bool pool_is_preferred() noexcept {
  return pool_only.load(std::memory_order_relaxed);
}

FileEngine& file_engine(const FileOp& op) noexcept {
  FileEngine* const ring = pool_is_preferred() ? nullptr : uring_file_engine(op);
  return ring ? *ring : pool;
}

Result<long> run_waiting(FileOp& op, Deadline deadline) {
  bool left = false;
  return run(op, deadline, false, left);
}

Result<long> run_or_leave(std::unique_ptr<FileOp>& op, Deadline deadline) {
  // The fiber's stack outlives none of this: once it is left, the operation is its own owner.
  bool left = false;
  auto ended = run(*op, deadline, true, left);
  if (left) (void)op.release();
  return ended;
}

long run_always(FileOp& op) noexcept {
  if (detail::on_fiber() && detail::may_park()) {
    const Shield shield;
    op.token = detail::begin_wait();
    if (file_engine(op).start(op)) {
      await_end(op);
      return op.result;
    }
    detail::try_abandon(op.token);
  }
  perform_here(op);
  return op.result;
}

}  // namespace runloom::net
