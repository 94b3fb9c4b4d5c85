// The report of a fiber that overflows its stack.
//
// A fiber that runs into its guard page dies with SIGSEGV like any wild access; this says which
// fiber it was and how large its stack is, then lets the signal take its course. The handler
// needs a stack of its own, because the fiber has none left: each thread that runs a hub gets an
// alternate signal stack, unless it has one.
//
// It is installed for SIGSEGV and SIGBUS only where nobody else handles them, so a program's own
// handler, a sanitizer's, or a language runtime's stays in charge; one that is installed later
// and chains finds us as its predecessor.
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "line.hpp"
#include "process.hpp"
#include "runloom/sched/fault.hpp"
#include "scheduler_impl.hpp"

namespace runloom::detail {
namespace {

std::size_t signal_stack_size() noexcept {
  // The kernel's least grows with the processor's vector registers.
  const long least = ::sysconf(_SC_SIGSTKSZ);
  const auto wanted = std::max<std::size_t>(64 * 1024, least > 0 ? std::size_t(least) * 2 : 0);
  return (wanted + kPage - 1) / kPage * kPage;
}

// The alternate signal stack that we gave to this thread; taken away when the thread ends.
struct SignalStack {
  char* memory = nullptr;  // a guard page, then `size` bytes
  std::size_t size = 0;
  bool checked = false;

  ~SignalStack() {
    if (!memory) return;
    stack_t now{};
    if (::sigaltstack(nullptr, &now) == 0 && now.ss_sp == memory + kPage) {
      stack_t none{};
      none.ss_flags = SS_DISABLE;
      ::sigaltstack(&none, nullptr);
    }
    ::munmap(memory, size + kPage);
  }
};
thread_local SignalStack tl_signal_stack;

// True when the fault is the running fiber's access to its own guard page. The guard of another
// fiber was hit by a wild pointer.
bool overflowed(const Fiber& fiber, const void* address) noexcept {
  return fiber.slot != nullptr && slot_of_guard(address) == fiber.slot;
}

void on_fault(int signal, siginfo_t* info, void*) {
  HubImpl* hub = tl_hub;
  Fiber* fiber = hub ? static_cast<Fiber*>(hub->current) : nullptr;
  const bool from_kernel = info->si_code > 0;
  if (fiber && from_kernel && overflowed(*fiber, info->si_addr)) {
    Line line(2);
    line.text("runloom: fiber ").number(fiber_id(fiber)).text(" '");
    line.text(fiber->name, sizeof fiber->name).text("' overflowed its stack of ");
    line.number(static_cast<std::uint64_t>(fiber->slot->high() - fiber->slot->low()));
    line.text(" bytes").end();
    hub->scheduler().dump(2);
  }
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  ::sigaction(signal, &standard, nullptr);
  // A fault comes again when the instruction is run again, now with the default action and the
  // right place in the core file. A signal that was sent does not.
  if (!from_kernel) ::raise(signal);
}

void install(int signal) noexcept {
  struct sigaction now {};
  if (::sigaction(signal, nullptr, &now) != 0 || (now.sa_flags & SA_SIGINFO) != 0 ||
      now.sa_handler != SIG_DFL)
    return;
  struct sigaction ours {};
  ours.sa_sigaction = &on_fault;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  ::sigaction(signal, &ours, nullptr);
}

}  // namespace
}  // namespace runloom::detail

namespace runloom {

Fault classify_fault(const void* address) noexcept {
  using namespace detail;
  Fault fault;
  const HubImpl* const hub = tl_hub;
  const auto* const fiber = hub ? static_cast<const Fiber*>(hub->current) : nullptr;
  if (fiber && fiber->slot) {
    fault.fiber = fiber_id(fiber);
    std::memcpy(fault.name, fiber->name, sizeof fault.name);
    fault.stack_size = static_cast<std::size_t>(fiber->slot->high() - fiber->slot->low());
  }
  const StackSlot* const hit = slot_of_guard(address);
  if (hit)
    fault.kind = fiber && fiber->slot == hit ? Fault::Kind::overflow : Fault::Kind::foreign_guard;
  return fault;
}

}  // namespace runloom

namespace runloom::detail {

void install_crash_report() noexcept {
  install(SIGSEGV);
  install(SIGBUS);
}

void provide_signal_stack() noexcept {
  SignalStack& own = tl_signal_stack;
  if (own.checked) return;
  own.checked = true;
  stack_t now{};
  if (::sigaltstack(nullptr, &now) != 0 || (now.ss_flags & SS_DISABLE) == 0) return;
  const std::size_t size = signal_stack_size();
  void* memory = ::mmap(nullptr, size + kPage, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) return;  // the report is lost, nothing else
  ::mprotect(memory, kPage, PROT_NONE);
  stack_t ours{};
  ours.ss_sp = static_cast<char*>(memory) + kPage;
  ours.ss_size = size;
  if (::sigaltstack(&ours, nullptr) != 0) {
    ::munmap(memory, size + kPage);
    return;
  }
  own.memory = static_cast<char*>(memory);
  own.size = size;
}

}  // namespace runloom::detail
