// A bound on the accepts of one loop turn, where the backend has none.
#pragma once

namespace runloom::net {

// Called before an accept that may wait: lets a hub's other fibers run once it has accepted 64
// connections in this turn, so that a storm of them does not starve those that are served already
// (S28). Parks (yields); nothing off a fiber.
void take_accept_turn() noexcept;

}  // namespace runloom::net
