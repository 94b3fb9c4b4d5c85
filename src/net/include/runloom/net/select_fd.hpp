// FdCase: a descriptor as a case of select().
//
//     FdCase request(stream.fd(), net::kRead);
//     EventCase stop(stopping);
//     auto fired = select({&request, &stop});
//     if (fired && *fired == 0) ... stream.read_some(buffer)   // does not park
//
// Fires when the descriptor would not block in one of the directions, an error or hang-up counts
// for both; and when it is closed or can't be waited for, which ready() tells. It consumes nothing.
// Only on a fiber: on an OS thread it fires at once with Errc::not_in_fiber.
#pragma once

#include "runloom/net/fd.hpp"
#include "runloom/net/netpoll.hpp"
#include "runloom/sched/select_source.hpp"

namespace runloom::net {

class FdCase final : public SelectSource {
 public:
  // The Fd must outlive the case.
  FdCase(const Fd& fd, unsigned directions) noexcept : fd_(&fd), watch_{directions} {}
  // Any descriptor: one that a net object owns is waited for there.
  FdCase(int number, unsigned directions) noexcept : number_(number), watch_{directions} {}

  // After the case fired: the ready directions (kRead, kWrite), or why there are none: closed,
  // EBADF, EPERM for a regular file or directory, the kernel's reason for not watching it.
  Result<unsigned> ready() const noexcept { return result_; }

  bool try_take() override;
  detail::Joined enqueue(detail::WaitNode& node) override;
  void dequeue(detail::WaitNode& node, bool fired) noexcept override;
  bool external() const noexcept override { return true; }

 private:
  // A reference to the PollDesc in desc_, where a net object owns the descriptor. False: closed.
  bool enter_owner() noexcept;
  void leave_owner() noexcept;
  Result<unsigned> look() const noexcept;
  Result<void> link(detail::WaitNode& node);
  void unlink(detail::WaitNode& node) noexcept;
  detail::Joined finish(detail::WaitNode& node, const Result<unsigned>& result);

  const Fd* fd_ = nullptr;
  int number_ = -1;
  Watch watch_;
  PollDesc* desc_ = nullptr;    // between enqueue and dequeue
  Netpoll* netpoll_ = nullptr;  // where the node is linked
  Result<unsigned> result_ = 0u;
};

}  // namespace runloom::net
