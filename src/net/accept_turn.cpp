#include "accept_turn.hpp"

#include <cstdint>

#include "runloom/sched/fiber.hpp"
#include "runloom/sched/scheduler.hpp"

namespace runloom::net {

void take_accept_turn() noexcept {
  constexpr int kAcceptsPerTurn = 64;
  constexpr int kLongestTurn = 64;  // yields
  if (!this_fiber::exists()) return;
  // Of the hub: a fiber stays on it (I1), and a thread runs one at a time.
  thread_local std::int64_t turn = 0;
  thread_local int accepted = 0;
  const Hub& hub = *Hub::current();
  if (turn == hub.turn_ns() && accepted >= kAcceptsPerTurn)
    for (int i = 0; i < kLongestTurn && turn == hub.turn_ns(); ++i)
      this_fiber::yield();
  if (turn != hub.turn_ns()) {
    turn = hub.turn_ns();
    accepted = 0;
  }
  ++accepted;
}

}  // namespace runloom::net
