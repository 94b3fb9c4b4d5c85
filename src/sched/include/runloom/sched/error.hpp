// Error codes of runloom. Errors are values: every operation that can fail returns a Result<T>
// (result.hpp) over std::error_code; system calls report through std::system_category.
#pragma once

#include <cerrno>
#include <system_error>
#include <type_traits>

namespace runloom {

// Failures that are not an errno of a system call.
enum class Errc {
  cancelled = 1,    // the fiber or an enclosing CancelScope was cancelled; the scheduler is ending
  timed_out,        // the deadline of the call or of an enclosing CancelScope has passed
  closed,           // the object was closed while or before the call ran
  deadlock,         // every fiber is blocked and nothing outside can wake one
  fiber_limit,      // Options::max_fibers fibers are alive
  map_limit,        // the kernel refused a guard or a mapping: vm.max_map_count is reached
  stack_size,       // the requested stack size is outside [16 KiB, 1 GiB]
  not_in_fiber,     // the call must park and was made where no fiber runs
  park_forbidden,   // the call must park inside a noyield fiber or a callback that may not park
  wrong_scheduler,  // the object belongs to another scheduler
  thread_limit,     // no thread could be started for the blocking pool
  self_connect,     // a TCP socket was connected to itself by the kernel's port choice
  unread_data,      // bytes were received and not yet read, the descriptor can't leave the stream
  would_block,      // a try_ call found nothing ready
  over_release,     // more was given back than was taken: a semaphore, a wait group below zero
};

// The category of Errc, named "runloom". cancelled, timed_out and closed compare equal to
// std::errc::operation_canceled, timed_out and bad_file_descriptor.
const std::error_category& error_category() noexcept;

inline std::error_code make_error_code(Errc e) noexcept {
  return {static_cast<int>(e), error_category()};
}

// The error_code of an errno value.
inline std::error_code errno_code(int err) noexcept {
  return {err, std::system_category()};
}
inline std::error_code last_errno() noexcept {
  return errno_code(errno);
}

}  // namespace runloom

template <>
struct std::is_error_code_enum<runloom::Errc> : std::true_type {};
