// Options from the environment, so that an operator can change them without a build.
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "runloom/sched/scheduler.hpp"

namespace runloom {
namespace {

void complain(const char* name, std::string_view text, const char* wanted) noexcept {
  std::fprintf(stderr, "runloom: %s=%.*s is ignored, it should be %s\n", name,
               static_cast<int>(text.size()), text.data(), wanted);
}

std::string_view variable(const char* name) noexcept {
  const char* text = std::getenv(name);
  return text ? text : "";
}

// The whole number in `name`, if it is set and within [least, most].
std::optional<std::uint64_t> number(const char* name, std::uint64_t least, std::uint64_t most,
                                    const char* wanted) noexcept {
  const std::string_view text = variable(name);
  if (text.empty()) return std::nullopt;
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < least || value > most) {
    complain(name, text, wanted);
    return std::nullopt;
  }
  return value;
}

template <class Value>
struct Choice {
  std::string_view text;
  Value value;
};

template <class Value, std::size_t N>
void choose(const char* name, const Choice<Value> (&choices)[N], const char* wanted,
            Value& value) noexcept {
  const std::string_view text = variable(name);
  if (text.empty()) return;
  for (const Choice<Value>& choice : choices) {
    if (text != choice.text) continue;
    value = choice.value;
    return;
  }
  complain(name, text, wanted);
}

}  // namespace

Options Options::from_environment() {
  return from_environment(Options{});
}

Options Options::from_environment(Options options) {
  constexpr std::uint64_t kMinute = 60'000'000;  // microseconds: a longer spin is a mistake
  constexpr std::uint64_t kDay = 86'400'000;     // milliseconds
  if (auto hubs = number("RUNLOOM_HUBS", 1, 256, "a number from 1 to 256"))
    options.hubs = static_cast<int>(*hubs);
  if (auto bytes = number("RUNLOOM_STACK_SIZE", 16 * 1024, std::uint64_t{1} << 30,
                          "a number of bytes from 16384 (16 KiB) to 1073741824 (1 GiB)"))
    options.stack_size = *bytes;
  if (auto fibers = number("RUNLOOM_MAX_GOROUTINES", 0, UINT64_MAX, "a number, 0 for no limit"))
    options.max_fibers = *fibers;
  if (auto spin = number("RUNLOOM_SPIN_US", 0, kMinute, "a number of microseconds up to 60000000"))
    options.idle_spin = std::chrono::microseconds(*spin);
  if (auto stall = number("RUNLOOM_STALL_MS", 0, kDay, "a number of milliseconds up to 86400000"))
    options.stall_threshold = std::chrono::milliseconds(*stall);
  static constexpr Choice<DeadlockMode> kDeadlock[] = {
      {"off", DeadlockMode::off}, {"warn", DeadlockMode::warn}, {"raise", DeadlockMode::fail}};
  choose("RUNLOOM_DEADLOCK", kDeadlock, "off, warn or raise", options.deadlock);
  static constexpr Choice<GuardMode> kGuard[] = {{"auto", GuardMode::automatic},
                                                 {"madvise", GuardMode::madvise},
                                                 {"mprotect", GuardMode::mprotect}};
  choose("RUNLOOM_GUARD", kGuard, "auto, madvise or mprotect", options.guard);
  return options;
}

}  // namespace runloom
