// Numbers for the descriptors that a poller keeps for itself.
#pragma once

namespace runloom::net {

// Moves a descriptor of ours to a high number, one that hasn't been in use of late; returns the
// new number, or `fd` where that can't be done (also -1). Code that closes what it doesn't own, say
// everything, then gets the next descriptors at low numbers: no stranger is taken for ours.
int move_high(int fd) noexcept;

// Says on stderr, once, that other code has closed a poller's descriptors.
void tell_lost() noexcept;

}  // namespace runloom::net
