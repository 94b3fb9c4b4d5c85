#include "uring.hpp"

#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "high_fd.hpp"

namespace runloom::net {
namespace {

constexpr unsigned kLeastEntries = 16;
constexpr unsigned kCompletionsPerEntry = 4;
// Entries that only cancels may take.
constexpr unsigned kReserved = 4;
// What a cancel's own completion carries.
constexpr std::uint64_t kNobody = 0;

// From the best to what every kernel knows. Completions by DEFER_TASKRUN come when the thread asks
// for them, and not by interrupting it.
constexpr unsigned kSetups[] = {
    IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
    IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
    0,
};

// NODROP: no completion is lost. EXT_ARG: a wait with a time limit. FAST_POLL: an operation on a
// socket that isn't ready waits without a thread. SUBMIT_STABLE: what an SQE points to besides
// buffers may go once it is submitted.
constexpr unsigned kFeatures =
    IORING_FEAT_NODROP | IORING_FEAT_EXT_ARG | IORING_FEAT_FAST_POLL | IORING_FEAT_SUBMIT_STABLE;
constexpr int kOperations[] = {
    IORING_OP_RECV,     IORING_OP_SEND,  IORING_OP_RECVMSG,      IORING_OP_SENDMSG,
    IORING_OP_POLL_ADD, IORING_OP_READ,  IORING_OP_WRITE,        IORING_OP_READV,
    IORING_OP_WRITEV,   IORING_OP_FSYNC, IORING_OP_ASYNC_CANCEL,
};

std::string memlock_text() {
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  return "RLIMIT_MEMLOCK is " + (limit.rlim_cur == RLIM_INFINITY
                                     ? "unlimited"
                                     : std::to_string(limit.rlim_cur / 1024) + " KiB");
}

std::string explain(int err) {
  std::string text = std::string("io_uring_setup: ") + std::strerror(err);
  if (err == ENOMEM) text += " (" + memlock_text() + ")";
  if (err == EPERM) text += " (a filter of system calls, or kernel.io_uring_disabled)";
  return text;
}

}  // namespace

// ---------------------------------------------------------------- set-up

int Uring::set_up(unsigned entries) noexcept {
  int result = -EINVAL;
  for (const unsigned flags : kSetups) {
    io_uring_params params{};
    params.flags = flags | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP | IORING_SETUP_SUBMIT_ALL;
    params.cq_entries = entries * kCompletionsPerEntry;
    result = ::io_uring_queue_init_params(entries, &ring_, &params);
    if (result != -EINVAL) break;
  }
  return result;
}

bool Uring::supports(std::string& missing) noexcept {
  if ((ring_.features & kFeatures) != kFeatures) {
    missing = "this kernel's io_uring is too old";
    return false;
  }
  io_uring_probe* probe = ::io_uring_get_probe_ring(&ring_);
  bool all = probe != nullptr;
  for (const int operation : kOperations)
    all = all && io_uring_opcode_supported(probe, operation);
  ::io_uring_free_probe(probe);
  if (!all) {
    missing = "this kernel's io_uring lacks operations";
    return false;
  }
  static std::atomic<bool> waits_for_sockets{false};
  if (waits_for_sockets.load(std::memory_order_relaxed)) return true;
  // Our sockets are non-blocking. Older kernels took that for a wish that the operation shall not
  // wait either.
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0) {
    missing = std::string("socketpair: ") + std::strerror(errno);
    return false;
  }
  bool early = false;
  std::byte byte;
  UringOp op([](UringOp&, int, std::uint32_t) noexcept {});
  if (io_uring_sqe* sqe = prepare()) {
    io_uring_prep_recv(sqe, pair[0], &byte, 1, 0);
    start(*sqe, op);
    enter(0);
    early = !op.in_flight;
    if (::send(pair[1], "", 1, MSG_NOSIGNAL) == 1)
      while (op.in_flight && enter(-1) != -EBADF) {
      }
  }
  ::close(pair[0]);
  ::close(pair[1]);
  if (early) missing = "this kernel's io_uring doesn't wait for non-blocking sockets";
  waits_for_sockets.store(!early, std::memory_order_relaxed);
  return !early;
}

