// UringNetpoll: the io_uring backend of a hub.
//
// Receives and sends are operations of the ring: the kernel does the whole transfer, and all that
// a loop turn started goes to it with one system call. What has no operation of its own worth
// having (accept, connect, pipes) waits by one: a one-shot poll.
//
// - Nothing is in flight that no fiber waits for, but the polls of select() and the backend's own
//   wake-up. So bytes and connections are never taken before somebody asks for them, and there is
//   nothing to hand over when a descriptor leaves us.
// - An operation belongs to the ring of the fiber that waits, whichever hub made the stream. Close
//   wakes the fiber (it is the `waiter` of its direction, as with epoll), and the fiber cancels its
//   operation and waits for its end before it leaves (I7). So no PollDesc is registered anywhere.
// - A deadline and a cancel end the wait in the same way. After them the transfer is attempted once
//   more without waiting, so that what has arrived meanwhile wins.
// - A receive whose memory is asked for late gets a buffer of the ring when bytes have come, and
//   its own memory then.
// - A fiber that has the hub for itself makes its system call at once: there is nothing to share an
//   io_uring_enter(2) with.
// - Descriptors that are not ours are watched by an epoll instance, which the ring polls: a poll
//   operation would keep a closed one alive.
#pragma once

#include <memory>
#include <vector>

#include "backends.hpp"
#include "foreign_fds.hpp"
#include "io_loop.hpp"
#include "uring.hpp"
#include "uring_buffers.hpp"

namespace runloom::net {

class UringNetpoll final : public IoLoop, public ForeignKernel, public Backend {
 public:
  static Result<std::unique_ptr<UringNetpoll>> make(std::string* why);
  ~UringNetpoll() override;

  std::string_view name() const noexcept override { return "io_uring"; }
  int poll(std::int64_t timeout_ns) override;
  void wake() noexcept override;
  bool wants_poll() const noexcept override;
  void leave_thread() noexcept override;
  void after_fork() noexcept override;
  Result<void> watch(const Watcher& watcher) override;

  Result<std::size_t> recv(PollDesc& desc, std::span<std::byte> buffer, int flags,
                           Deadline deadline) override;
  Result<std::size_t> recv_late(PollDesc& desc, RecvBuffer& buffer, Deadline deadline) override;
  Result<std::size_t> send(PollDesc& desc, std::span<const std::byte> data, int flags,
                           Deadline deadline) override;
  Result<std::size_t> recvmsg(PollDesc& desc, msghdr& message, int flags,
                              Deadline deadline) override;
  Result<std::size_t> sendmsg(PollDesc& desc, const msghdr& message, int flags,
                              Deadline deadline) override;
  Result<unsigned> poll_foreign(int fd, unsigned directions, Deadline deadline) override;
  Result<void> link(PollDesc& desc, detail::WaitNode& node) override;
  void unlink(PollDesc& desc, detail::WaitNode& node) noexcept override;
  Result<void> link_foreign(int fd, detail::WaitNode& node) override;
  void unlink_foreign(int fd, detail::WaitNode& node) noexcept override;

  // The ring, for whatever else a hub does with one.
  Uring& ring() noexcept { return *ring_; }
  Uring* file_ring() noexcept override { return ring_->usable() ? ring_.get() : nullptr; }

 private:
  struct FiberOp;
  struct SelectOp;
  // A poll of the backend's own.
  struct OwnPoll : UringOp {
    using UringOp::UringOp;
    bool came = false;
  };

  explicit UringNetpoll(std::unique_ptr<Uring> ring);
  int open() noexcept;
  void close_all() noexcept;
  void renew() noexcept;
  bool inherited() const noexcept;
  void reopen() noexcept;
  void forget_own() noexcept;
  void lost() noexcept;
  bool revive_after(std::error_code error) noexcept;
  int wait_for_ring(std::int64_t timeout_ns) noexcept;
  void poll_own(OwnPoll& op, int fd, bool many) noexcept;
  void drain_foreign() noexcept;
  io_uring_sqe* entry() noexcept;
  bool alone() const noexcept;

  template <class Prepare, class Link, class Unlink>
  detail::WakeCode run(FiberOp& op, PollDesc& desc, WaitReason reason, Deadline deadline,
                       Prepare&& prepare, Link&& link, Unlink&& unlink);
  template <class Prepare>
  detail::WakeCode run_side(FiberOp& op, PollDesc& desc, Side side, WaitReason reason,
                            Deadline deadline, Prepare&& prepare);
  template <class Prepare, class Call>
  Result<std::size_t> transfer(FiberOp& op, PollDesc& desc, Side side, Deadline deadline,
                               Prepare&& prepare, Call&& call);
  void settle(FiberOp& op, WaitReason reason, const void* shown) noexcept;
  void drop(SelectOp& op) noexcept;

  Result<detail::WakeCode> await_event(PollDesc& desc, Side side, std::uint32_t seen,
                                       WaitReason reason, Deadline deadline) override;
  Result<detail::WakeCode> await_watch(PollDesc& desc, Watch& watch, Deadline deadline) override;
  Result<void> arm_foreign(ForeignFd& entry) override;
  void disarm_foreign(ForeignFd& entry) noexcept override;
  void claim_foreign(int fd, detail::WakeCode code, std::vector<detail::Waiter*>& claimed) override;

  std::unique_ptr<UringBuffers> buffers_;  // outlives the ring; null: this kernel has none
  std::unique_ptr<Uring> ring_;
  std::unique_ptr<ForeignFds> foreign_;
  std::atomic<int> wake_{-1};
  int epoll_ = -1;
  unsigned fork_;
  Watcher watcher_;
  OwnPoll wake_poll_;
  OwnPoll epoll_poll_;
  OwnPoll watcher_poll_;
  SelectOp* selects_ = nullptr;  // in flight
};

}  // namespace runloom::net
