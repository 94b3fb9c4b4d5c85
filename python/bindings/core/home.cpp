#include "core/home.hpp"

#include <memory>
#include <vector>

#include "core/config.hpp"
#include "core/coverage.hpp"
#include "core/g.hpp"
#include "core/gil.hpp"
#include "core/signals.hpp"
#include "core/spawn.hpp"
#include "runloom/net/netpoll.hpp"
#include "support/errors.hpp"
#include "support/ref.hpp"

namespace runloom::python {

constinit thread_local Home* tl_home __attribute__((tls_model("initial-exec"))) = nullptr;
LocalLayout local_layout;

namespace {

// Guarded by the GIL.
Home* homes = nullptr;
bool refused = false;
std::uint64_t next_base = 0;

// The PyThreadState that the calling thread's last home ended with; 0: there was none. A thread
// that Python does not know, such as one of the blocking pool, has a new one for each call into
// Python.
constinit thread_local std::uint64_t tl_ended = 0;

// Ids of different homes must not meet in one listing. The first home, normally the main
// thread's, begins at 0, so that its ids are the scheduler's own.
constexpr std::uint64_t kIdsPerHome = std::uint64_t{1} << 40;

// ---------------------------------------------------------------- hooks

RlPyState* loaded_state(const Home& home, runloom::detail::Fiber* fiber) noexcept {
  auto* local = fiber ? static_cast<FiberLocal*>(runloom::detail::fiber_local(fiber)) : nullptr;
  return local ? state_of(local) : home.main_state;
}

void switched(void* context, runloom::detail::Fiber* from, runloom::detail::Fiber* to) {
  auto& home = *static_cast<Home*>(context);
  auto* local = from ? static_cast<FiberLocal*>(runloom::detail::fiber_local(from)) : nullptr;
  RlPyState* next = loaded_state(home, to);
  RlPyState* last = local ? state_of(local) : home.main_state;
  const bool traced = is_traced(home.thread_state);
  if (local && local->finished) {
    rl_pystate_switch_in(next, home.pyhub);
  } else if (last == next) {
    return;
  } else {
    if (traced && last != home.main_state) [[unlikely]]
      coverage_leaves();
    rl_pystate_switch(last, next, home.pyhub);
  }
  if (traced && next != home.main_state) [[unlikely]]
    coverage_enters();
}

void before_block(void* context) {
  auto& home = *static_cast<Home*>(context);
  home.released = PyEval_SaveThread();
}

void after_block(void* context) {
  auto& home = *static_cast<Home*>(context);
  take_gil(home.released);
  if (home.on_main_thread) run_signal_handlers(home);
}

bool expects_wake(void* context) {
  auto& home = *static_cast<Home*>(context);
  return home.shared_waits > 0 && rl_pystate_other_threads(home.pyhub);
}

Options home_options(Home& home) {
  Options options = config().options;
  options.hooks = {.context = &home,
                   .switched = &switched,
                   .before_block = &before_block,
                   .after_block = &after_block,
                   .expects_wake = &expects_wake,
                   .guest = guest_hooks};
  // Signals must end the main thread's polls, so it has a poller from the start. Other threads get
  // one when they first need it.
  if (home.on_main_thread) {
    options.make_driver = [&home](Hub&) -> std::unique_ptr<Driver> {
      auto made = net::make_netpoll();
      if (!made) return make_futex_driver();
      home.netpoll = made->get();
      return std::move(*made);
    };
  }
  return options;
}

// ---------------------------------------------------------------- the end of a thread

constexpr char kCapsule[] = "runloom.home";

// Called on its own thread when the thread's dict is cleared; in a forked child also for threads
// that are no more.
void thread_ends(PyObject* capsule) {
  auto* home = static_cast<Home*>(PyCapsule_GetPointer(capsule, kCapsule));
  if (!home || home != tl_home) return;
  if (interpreter_finalizes()) {
    // Its own hook was not called: somebody has taken the module `threading` away. Too late to run
    // fibers, and the hub's part of the interpreter is gone.
    home->closed = true;
    tl_home = nullptr;
  } else {
    close_home(*home);
  }
}

bool watch_thread_end(Home& home) {
  PyObject* dict = PyThreadState_GetDict();
  if (!dict) {
    PyErr_SetString(PyExc_RuntimeError, "this thread has no Python state");
    return false;
  }
  const Ref capsule = Ref::steal(PyCapsule_New(&home, kCapsule, &thread_ends));
  return capsule && PyDict_SetItemString(dict, kCapsule, capsule.get()) == 0;
}

bool on_main() {
  const Ref threading = Ref::steal(PyImport_ImportModule("threading"));
  if (!threading) return false;
  const Ref main = Ref::steal(PyObject_CallMethod(threading.get(), "main_thread", nullptr));
  if (!main) return false;
  const Ref ident = Ref::steal(PyObject_GetAttrString(main.get(), "ident"));
  return ident && PyLong_AsUnsignedLong(ident.get()) == PyThread_get_thread_ident();
}

// Fibers that will never go on: their handles let go, the memory that they may look at stays.
void disconnect_fibers(Home& home) {
  for (const FiberInfo& info : home.scheduler.fibers()) {
    auto* local = static_cast<FiberLocal*>(info.local);
    if (!local || !local->g) continue;
    G& g = *local->g;
    g.home = nullptr;
    g.fiber = FiberHandle();
    Py_CLEAR(g.interrupt);
  }
}

void unlink_home(Home& home) noexcept {
  for (Home** link = &homes; *link; link = &(*link)->next) {
    if (*link != &home) continue;
    *link = home.next;
    return;
  }
}

}  // namespace

Home::Home(std::uint64_t base, bool is_main_thread)
    : id_base(base),
      thread(PyThread_get_thread_ident()),
      thread_state(PyThreadState_Get()),
      on_main_thread(is_main_thread),
      scheduler(home_options(*this)) {}

Home* first_home() noexcept {
  return homes;
}

Home* make_home() {
  if (refused || tl_ended == PyThreadState_GetID(PyThreadState_Get())) {
    PyErr_SetString(PyExc_RuntimeError, refused ? "can't use fibers at interpreter shutdown"
                                                : "can't use fibers on a thread that ends");
    return nullptr;
  }
  const bool main = on_main();
  if (PyErr_Occurred()) return nullptr;
  RlPyHub* pyhub = rl_pyhub_new();
  if (!pyhub) return nullptr;
  auto home = or_no_memory([main] { return std::make_unique<Home>(next_base, main); });
  if (!home) {
    rl_pyhub_free(pyhub);
    return nullptr;
  }
  home->pyhub = pyhub;
  home->main_state = rl_pyhub_main(pyhub);
  if (!watch_thread_end(*home)) {
    rl_pyhub_free(pyhub);
    return nullptr;
  }
  next_base += kIdsPerHome;
  home->scheduler.bind_thread();
  home->next = homes;
  homes = home.get();
  tl_home = home.release();
  return tl_home;
}

void close_home(Home& home) {
  // The interpreter may be ended from inside a fiber, where the others can't be run any more.
  if (home.closed || this_fiber::exists() || home.running) return;
  home.closed = true;
  home.unwinding = true;
  const bool all_ended = home.scheduler.shutdown() == 0;
  Py_CLEAR(home.raised);
  tl_home = nullptr;
  tl_ended = PyThreadState_GetID(PyThreadState_Get());
  unlink_home(home);
  RlPyHub* pyhub = home.pyhub;
  if (all_ended) {
    delete &home;
  } else {
    // What leaked fibers wait in may still be used, and reaches into the scheduler, which stays.
    disconnect_fibers(home);
    home.scheduler.unbind_thread();
  }
  rl_pyhub_free(pyhub);
}

void forget_other_homes() noexcept {
  if (tl_home) tl_home->next = nullptr;
  homes = tl_home;
}

void refuse_homes() noexcept {
  refused = true;
}

bool init_homes() {
  const auto align_up = [](std::size_t size, std::size_t align) {
    return (size + align - 1) / align * align;
  };
  local_layout.state = align_up(sizeof(FiberLocal), rl_pystate_align());
  local_layout.datastack = align_up(local_layout.state + rl_pystate_size(), 16);
  return true;
}

}  // namespace runloom::python
