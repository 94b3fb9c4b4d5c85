// The operations that UringNetpoll has in flight.
#pragma once

#include "netpoll_uring.hpp"

namespace runloom::net {

// One that a fiber waits for. On its stack: it doesn't leave before the operation has ended.
struct UringNetpoll::FiberOp : UringOp {
  FiberOp() noexcept : UringOp(&completed), node({}, kWakeEvent) {}
  static void completed(UringOp& op, int result, std::uint32_t flags) noexcept;

  detail::WaitNode node;
  int result = -EAGAIN;
  std::uint32_t flags = 0;
};

// A poll of select(), which goes on when its fiber has left, until its own end.
struct UringNetpoll::SelectOp : UringOp {
  SelectOp(UringNetpoll& owner, PollDesc& polled, detail::WaitNode& waiting) noexcept;
  static void completed(UringOp& op, int result, std::uint32_t flags) noexcept;

  UringNetpoll& netpoll;
  PollDesc& desc;  // with a reference
  detail::WaitNode* node;
  SelectOp* prev = nullptr;
  SelectOp* next = nullptr;
};

}  // namespace runloom::net
