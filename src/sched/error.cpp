#include "runloom/sched/error.hpp"

#include <cstdio>
#include <cstdlib>
#include <string>

#include "runloom/sched/check.hpp"

namespace runloom {
namespace {

class Category final : public std::error_category {
 public:
  const char* name() const noexcept override { return "runloom"; }
  std::string message(int value) const override {
    switch (static_cast<Errc>(value)) {
      case Errc::cancelled:
        return "the operation was cancelled";
      case Errc::timed_out:
        return "the deadline has passed";
      case Errc::closed:
        return "the object was closed";
      case Errc::deadlock:
        return "all fibers are blocked -- deadlock";
      case Errc::fiber_limit:
        return "the fiber limit is exceeded";
      case Errc::map_limit:
        return "no more memory maps for stacks and their guards: raise vm.max_map_count";
      case Errc::stack_size:
        return "the stack size is outside 16 KiB to 1 GiB, or too small for what the fiber carries";
      case Errc::not_in_fiber:
        return "the call needs a fiber or a scheduler on this thread";
      case Errc::park_forbidden:
        return "the call would have to park where parking is forbidden";
      case Errc::wrong_scheduler:
        return "the object belongs to another scheduler";
      case Errc::thread_limit:
        return "no thread could be started for a blocking call";
      case Errc::self_connect:
        return "the socket was connected to itself";
      case Errc::unread_data:
        return "received bytes have not been read yet";
      case Errc::would_block:
        return "nothing is ready";
      case Errc::over_release:
        return "more was released than was acquired";
    }
    return "unknown error";
  }
  std::error_condition default_error_condition(int value) const noexcept override {
    switch (static_cast<Errc>(value)) {
      case Errc::cancelled:
        return std::errc::operation_canceled;
      case Errc::timed_out:
        return std::errc::timed_out;
      case Errc::closed:
        return std::errc::bad_file_descriptor;
      case Errc::map_limit:
        return std::errc::not_enough_memory;
      case Errc::fiber_limit:
      case Errc::thread_limit:
        return std::errc::resource_unavailable_try_again;
      case Errc::stack_size:
        return std::errc::invalid_argument;
      case Errc::deadlock:
        return std::errc::resource_deadlock_would_occur;
      case Errc::self_connect:
        return std::errc::connection_refused;
      case Errc::unread_data:
        return std::errc::device_or_resource_busy;
      case Errc::would_block:
        return std::errc::operation_would_block;
      case Errc::over_release:
        return std::errc::invalid_argument;
      default:
        return {value, *this};
    }
  }
};

}  // namespace

const std::error_category& error_category() noexcept {
  static const Category category;
  return category;
}

namespace detail {
void check_failed(const char* condition, const char* message, const char* file, int line) noexcept {
  std::fprintf(stderr, "runloom: %s (%s, %s:%d)\n", message, condition, file, line);
  std::abort();
}
}  // namespace detail
}  // namespace runloom
