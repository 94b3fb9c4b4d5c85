// RUNLOOM_CHECK: ends the process with a sentence when a C++ contract is broken.
#pragma once

namespace runloom::detail {
[[noreturn]] void check_failed(const char* condition, const char* message, const char* file,
                               int line) noexcept;
}

#define RUNLOOM_CHECK(condition, message)                                       \
  do {                                                                          \
    if (!(condition)) [[unlikely]]                                              \
      ::runloom::detail::check_failed(#condition, message, __FILE__, __LINE__); \
  } while (false)
