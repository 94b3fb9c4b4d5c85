#include "core/fork.hpp"

#include <unistd.h>

#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "core/g.hpp"
#include "core/scope.hpp"
#include "core/signals.hpp"
#include "support/ref.hpp"
#include "support/types.hpp"

namespace runloom::python {
namespace {

// The fibers that lived when the process forked; null when memory was short. In the child the
// scheduler does not know them any more.
std::vector<Ref>* forking = nullptr;
pid_t own_pid = 0;

void forget_snapshot() noexcept {
  delete std::exchange(forking, nullptr);
}

PyObject* before_fork(PyObject*, PyObject*) {
  forget_snapshot();
  try {
    auto snapshot = std::make_unique<std::vector<Ref>>();
    for (Home* home = first_home(); home; home = home->next) {
      for (const FiberInfo& info : home->scheduler.fibers()) {
        auto* local = static_cast<FiberLocal*>(info.local);
        if (local && local->g) snapshot->push_back(Ref::share(local->g->object()));
      }
    }
    forking = snapshot.release();
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();  // reported, and forgotten by fork()
  }
  Py_RETURN_NONE;
}

PyObject* after_fork_in_parent(PyObject*, PyObject*) {
  forget_snapshot();
  Py_RETURN_NONE;
}

// The fiber is no more: neither it nor whoever waited for it will run again.
void drop_g(G& g) {
  Home* home = g.home;
  if (home == tl_home) rl_pystate_abandon(state_of(g.local), home->pyhub);
  new (&g.joiners) runloom::detail::WaitList();
  g.local->g = nullptr;
  forget_scopes(g);
  finish_g(g, GState::dropped, nullptr);
  Py_DECREF(g.object());  // the scheduler's
}

PyObject* reset_after_fork(PyObject*, PyObject*) {
  if (own_pid == ::getpid()) Py_RETURN_NONE;
  own_pid = ::getpid();
  for (Home* home = first_home(); home; home = home->next) {
    rl_pyhub_after_fork(home->pyhub);
    home->shared_waits = 0;
  }
  if (tl_home) tl_home->on_main_thread = true;
  forget_signal_pipe();
  if (forking) {
    for (const Ref& each : *forking) {
      G& g = *reinterpret_cast<G*>(each.get());
      if (!g.done() && g.home && !g.fiber.alive()) drop_g(g);
    }
  }
  forget_other_homes();
  forget_snapshot();
  Py_RETURN_NONE;
}

PyMethodDef before = {"before_fork", &before_fork, METH_NOARGS, nullptr};
PyMethodDef parent = {"after_fork_in_parent", &after_fork_in_parent, METH_NOARGS, nullptr};

PyMethodDef functions[] = {
    method("reset_after_fork", &reset_after_fork, METH_NOARGS,
           "reset_after_fork($module, /)\n--\n\n"
           "Let a forked child go on with the fiber that forked, and no other. Called by fork()."),
    {},
};

}  // namespace

bool add_fork_functions(PyObject* module) {
  own_pid = ::getpid();
  if (PyModule_AddFunctions(module, functions) < 0) return false;
  const Ref os = Ref::steal(PyImport_ImportModule("os"));
  const Ref function =
      os ? Ref::steal(PyObject_GetAttrString(os.get(), "register_at_fork")) : Ref();
  const Ref no_arguments = Ref::steal(PyTuple_New(0));
  const Ref handlers =
      Ref::steal(Py_BuildValue("{s:N,s:N,s:N}", "before", PyCFunction_New(&before, nullptr),
                               "after_in_parent", PyCFunction_New(&parent, nullptr),
                               "after_in_child", PyCFunction_New(&functions[0], nullptr)));
  if (!function || !no_arguments || !handlers) return false;
  return static_cast<bool>(
      Ref::steal(PyObject_Call(function.get(), no_arguments.get(), handlers.get())));
}

}  // namespace runloom::python
