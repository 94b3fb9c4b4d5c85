#include "uring_operations.hpp"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "runloom/sched/fiber.hpp"

namespace runloom::net {

using detail::WaitNode;
using detail::WakeCode;

// ---------------------------------------------------------------- one operation of a fiber

void UringNetpoll::FiberOp::completed(UringOp& op, int result, std::uint32_t flags) noexcept {
  auto& self = static_cast<FiberOp&>(op);
  self.result = result;
  self.flags = flags;
  if (detail::claim(self.node.token, kWakeEvent)) detail::schedule(self.node.token.waiter);
}

io_uring_sqe* UringNetpoll::entry() noexcept {
  if (inherited()) [[unlikely]]
    renew();
  constexpr int kMostTurns = 64;
  for (int turn = 0; turn < kMostTurns; ++turn) {
    if (!ring_->usable()) reopen();
    if (ring_->usable())
      if (io_uring_sqe* sqe = ring_->prepare()) return sqe;
    if (!detail::may_park()) break;
    this_fiber::yield();  // the hub fetches completions, which makes room
  }
  return nullptr;
}

bool UringNetpoll::alone() const noexcept {
  return !ring_->has_entries() && !detail::others_ready();
}

// Runs the operation to its end and returns how the wait ended; the operation's result may tell
// of success all the same. `link` makes the node known to whoever may end the wait, `unlink` takes
// it back; both are called with the PollDesc's lock held.
template <class Prepare, class Link, class Unlink>
WakeCode UringNetpoll::run(FiberOp& op, PollDesc& desc, WaitReason reason, Deadline deadline,
                           Prepare&& prepare, Link&& link, Unlink&& unlink) {
  op.result = -ECANCELED;
  op.flags = 0;
  io_uring_sqe* sqe = entry();
  if (!sqe) {
    op.result = -ENOMEM;
    return kWakeEvent;
  }
  new (&op.node) WaitNode(detail::begin_wait(), kWakeEvent);
  op.waiter = op.node.token.waiter;
  op.object = &desc;
  {
    std::lock_guard hold(desc.lock);
    if (desc.closed()) {
      Uring::discard(*sqe);
      detail::try_abandon(op.node.token);
      return detail::kWakeClosed;
    }
    link();
  }
  prepare(*sqe);
  ring_->start(*sqe, op);
  const WakeCode code = detail::wait(
      op.node.token,
      {.reason = reason, .object = desc.shown(), .deadline = deadline, .external = true});
  {
    std::lock_guard hold(desc.lock);
    unlink();
  }
  if (op.in_flight) settle(op, reason, desc.shown());
  return code;
}

// The wait has ended, and the operation has not.
void UringNetpoll::settle(FiberOp& op, WaitReason reason, const void* shown) noexcept {
  ring_->cancel(op);
  while (op.in_flight) {
    op.node.token = detail::begin_wait();
    const WakeCode code = detail::wait(
        op.node.token, {.reason = reason, .object = shown, .cancellable = false, .external = true});
    if (code == detail::kWakeForbidden) ring_->enter(-1);
  }
}

template <class Prepare>
WakeCode UringNetpoll::run_side(FiberOp& op, PollDesc& desc, Side side, WaitReason reason,
                                Deadline deadline, Prepare&& prepare) {
  PollDesc::Direction& direction = desc.direction[side];
  return run(
      op, desc, reason, deadline, prepare, [&] { direction.waiter = &op.node; },
      [&] {
        if (direction.waiter == &op.node) direction.waiter = nullptr;
      });
}

// ---------------------------------------------------------------- transfers

// `call` is the same transfer as a system call that doesn't wait.
template <class Prepare, class Call>
Result<std::size_t> UringNetpoll::transfer(FiberOp& op, PollDesc& desc, Side side,
                                           Deadline deadline, Prepare&& prepare, Call&& call) {
  const WaitReason reason = side == kReadSide ? WaitReason::io_read : WaitReason::io_write;
  for (;;) {
    const WakeCode code = run_side(op, desc, side, reason, deadline, prepare);
    if (op.result > 0) return static_cast<std::size_t>(op.result);
    if (code == detail::kWakeClosed) return fail(Errc::closed);
    if (op.result == 0) return std::size_t{0};
    if (op.result == -EINTR) continue;
    // ENOBUFS: all of the ring's buffers are taken, and bytes are there.
    if (op.result != -ECANCELED && op.result != -EAGAIN && op.result != -ENOBUFS)
      return fail_errno(-op.result);
    ssize_t moved;
    do
      moved = call();
    while (moved < 0 && errno == EINTR);
    if (moved >= 0) return static_cast<std::size_t>(moved);
    if (!would_block(errno)) return fail(last_errno());
    if (code != kWakeEvent) return fail(detail::wake_error(code));
  }
}

namespace {

// The ring takes these over. Without a wait there is nothing that it could do better.
bool is_plain(int flags, Deadline deadline) noexcept {
  return flags == 0 && !(deadline == Deadline::now());
}

// A datagram that had to wait for room in a Unix socket's queue is sent empty when the kernel tries
// again (Linux 6.18): it has been copied by then.
bool may_wait_in_ring(const PollDesc& desc) noexcept {
  return desc.kind != FdKind::datagram;
}

// What is known of a socket after a receive: whether the next one will have to wait.
void note_received(PollDesc& desc, int result, std::uint32_t flags) noexcept {
  PollDesc::Direction& direction = desc.direction[kReadSide];
  const std::uint32_t seen = direction.seq.load(std::memory_order_relaxed);
  const bool drained =
      desc.short_is_drained && result > 0 && (flags & IORING_CQE_F_SOCK_NONEMPTY) == 0;
  direction.drained.store(drained ? seen : seen - 1, std::memory_order_relaxed);
}

// One attempt that doesn't wait.
ssize_t recv_into(PollDesc& desc, RecvBuffer& buffer) noexcept {
  const std::span<std::byte> memory = buffer.take();
  if (memory.empty()) {
    errno = ENOMEM;
    return -1;
  }
  const ssize_t moved = ::recv(desc.fd, memory.data(), memory.size(), MSG_DONTWAIT);
  buffer.give_back(moved);
  return moved;
}

// The caller's memory gets what has been received already. Where there is none the bytes are lost.
Result<std::size_t> hand_over(std::span<const std::byte> bytes, RecvBuffer& buffer) noexcept {
  const std::span<std::byte> memory = buffer.take_for(bytes.size());
  if (memory.size() < bytes.size()) {
    if (!memory.empty()) buffer.give_back(-1);
    return fail_errno(ENOMEM);
  }
  if (!bytes.empty()) std::memcpy(memory.data(), bytes.data(), bytes.size());
  buffer.give_back(static_cast<std::ptrdiff_t>(bytes.size()));
  return bytes.size();
}

bool is_drained(const PollDesc& desc) noexcept {
  const PollDesc::Direction& direction = desc.direction[kReadSide];
  return direction.seq.load(std::memory_order_relaxed) ==
         direction.drained.load(std::memory_order_relaxed);
}

}  // namespace

Result<std::size_t> UringNetpoll::recv(PollDesc& desc, std::span<std::byte> buffer, int flags,
                                       Deadline deadline) {
  if (!is_plain(flags, deadline) || buffer.empty() || (!is_drained(desc) && alone()))
    return IoLoop::recv(desc, buffer, flags, deadline);
  FiberOp op;
  auto moved = transfer(
      op, desc, kReadSide, deadline,
      [&](io_uring_sqe& sqe) {
        io_uring_prep_recv(&sqe, desc.fd, buffer.data(), buffer.size(), 0);
      },
      [&] { return ::recv(desc.fd, buffer.data(), buffer.size(), MSG_DONTWAIT); });
  note_received(desc, op.result, op.flags);
  return moved;
}

// A stream that has more than a buffer's bytes ready, or may have, is read straight into the
// memory of the caller.
Result<std::size_t> UringNetpoll::recv_late(PollDesc& desc, RecvBuffer& buffer, Deadline deadline) {
  const std::size_t most = std::min(buffer.room(), UringBuffers::kSize);
  if (!buffers_ || most == 0 || !is_plain(0, deadline) || !is_drained(desc))
    return IoLoop::recv_late(desc, buffer, deadline);
  FiberOp op;
  bool direct = false;  // the last attempt went into the caller's memory
  auto moved = transfer(
      op, desc, kReadSide, deadline,
      [&](io_uring_sqe& sqe) {
        direct = false;
        io_uring_prep_recv(&sqe, desc.fd, nullptr, most, 0);
        UringBuffers::select(sqe);
      },
      [&] {
        direct = true;
        return recv_into(desc, buffer);
      });
  note_received(desc, op.result, op.flags);
  if (direct || !moved) return moved;
  // The end of the stream comes without a buffer.
  const bool filled = (op.flags & IORING_CQE_F_BUFFER) != 0;
  const unsigned index = UringBuffers::index_of(op.flags);
  Result<std::size_t> taken =
      hand_over(filled ? buffers_->bytes(index, *moved) : std::span<const std::byte>(), buffer);
  if (filled) buffers_->give_back(index);
  if (!taken) desc.read_broken = true;
  return taken;
}

Result<std::size_t> UringNetpoll::send(PollDesc& desc, std::span<const std::byte> data, int flags,
                                       Deadline deadline) {
  if (!is_plain(flags, deadline) || !may_wait_in_ring(desc) || alone())
    return IoLoop::send(desc, data, flags, deadline);
  FiberOp op;
  return transfer(
      op, desc, kWriteSide, deadline,
      [&](io_uring_sqe& sqe) {
        io_uring_prep_send(&sqe, desc.fd, data.data(), data.size(), MSG_NOSIGNAL);
      },
      [&] { return ::send(desc.fd, data.data(), data.size(), MSG_NOSIGNAL | MSG_DONTWAIT); });
}

// Descriptors and credentials travel by the system call only.
Result<std::size_t> UringNetpoll::recvmsg(PollDesc& desc, msghdr& message, int flags,
                                          Deadline deadline) {
  if (!is_plain(flags, deadline) || message.msg_control)
    return IoLoop::recvmsg(desc, message, flags, deadline);
  FiberOp op;
  auto moved = transfer(
      op, desc, kReadSide, deadline,
      [&](io_uring_sqe& sqe) { io_uring_prep_recvmsg(&sqe, desc.fd, &message, MSG_CMSG_CLOEXEC); },
      [&] { return ::recvmsg(desc.fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT); });
  note_received(desc, op.result, op.flags);
  return moved;
}

Result<std::size_t> UringNetpoll::sendmsg(PollDesc& desc, const msghdr& message, int flags,
                                          Deadline deadline) {
  if (!is_plain(flags, deadline) || message.msg_control || !may_wait_in_ring(desc) || alone())
    return IoLoop::sendmsg(desc, message, flags, deadline);
  FiberOp op;
  return transfer(
      op, desc, kWriteSide, deadline,
      [&](io_uring_sqe& sqe) { io_uring_prep_sendmsg(&sqe, desc.fd, &message, MSG_NOSIGNAL); },
      [&] { return ::sendmsg(desc.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT); });
}

// ---------------------------------------------------------------- polls

Result<WakeCode> UringNetpoll::await_event(PollDesc& desc, Side side, std::uint32_t seen,
                                           WaitReason reason, Deadline deadline) {
  // Urgent data is no reason to try again: a poll would report it until it was read.
  constexpr unsigned kEvents[] = {POLLIN | POLLRDHUP, POLLOUT};
  if (deadline == Deadline::now())
    return this_fiber::check_cancelled() ? WakeCode{detail::kWakeTimedOut}
                                         : WakeCode{detail::kWakeCancelled};
  FiberOp op;
  const WakeCode code = run_side(op, desc, side, reason, deadline, [&](io_uring_sqe& sqe) {
    io_uring_prep_poll_add(&sqe, desc.fd, kEvents[side]);
  });
  // Nobody counts events here.
  desc.direction[side].drained.store(seen - 1, std::memory_order_relaxed);
  if (code == kWakeEvent && op.result < 0 && op.result != -ECANCELED && op.result != -EINTR)
    return fail_errno(-op.result);
  return code;
}

Result<WakeCode> UringNetpoll::await_watch(PollDesc& desc, Watch& watch, Deadline deadline) {
  for (;;) {
    FiberOp op;
    const WakeCode code = run(
        op, desc, WaitReason::io_poll, deadline,
        [&](io_uring_sqe& sqe) {
          io_uring_prep_poll_add(&sqe, desc.fd,
                                 static_cast<unsigned>(poll_events(watch.directions)));
        },
        [&] {
          op.node.data = &watch;
          desc.watchers.push_back(op.node);
        },
        [&] { desc.watchers.remove_if_linked(op.node); });
    if (watch.ended != detail::kWakePending) return watch.ended;
    if (op.result > 0) watch.ready |= poll_ready(static_cast<short>(op.result), watch.directions);
    if (watch.ready != 0) return WakeCode{kWakeEvent};
    if (code != kWakeEvent) return code;
    if (op.result < 0 && op.result != -ECANCELED && op.result != -EINTR)
      return fail_errno(-op.result);
  }
}

// ---------------------------------------------------------------- select

UringNetpoll::SelectOp::SelectOp(UringNetpoll& owner, PollDesc& polled, WaitNode& waiting) noexcept
    : UringOp(&completed), netpoll(owner), desc(polled), node(&waiting), next(owner.selects_) {
  if (next) next->prev = this;
  owner.selects_ = this;
}

void UringNetpoll::SelectOp::completed(UringOp& op, int result, std::uint32_t) noexcept {
  auto& self = static_cast<SelectOp&>(op);
  if (self.node) {
    WaitNode& node = *self.node;
    Watch& watch = watch_of(node);
    watch.operation = nullptr;
    detail::Waiter* woken = nullptr;
    {
      std::lock_guard hold(self.desc.lock);
      if (node.linked) {
        self.desc.watchers.remove(node);
        // An error is for the waiter to find.
        watch.ready = result > 0 ? poll_ready(static_cast<short>(result), watch.directions) : 0;
        if (watch.ready == 0) watch.ready = watch.directions;
        if (detail::claim(node.token, node.code)) woken = node.token.waiter;
      }
    }
    if (woken) detail::schedule(woken);
  }
  self.netpoll.drop(self);
}

void UringNetpoll::drop(SelectOp& op) noexcept {
  (op.prev ? op.prev->next : selects_) = op.next;
  if (op.next) op.next->prev = op.prev;
  leave(op.desc);
  delete &op;
}

Result<void> UringNetpoll::link(PollDesc& desc, WaitNode& node) {
  io_uring_sqe* sqe = entry();
  if (!sqe) return fail_errno(ENOMEM);
  const bool open = enter(desc, desc.generation());
  auto* op = open ? new (std::nothrow) SelectOp(*this, desc, node) : nullptr;
  if (!op) {
    Uring::discard(*sqe);
    if (open) leave(desc);
    return open ? fail_errno(ENOMEM) : fail(Errc::closed);
  }
  watch_of(node).operation = op;
  bool linked;
  {
    std::lock_guard hold(desc.lock);
    linked = !desc.closed();
    if (linked) desc.watchers.push_back(node);
  }
  io_uring_prep_poll_add(sqe, desc.fd,
                         static_cast<unsigned>(poll_events(watch_of(node).directions)));
  ring_->start(*sqe, *op);
  if (linked) return {};
  unlink(desc, node);
  return fail(Errc::closed);
}

void UringNetpoll::unlink(PollDesc& desc, WaitNode& node) noexcept {
  {
    std::lock_guard hold(desc.lock);
    desc.watchers.remove_if_linked(node);
  }
  auto* op = static_cast<SelectOp*>(std::exchange(watch_of(node).operation, nullptr));
  if (!op) return;
  op->node = nullptr;
  ring_->cancel(*op);
}

}  // namespace runloom::net
