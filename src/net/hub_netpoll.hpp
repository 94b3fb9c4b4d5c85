// The backend of the calling fiber's hub, on the way of every operation.
#pragma once

#include "runloom/net/netpoll.hpp"
#include "runloom/sched/park.hpp"
#include "runloom/sched/scheduler.hpp"

namespace runloom::net {

// Marks a driver as a Netpoll.
inline constexpr char kNetpollLayer = 0;

// Null: off a fiber, or the hub has none yet; see Netpoll::current().
inline Netpoll* hub_netpoll() noexcept {
  const Hub* hub = detail::fiber_hub();
  if (!hub || hub->driver().layer() != &kNetpollLayer) return nullptr;
  return static_cast<Netpoll*>(&hub->driver());
}

}  // namespace runloom::net
