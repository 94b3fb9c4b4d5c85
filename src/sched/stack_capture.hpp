// The C++ stack of another thread. For diagnostics.
#pragma once

#include <sys/types.h>

#include <vector>

namespace runloom::detail {

// Makes `capture_stack` possible for the calling thread: lets our signal reach it.
void allow_stack_capture() noexcept;

// What thread `tid` of this process executes now, innermost first. Interrupts it with a signal
// whose handler collects the frames, so a system call that it is in may end with EINTR. Empty
// when no free real-time signal is left or the thread does not answer within a second. One
// capture at a time.
std::vector<void*> capture_stack(pid_t tid) noexcept;

// In a forked child: a capture that was under way is void.
void forget_stack_capture() noexcept;

}  // namespace runloom::detail
