// What the scheduler does to the process as a whole: threads it starts, signals, crash reports,
// the stall watchdog, fork. Each part has a file of its own; this is what the scheduler calls.
#pragma once

#include <functional>
#include <thread>

#include "runloom/sched/scheduler.hpp"

namespace runloom::detail {

struct HubImpl;

// Keeps the list of living schedulers (fork, crash report); the first one installs the process's
// handlers.
void register_scheduler(Scheduler::Impl& impl);
void unregister_scheduler(Scheduler::Impl& impl) noexcept;

// A thread of ours: all signals but the synchronous ones are blocked in it, so that the program's
// handlers run on the program's threads. Throws std::system_error when there is no thread.
std::thread start_thread(std::function<void()> body);

// On hub threads 1..n-1, at their start and end: name, alternate signal stack.
void prepare_hub_thread(HubImpl& hub);
void leave_hub_thread(HubImpl& hub) noexcept;

// Around a run on the calling thread: alternate signal stack, watchdog.
void enter_run(HubImpl& home);
void leave_run(HubImpl& home) noexcept;

}  // namespace runloom::detail
