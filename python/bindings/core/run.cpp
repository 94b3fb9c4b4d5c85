// run() drains: it returns when every fiber of the home has ended. Two things end it earlier. All
// fibers are blocked and nothing outside can wake one: by deadlock mode that is an error or just
// the end. Or an exception that belongs to no fiber: a signal handler's, see signals.hpp.
//
// run(main) differs in what main's end means. When main raises, the other fibers are cancelled,
// run goes on until they have unwound, and then raises what main raised. Meanwhile another
// interrupt ends it at once.
#include "core/run.hpp"

#include <string_view>
#include <utility>

#include "core/config.hpp"
#include "core/park.hpp"
#include "core/signals.hpp"
#include "core/spawn.hpp"
#include "runloom/sched/error.hpp"
#include "support/errors.hpp"
#include "support/ref.hpp"
#include "support/types.hpp"

namespace runloom::python {
namespace {

template <class Fn>
void for_each_g(Home& home, Fn&& fn) {
  for (const FiberInfo& info : home.scheduler.fibers()) {
    auto* local = static_cast<FiberLocal*>(info.local);
    if (local && local->g) fn(*local->g, info);
  }
}

// Cancels every fiber but `but`, C++ ones included.
void cancel_all_but(Home& home, G& but) {
  for_each_g(home, [](G& g, const FiberInfo&) { g.cancelled = true; });
  home.scheduler.cancel_all();
  but.cancelled = false;
  but.fiber.uncancel();
}

// The same from inside a nested run: those who wait for a nested run, the caller among them, are
// what encloses it.
void cancel_all_inside(Home& home, const G& but) {
  for_each_g(home, [&](G& g, const FiberInfo&) {
    if (&g != &but && !g.nested_run) cancel_g(g);
  });
}

// ---------------------------------------------------------------- one drain

// Whether the caller may run fibers: to be asked before anything is started or cancelled for it.
// False with RuntimeError set.
bool may_drain(const Home& home) {
  const G* self = current_g();
  if (!self && (home.running || this_fiber::exists())) {
    PyErr_SetString(PyExc_RuntimeError, "run() is already running on this thread");
    return false;
  }
  if (may_park(home) && !(self && self->noyield)) return true;
  // Where no fiber can wait, those that would run could not either.
  raise(make_error_code(Errc::park_forbidden));
  return false;
}

struct Drain {
  std::uint64_t completed = 0;
  bool deadlock = false;
};

// Marks the fiber as one that waits for a nested run.
class NestedMark {
 public:
  explicit NestedMark(G* self) noexcept
      : self_(self), before_(self && std::exchange(self->nested_run, true)) {}
  ~NestedMark() {
    if (self_) self_->nested_run = before_;
  }
  NestedMark(const NestedMark&) = delete;
  NestedMark& operator=(const NestedMark&) = delete;

