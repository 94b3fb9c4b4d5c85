// How an Fd's operations run: entered, on the calling hub's backend, left.
#pragma once

#include <utility>

#include "hub_netpoll.hpp"
#include "poll_desc.hpp"
#include "runloom/net/netpoll.hpp"

namespace runloom::net {

// Runs `call` as an operation of one direction: holds the direction's lock and a reference
// meanwhile.
template <class R, class Call>
R operate(PollDesc* desc, std::uint32_t generation, Side side, Deadline deadline, Call&& call) {
  if (!desc) return fail(Errc::closed);
  if (!try_enter_side(*desc, generation, side)) [[unlikely]] {
    const auto entered = enter_queued(*desc, generation, side, deadline);
    if (!entered) return Unexpected{entered.error()};
  }
  struct Leave {
    PollDesc& desc;
    Side side;
    ~Leave() { leave_side(desc, side); }
  } leave{*desc, side};
  Netpoll* netpoll = hub_netpoll();
  if (!netpoll) [[unlikely]] {
    const auto current = Netpoll::current();
    if (!current) return Unexpected{current.error()};
    netpoll = *current;
  }
  return call(*netpoll, *desc);
}

// As operate, for reading: ENOMEM once there was no memory for bytes that had left the kernel.
template <class R, class Call>
R operate_read(PollDesc* desc, std::uint32_t generation, Deadline deadline, Call&& call) {
  return operate<R>(desc, generation, kReadSide, deadline,
                    [&](Netpoll& netpoll, PollDesc& each) -> R {
                      if (each.read_broken) [[unlikely]]
                        return fail_errno(ENOMEM);
                      return call(netpoll, each);
                    });
}

// As operate, for writing: EPIPE once a message was cut off in the middle (T29).
template <class R, class Call>
R operate_write(PollDesc* desc, std::uint32_t generation, Deadline deadline, Call&& call) {
  return operate<R>(desc, generation, kWriteSide, deadline,
                    [&](Netpoll& netpoll, PollDesc& each) -> R {
                      if (each.write_broken) [[unlikely]]
                        return fail_errno(EPIPE);
                      return call(netpoll, each);
                    });
}

}  // namespace runloom::net
