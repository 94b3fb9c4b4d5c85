// What the scheduler does to the process as a whole: threads it starts, signals, crash reports,
// fork. Each part has a file of its own; this is what they and the scheduler call.
#pragma once

#include <functional>
#include <thread>

#include "runloom/sched/scheduler.hpp"

namespace runloom::detail {

struct HubImpl;

// Keeps the list of living schedulers, for fork; the first one installs the process's handlers.
void register_scheduler(Scheduler::Impl& impl);
void unregister_scheduler(Scheduler::Impl& impl) noexcept;
// Keeps what a scheduler with leaked fibers leaves behind.
void keep_leaked(Scheduler::Impl& impl) noexcept;

// A thread of ours: all signals but the synchronous ones are blocked in it, so that the program's
// handlers run on the program's threads. Throws std::system_error when there is no thread.
std::thread start_thread(std::function<void()> body);

// At the start of the threads of hubs 1..n-1, and of a run on the calling thread.
void prepare_hub_thread(HubImpl& hub);
void enter_run(HubImpl& home);

// crash.cpp
void install_crash_report() noexcept;
// Gives the calling thread an alternate signal stack, until it ends, unless it has one.
void provide_signal_stack() noexcept;

// fork.cpp
void install_fork_handlers() noexcept;
// Around fork, of each part with locks or threads of its own: takes the locks; gives them back;
// in the child also forgets the threads that are gone.
enum class ForkStage { prepare, parent, child };
void fork_schedulers(ForkStage stage) noexcept;
void fork_blocking_pool(ForkStage stage) noexcept;
void fork_stack_pool(ForkStage stage) noexcept;
void fork_thread_waiters(ForkStage stage) noexcept;

}  // namespace runloom::detail