 private:
  G* const self_;
  const bool before_;
};

bool drain_nested(Home& home, G& self, Drain& drain) {
  const NestedMark mark(&self);
  Result<std::uint64_t> ended = [&] {
    ParkGuard guard;
    return home.scheduler.run();
  }();
  drain.deadlock = !ended && ended.error() == make_error_code(Errc::deadlock);
  drain.completed += ended.value_or(0);
  if (ended || drain.deadlock) return true;
  raise(ended.error());
  return false;
}

bool drain_here(Home& home, Drain& drain) {
  const std::uint64_t before = home.scheduler.stats().completed;
  Result<std::uint64_t> ended = [&] {
    SignalWatch watch(home);
    home.running = true;
    return home.scheduler.run();
  }();
  home.running = false;
  drain.deadlock = !ended;
  drain.completed += home.scheduler.stats().completed - before;
  if (!home.raised) return true;
  raise_again(std::exchange(home.raised, nullptr));
  return false;
}

// False with an exception set.
bool drain_home(Home& home, Drain& drain) {
  G* self = current_g();
  return self ? drain_nested(home, *self, drain) : drain_here(home, drain);
}

// The result of a run that was not ended by an exception.
PyObject* drained(Home& home, const Drain& drain) {
  if (drain.deadlock && config().options.deadlock == DeadlockMode::fail) {
    const auto parked = static_cast<unsigned long long>(home.scheduler.stats().live);
    return PyErr_Format(PyExc_RuntimeError,
                        "all fibers are blocked -- deadlock (%llu parked, none runnable)", parked);
  }
  return PyLong_FromUnsignedLongLong(drain.completed);
}

PyObject* run(PyObject*, PyObject*) {
  Home* own = home();
  Drain drain;
  if (!own || !may_drain(*own) || !drain_home(*own, drain)) return nullptr;
  return drained(*own, drain);
}

// ---------------------------------------------------------------- run(main)

// Drives until `main` and all others have ended. The exception that ended main, or the run, is set
// on false.
bool drain_main(Home& home, G& main, Drain& drain) {
  const NestedMark mark(current_g());
  bool drained = drain_home(home, drain);
  // A nested run passes over fibers that are in one themselves, as its own main may be. Their runs
  // have ended by now too, and they go on once this fiber lets them.
  while (drained && !drain.deadlock && !main.done() && this_fiber::exists()) {
    this_fiber::yield();
    drained = drain_home(home, drain);
  }
  if (!drained) {
    if (current_g() || home.unwinding || !main.done()) return false;
    // An interrupt after main's end: the others unwind before it goes on.
    const Ref interrupt = Ref::steal(take_raised());
    home.unwinding = true;
    cancel_all_but(home, main);
    if (!drain_here(home, drain)) return false;
    raise_again(Py_NewRef(interrupt.get()));
    return false;
  }
  if (main.state != GState::raised) return true;
  Py_XDECREF(outcome_of(main));
  return false;
}

PyObject* run_main(PyObject*, PyObject* fn) {
  if (!PyCallable_Check(fn)) {
    PyErr_Format(PyExc_TypeError, "run() argument 'main_fn' must be callable, not %.100s",
                 Py_TYPE(fn)->tp_name);
    return nullptr;
  }
  Home* own = home();
  if (!own || !may_drain(*own)) return nullptr;
  const bool nested = current_g() != nullptr;
  G* main = spawn(*own, {.fn = fn});
  if (!main) return nullptr;
  const Ref keep = Ref::steal(main->object());
  if (!nested) own->main = main;
  main->run_main = true;
  Drain drain;
  const bool ended = drain_main(*own, *main, drain);
  if (!nested) {
    own->main = nullptr;
    own->unwinding = false;
  }
  main->retrieved = true;
  return ended ? drained(*own, drain) : nullptr;
}

// ---------------------------------------------------------------- stop, reset

PyObject* sched_stop(PyObject*, PyObject*) {
  if (tl_home) tl_home->scheduler.stop();
  Py_RETURN_NONE;
}

// Unwinds rather than drops what has begun: its frames hold references, and its `finally` blocks
// are to run.
PyObject* sched_reset(PyObject*, PyObject*) {
  Home* own = tl_home;
  if (!own) return Py_BuildValue("(iii)", 0, 0, 0);
  if (!may_drain(*own)) return nullptr;
  G* self = current_g();
  Py_ssize_t ready = 0, sleeping = 0, parked = 0;
  const bool cancelled = or_no_memory([&] {
    for_each_g(*own, [&](G& g, const FiberInfo& info) {
      if (&g == self || g.nested_run) return;
      const bool waits = std::string_view(info.state) == "parked";
      ++(!waits ? ready : info.reason == WaitReason::sleep ? sleeping : parked);
      cancel_g(g);
    });
    return true;
  });
  if (!cancelled) return nullptr;
  Drain drain;
  if (ready + sleeping + parked > 0 && !drain_home(*own, drain)) return nullptr;
  return Py_BuildValue("(nnn)", ready, sleeping, parked);
}

bool deadlocks(const FiberInfo& info) noexcept {
  if (std::string_view(info.state) != "parked") return false;
  switch (info.reason) {
    case WaitReason::sleep:
    case WaitReason::blocking:
    case WaitReason::io_read:
    case WaitReason::io_write:
    case WaitReason::io_accept:
    case WaitReason::io_connect:
    case WaitReason::io_close:
    case WaitReason::io_poll:
    case WaitReason::nested_run:
      return false;
    default:
      return true;
  }
}

PyObject* count_deadlocked(PyObject*, PyObject*) {
  return or_no_memory([] {
    Py_ssize_t count = 0;
    if (tl_home)
      for (const FiberInfo& info : tl_home->scheduler.fibers())
        count += deadlocks(info);
    return PyLong_FromSsize_t(count);
  });
}

PyMethodDef functions[] = {
    method("run", &run, METH_NOARGS,
           "run($module, /)\n--\n\n"
           "Run fibers until all have ended; return how many did.\n\n"
           "Inside a fiber: until all others have, but for those inside such a run themselves."),
    method("_run_main", &run_main, METH_O,
           "_run_main($module, main_fn, /)\n--\n\n"
           "Run main_fn on a fiber, and fibers until all have ended; return how many did.\n\n"
           "What main_fn raises is raised, after the other fibers were cancelled and unwound."),
    method("sched_stop", &sched_stop, METH_NOARGS,
           "sched_stop($module, /)\n--\n\n"
           "Make run() return soon. What is queued stays for the next run()."),
    method("sched_reset", &sched_reset, METH_NOARGS,
           "sched_reset($module, /)\n--\n\n"
           "End every other fiber of this thread: cancel those that have begun, drop the rest.\n\n"
           "Returns how many were (ready, sleeping, parked)."),
    method("count_deadlocked", &count_deadlocked, METH_NOARGS,
           "count_deadlocked($module, /)\n--\n\n"
           "Count the fibers that wait for another fiber."),
    {},
};

}  // namespace

void fiber_raised(Home& home, G& g, PyObject* error) {
  if (home.main == &g) {
    home.unwinding = true;
    cancel_all_but(home, g);
  } else if (g.run_main) {
    cancel_all_inside(home, g);
  } else if (PyErr_GivenExceptionMatches(error, PyExc_KeyboardInterrupt)) {
    (void)pass_on_interrupt(home, error);
  }
}

bool add_run_functions(PyObject* module) {
  return PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace runloom::python
