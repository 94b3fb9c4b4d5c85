// Where new connections go when a predecessor and a successor listen on the same port by
// SO_REUSEPORT. See socket(7), SO_ATTACH_REUSEPORT_CBPF. Nothing here parks.
#pragma once

#include <cstddef>

#include "runloom/net/address.hpp"
#include "runloom/net/fd.hpp"

namespace runloom::net {

// From now on no new connection comes to the `own` sockets that listen at `bound` with `listener`
// among them, until the last of them is closed: they go to those that were bound later. That needs
// at least as many of these; else, and when the kernel refuses, nothing changes and the kernel goes
// on spreading over all.
void steer_away(const Fd& listener, const Address& bound, std::size_t own) noexcept;
// Forgets what a process before us has steered: all sockets of the port get connections.
void stop_steering(const Fd& listener) noexcept;

}  // namespace runloom::net
