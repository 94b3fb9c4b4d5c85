// IoLoop: the operations of the seam for whoever waits for readiness. The loop "call, retry on
// EINTR, wait on EAGAIN, call again" stands here once.
#pragma once

#include "poll_desc.hpp"
#include "runloom/net/netpoll.hpp"

namespace runloom::net {

class IoLoop : public Netpoll {
 public:
  Result<std::size_t> recv(PollDesc& desc, std::span<std::byte> buffer, int flags,
                           Deadline deadline) override;
  Result<std::size_t> recv_late(PollDesc& desc, RecvBuffer& buffer, Deadline deadline) override;
  Result<std::size_t> send(PollDesc& desc, std::span<const std::byte> data, int flags,
                           Deadline deadline) override;
  Result<std::size_t> recvmsg(PollDesc& desc, msghdr& message, int flags,
                              Deadline deadline) override;
  Result<std::size_t> sendmsg(PollDesc& desc, const msghdr& message, int flags,
                              Deadline deadline) override;
  Result<int> accept(PollDesc& desc, sockaddr* peer, socklen_t* peer_size, Deadline deadline) final;
  Result<void> connect(PollDesc& desc, const sockaddr* peer, socklen_t peer_size,
                       Deadline deadline) final;
  Result<std::size_t> read(PollDesc& desc, std::span<std::byte> buffer, Deadline deadline) final;
  Result<std::size_t> write(PollDesc& desc, std::span<const std::byte> data,
                            Deadline deadline) final;
  Result<std::size_t> attempt(PollDesc& desc, unsigned direction, Attempt& attempt, int flags,
                              Deadline deadline) final;
  Result<void> shutdown(PollDesc& desc, int how) final;
  Result<unsigned> poll_desc(PollDesc& desc, unsigned directions, Deadline deadline) final;

 protected:
  // Waits until something has happened in the direction since its seq was `seen`: kWakeEvent, or
  // why it ended otherwise. `seen` stands in `drained`.
  virtual Result<detail::WakeCode> await_event(PollDesc& desc, Side side, std::uint32_t seen,
                                               WaitReason reason, Deadline deadline) = 0;
  // Waits until one of the watch's directions is ready: kWakeEvent, or why it ended otherwise.
  virtual Result<detail::WakeCode> await_watch(PollDesc& desc, Watch& watch, Deadline deadline) = 0;
  // Lets others run: the caller's operations have succeeded many times without a wait (S04).
  virtual void give_way() noexcept;
  // Called before each accept: a storm of connections must not starve those that are served
  // already (S28).
  virtual void before_accept() noexcept;

 private:
  template <class Call>
  Result<std::size_t> transfer(PollDesc& desc, Side side, WaitReason reason, Deadline deadline,
                               bool may_wait, const std::size_t& wanted, Call&& call);
  unsigned eager_ = 0;            // successes in a row without a wait
  std::int64_t accept_turn_ = 0;  // the turn that accepted_ counts for
  int accepted_ = 0;
};

// poll(2) without waiting: the directions that are ready, an error or hang-up for both. EBADF.
Result<unsigned> poll_now(int fd, unsigned directions) noexcept;
// EPERM for regular files and directories, which never make anybody wait; EBADF.
Result<void> check_pollable(int fd) noexcept;
// The events to ask poll(2) for, and what its answer means.
short poll_events(unsigned directions) noexcept;
unsigned poll_ready(short revents, unsigned directions) noexcept;

// True when what was found missing is a wait's end and not an error of its own.
inline bool would_block(int err) noexcept {
  return err == EAGAIN || err == EWOULDBLOCK;
}

// Blocks SIGPIPE for calls that can't be told not to raise it, and swallows one they raised.
class SigpipeGuard {
 public:
  SigpipeGuard() noexcept;
  ~SigpipeGuard();
  SigpipeGuard(const SigpipeGuard&) = delete;
  SigpipeGuard& operator=(const SigpipeGuard&) = delete;

 private:
  bool changed_ = false;
  bool was_pending_ = false;
};

}  // namespace runloom::net
