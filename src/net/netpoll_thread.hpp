// ThreadPoll: the operations of an OS thread that runs no fiber. It blocks in poll(2) on the
// descriptor itself, so that it needs no hub to be running, and on an eventfd by which close()
// breaks the wait.
#pragma once

#include "io_loop.hpp"
#include "thread_wake.hpp"

namespace runloom::net {

class ThreadPoll final : public IoLoop {
 public:
  std::string_view name() const noexcept override { return "thread"; }
  Result<unsigned> poll_foreign(int fd, unsigned directions, Deadline deadline) override;

  // It drives no hub.
  int poll(std::int64_t) override { return 0; }
  void wake() noexcept override {}

 private:
  Result<detail::WakeCode> await_event(PollDesc& desc, Side side, std::uint32_t seen,
                                       WaitReason reason, Deadline deadline) override;
  Result<detail::WakeCode> await_watch(PollDesc& desc, Watch& watch, Deadline deadline) override;
  void give_way() noexcept override {}
  void before_accept() noexcept override {}
};

// The calling thread's.
ThreadPoll& thread_netpoll() noexcept;

}  // namespace runloom::net