Result<std::unique_ptr<Uring>> Uring::make(unsigned entries, std::string* why) {
  std::unique_ptr<Uring> ring(new Uring);
  int result = ring->set_up(entries);
  while (result == -ENOMEM && entries > kLeastEntries) {
    entries = std::max(kLeastEntries, entries / 4);
    result = ring->set_up(entries);
  }
  if (result != 0) {
    if (why) *why = explain(-result);
    return fail_errno(-result);
  }
  ring->open_ = true;
  ring->ring_.ring_fd = ring->ring_.enter_ring_fd = move_high(ring->ring_.ring_fd);
  ::io_uring_ring_dontfork(&ring->ring_);
  // Spares a look at the table of descriptors with each enter, and keeps the ring when other code
  // closes its number.
  ::io_uring_register_ring_fd(&ring->ring_);
  // Operations on files that would block run on threads of the kernel: bounded, however many
  // there are. Best effort.
  unsigned workers[2] = {16, 16};
  ::io_uring_register_iowq_max_workers(&ring->ring_, workers);
  std::string missing;
  if (!ring->supports(missing)) {
    if (why) *why = missing;
    return fail_errno(ENOTSUP);
  }
  return ring;
}

Uring::~Uring() {
  shut();
}

void Uring::shut() noexcept {
  cancels_ = nullptr;
  in_flight_ = ending_ = 0;
  if (std::exchange(open_, false)) ::io_uring_queue_exit(&ring_);
}

void Uring::abandon() noexcept {
  const bool was_open = std::exchange(open_, false);
  shut();
  if (!was_open) return;
  // The memory was not inherited, and the registration belongs to the parent.
  ::close(ring_.ring_fd);
}

// Without the registration, io_uring_enter(2) by the number fails, and the operations with it.
void Uring::forget_number() noexcept {
  ring_.ring_fd = -1;
}

// ---------------------------------------------------------------- submission

io_uring_sqe* Uring::prepare() noexcept {
  if (io_uring_sq_space_left(&ring_) <= kReserved) {
    ::io_uring_submit(&ring_);
    if (io_uring_sq_space_left(&ring_) <= kReserved) return nullptr;
  }
  return ::io_uring_get_sqe(&ring_);
}

void Uring::discard(io_uring_sqe& sqe) noexcept {
  io_uring_prep_nop(&sqe);
  io_uring_sqe_set_data64(&sqe, kNobody);
}

void Uring::start(io_uring_sqe& sqe, UringOp& op) noexcept {
  io_uring_sqe_set_data64(&sqe, reinterpret_cast<std::uintptr_t>(&op));
  op.in_flight = true;
  op.cancelling = false;
  ++in_flight_;
}

void Uring::cancel(UringOp& op) noexcept {
  if (!open_ || !op.in_flight || op.cancelling) return;
  op.cancelling = true;
  ++ending_;
  op.next_cancel = cancels_;
  cancels_ = &op;
  submit_cancels();
}

void Uring::submit_cancels() noexcept {
  while (cancels_) {
    io_uring_sqe* sqe = ::io_uring_get_sqe(&ring_);
    if (!sqe) return;  // with the next enter()
    UringOp& op = *cancels_;
    cancels_ = op.next_cancel;
    io_uring_prep_cancel64(sqe, reinterpret_cast<std::uintptr_t>(&op), 0);
    io_uring_sqe_set_data64(sqe, kNobody);
  }
}

// ---------------------------------------------------------------- completion

bool Uring::needs_enter() const noexcept {
  constexpr unsigned kWanted = IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW;
  return io_uring_sq_ready(&ring_) != 0 || (IO_URING_READ_ONCE(*ring_.sq.kflags) & kWanted) != 0;
}

