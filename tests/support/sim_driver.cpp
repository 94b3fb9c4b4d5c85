#include "support/sim_driver.hpp"

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>

#include "runloom/sched/check.hpp"

namespace runloom::test {
namespace {

constexpr detail::WakeCode kDone = detail::kWakeUser;
constexpr detail::WakeCode kFailed = detail::kWakeUser + 1;
constexpr std::size_t kMostOver = 64;

}  // namespace

SimDriver::SimDriver(std::uint64_t seed, SimFaults faults) noexcept
    : random_(seed), faults_(faults) {}

void SimDriver::note(std::uint64_t what) noexcept {
  trace_ = (trace_ ^ what) * 0x100000001b3;
  trace_ ^= static_cast<std::uint64_t>(now_);
}

Result<std::uint64_t> SimDriver::operate(std::int64_t most_ns, Deadline deadline) {
  const detail::WaitToken token = detail::begin_wait();
  const std::uint64_t number = ++numbers_;
  const auto delay = static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(most_ns)));
  operations_.push_back({now_ + delay, token, number});
  const detail::WakeCode code =
      detail::wait(token, {.reason = WaitReason::io_read, .deadline = deadline, .external = true});
  note(number * 16 + code);
  over_.push_back(token);
  if (over_.size() > kMostOver) over_.erase(over_.begin());
  if (code == kDone) return number;
  if (code == kFailed) return fail_errno(EIO);
  // It goes on in the kernel, so to say, and completes for nobody.
  return fail(detail::wake_error(code));
}

std::int64_t SimDriver::next_due() const noexcept {
  std::int64_t due = std::numeric_limits<std::int64_t>::max();
  for (const Operation& operation : operations_)
    due = std::min(due, operation.due_ns);
  return due;
}

// Those that are due, in an order of their own.
int SimDriver::deliver() {
  std::vector<Operation> due;
  std::erase_if(operations_, [&](const Operation& operation) {
    if (operation.due_ns > now_ || chance(faults_.held_back)) return false;
    due.push_back(operation);
    return true;
  });
  for (std::size_t i = due.size(); i > 1; --i)
    std::swap(due[i - 1], due[random_.below(i)]);
  int delivered = 0;
  for (const Operation& operation : due) {
    note(operation.number);
    delivered += detail::wake(operation.token, chance(faults_.failed) ? kFailed : kDone);
  }
  if (!over_.empty() && chance(faults_.repeated)) {
    const detail::WaitToken token = over_[random_.below(over_.size())];
    RUNLOOM_CHECK(!detail::wake(token, kDone), "a wait that is over was claimed");
  }
  return delivered;
}

int SimDriver::poll(std::int64_t timeout_ns) {
  note(static_cast<std::uint64_t>(timeout_ns));
  now_ += 100;
  if (timeout_ns != 0 && !std::exchange(woken_, false) && !chance(faults_.spurious_return)) {
    const std::int64_t due = next_due();
    const std::int64_t until = timeout_ns < 0 ? due : std::min(due, now_ + timeout_ns);
    RUNLOOM_CHECK(until != std::numeric_limits<std::int64_t>::max(),
                  "the hub sleeps, and there is nothing that could wake it");
    now_ = std::max(now_, until);
    if (chance(faults_.late)) now_ += static_cast<std::int64_t>(random_.below(100'000));
  }
  return deliver();
}

SimDriver& sim_driver() noexcept {
  return static_cast<SimDriver&>(Hub::current()->driver());
}

Options sim_options(std::uint64_t seed, SimFaults faults) {
  Options options;
  options.make_driver = [seed, faults](Hub&) { return std::make_unique<SimDriver>(seed, faults); };
  return options;
}

}  // namespace runloom::test
