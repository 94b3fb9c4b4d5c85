// For handlers of fatal signals: what a fault has to do with fibers, and a dump of all of them.
//
// Everything here is async-signal-safe, takes no lock that it would have to wait for, and may be
// called on any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runloom/sched/fiber.hpp"

namespace runloom {

struct Fault {
  enum class Kind : std::uint8_t {
    elsewhere,      // no stack of a fiber has to do with it
    overflow,       // the running fiber has run into the guard page of its own stack
    foreign_guard,  // a wild pointer has hit the guard page of another stack
  };
  Kind kind = Kind::elsewhere;
  // The fiber that runs on the calling thread; 0: none does.
  FiberId fiber = 0;
  char name[24] = {};
  std::size_t stack_size = 0;
};

// What an access to `address`, by the code that runs on the calling thread, was.
Fault classify_fault(const void* address) noexcept;

// Writes a line for each fiber of the process to `fd`, and a count of their states.
void dump_all_fibers(int fd) noexcept;

}  // namespace runloom