bool Uring::has_work() const noexcept {
  return open_ && (cancels_ || needs_enter() || io_uring_cq_ready(&ring_) != 0);
}

int Uring::enter(std::int64_t timeout_ns) noexcept {
  submit_cancels();
  int result = 0;
  if (timeout_ns == 0) {
    if (needs_enter()) result = ::io_uring_submit_and_get_events(&ring_);
  } else {
    io_uring_cqe* first = nullptr;
    __kernel_timespec limit{};
    if (timeout_ns > 0) {
      limit.tv_sec = timeout_ns / 1'000'000'000;
      limit.tv_nsec = timeout_ns % 1'000'000'000;
    }
    result = ::io_uring_submit_and_wait_timeout(&ring_, &first, 1,
                                                timeout_ns > 0 ? &limit : nullptr, nullptr);
  }
  const int count = deliver();
  return count > 0 || result >= 0 ? count : result;
}

// With many connections each completion finds cold what it touches: the operation, the frames of
// its fiber around it, then the fiber and the descriptor. They are fetched a few completions ahead,
// so that these misses overlap.
void Uring::fetch_ahead(unsigned ready) const noexcept {
  constexpr unsigned kAhead = 3;
  constexpr int kLinesBelow = 5;   // the frames between the operation and the switch
  constexpr int kLinesAbove = 13;  // up to the fiber's own code
  const auto op_at = [this](unsigned at) {
    const io_uring_cqe& cqe = ring_.cq.cqes[(*ring_.cq.khead + at) & ring_.cq.ring_mask];
    return reinterpret_cast<const UringOp*>(static_cast<std::uintptr_t>(cqe.user_data));
  };
  if (2 * kAhead < ready) {
    const auto* op = reinterpret_cast<const char*>(op_at(2 * kAhead));
    for (int line = -kLinesBelow; op && line < kLinesAbove; ++line)
      __builtin_prefetch(op + 64 * line, 1);
  }
  if (kAhead < ready) {
    const UringOp* op = op_at(kAhead);
    if (!op || !op->waiter) return;
    for (int line = 0; line < 3; ++line)
      __builtin_prefetch(static_cast<const char*>(op->waiter) + 64 * line, 1);
    for (int line = 0; line < 2; ++line)
      __builtin_prefetch(static_cast<const char*>(op->object) + 64 * line, 1);
  }
}

// Not by io_uring_peek_cqe(): when it finds nothing it may enter the kernel.
int Uring::deliver() noexcept {
  if (IO_URING_READ_ONCE(*ring_.sq.kflags) & IORING_SQ_CQ_OVERFLOW) ++overflows_;
  int count = 0;
  while (count < kBatch) {
    const unsigned ready = io_uring_cq_ready(&ring_);
    if (ready == 0) break;
    fetch_ahead(ready);
    const io_uring_cqe& cqe = ring_.cq.cqes[*ring_.cq.khead & ring_.cq.ring_mask];
    const std::uint64_t data = cqe.user_data;
    const int result = cqe.res;
    const std::uint32_t flags = cqe.flags;
    io_uring_cq_advance(&ring_, 1);
    if (data == kNobody) continue;
    ++count;
    auto& op = *reinterpret_cast<UringOp*>(static_cast<std::uintptr_t>(data));
    if ((flags & IORING_CQE_F_MORE) == 0) ended(op);
    op.done(op, result, flags);
  }
  return count;
}

void Uring::ended(UringOp& op) noexcept {
  op.in_flight = false;
  --in_flight_;
  if (!op.cancelling) return;
  --ending_;
  // Its cancel may still be waiting for an entry.
  for (UringOp** link = &cancels_; *link; link = &(*link)->next_cancel) {
    if (*link != &op) continue;
    *link = op.next_cancel;
    return;
  }
}

}  // namespace runloom::net
