#include "core/g.hpp"

#include <algorithm>
#include <climits>
#include <new>

#include "core/park.hpp"
#include "support/args.hpp"
#include "support/errors.hpp"
#include "support/object.hpp"
#include "support/ref.hpp"
#include "support/types.hpp"

namespace runloom::python {

PyTypeObject* g_type = nullptr;

namespace {

// Memory of ended handles, for the next ones: saves the allocator and the collector's accounting.
constexpr int kMostSpare = 1024;
G* spare[kMostSpare];
int spare_count = 0;

G* as_g(PyObject* self) noexcept {
  return reinterpret_cast<G*>(self);
}

void wake_joiners(G& g) noexcept {
  while (runloom::detail::WaitNode* node = g.joiners.claim_front())
    runloom::detail::schedule(node->token.waiter);
}

}  // namespace

G* new_g(PyObject* fn, PyObject* args, PyObject* kwargs) {
  G* g;
  if (spare_count > 0) {
    g = spare[--spare_count];
    PyObject_Init(g->object(), g_type);
  } else {
    g = PyObject_GC_New(G, g_type);
    if (!g) return nullptr;
  }
  g->weakrefs = nullptr;
  g->fn = Py_NewRef(fn);
  g->args = Py_XNewRef(args);
  g->kwargs = Py_XNewRef(kwargs);
  g->outcome = nullptr;
  g->interrupt = nullptr;
  g->scopes = nullptr;
  g->home = nullptr;
  g->local = nullptr;
  new (&g->fiber) FiberHandle();
  new (&g->joiners) runloom::detail::WaitList();
  g->id = 0;
  g->wakes_ns = 0;
  g->state = GState::fresh;
  g->noyield = g->cancelled = g->retrieved = g->nested_run = g->run_main = false;
  PyObject_GC_Track(g);
  return g;
}

void finish_g(G& g, GState state, PyObject* outcome) {
  g.outcome = outcome;
  g.state = state;
  g.home = nullptr;
  g.fiber = FiberHandle();
  if (!g.joiners.empty()) wake_joiners(g);
  Py_CLEAR(g.fn);
  Py_CLEAR(g.args);
  Py_CLEAR(g.kwargs);
  Py_CLEAR(g.interrupt);
}

bool cancel_g(G& g) noexcept {
  if (g.done() || !g.home) return false;
  g.cancelled = true;
  return g.fiber.cancel();
}

void interrupt_g(G& g, PyObject* exception) noexcept {
  Py_XDECREF(std::exchange(g.interrupt, exception));
  g.fiber.cancel();
}

int join_g(G& g, Deadline deadline) {
  using namespace runloom::detail;
  if (g.done()) return 0;
  if (&g == current_g()) {
    PyErr_SetString(PyExc_RuntimeError, "a fiber can't join itself");
    return -1;
  }
  if (!on_fiber() && g.home == tl_home) {
    PyErr_SetString(PyExc_RuntimeError,
                    "join() outside of a fiber, of a fiber that only run() on "
                    "this thread can bring to its end");
    return -1;
  }
  ParkGuard guard;
  WaitNode node(begin_wait());
  g.joiners.push_back(node);
  const WakeCode code = wait(node.token, {.reason = WaitReason::join,
                                          .object = &g,
                                          .deadline = deadline,
                                          .external = g.home != tl_home});
  g.joiners.remove_if_linked(node);
  if (g.done()) return 0;
  raise(code == kWakeUser ? make_error_code(Errc::cancelled) : wake_error(code));
  return -1;
}

PyObject* outcome_of(G& g) {
  if (g.state == GState::returned) return Py_NewRef(g.outcome);
  g.retrieved = true;
  if (g.outcome) {
    raise_again(Py_NewRef(g.outcome));
  } else {
    PyErr_SetString(cancelled_error, "the fiber was dropped");
  }
  return nullptr;
}

namespace {

// ---------------------------------------------------------------- object protocol

// An exception that nobody has seen is reported when the last handle goes. As a finaliser, because
// sys.unraisablehook may keep the G.
void g_finalize(PyObject* self) {
  G& g = *as_g(self);
  if (g.state != GState::raised || g.retrieved) return;
  g.retrieved = true;
  PyObject* saved = take_raised();
  raise_again(Py_NewRef(g.outcome));
  PyErr_WriteUnraisable(self);
  if (saved) raise_again(saved);
}

int g_traverse(PyObject* self, visitproc visit, void* arg) {
  G& g = *as_g(self);
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(g.fn);
  Py_VISIT(g.args);
  Py_VISIT(g.kwargs);
  Py_VISIT(g.outcome);
  Py_VISIT(g.interrupt);
  return 0;
}

int g_clear(PyObject* self) {
  G& g = *as_g(self);
  Py_CLEAR(g.fn);
  Py_CLEAR(g.args);
  Py_CLEAR(g.kwargs);
  Py_CLEAR(g.outcome);
  Py_CLEAR(g.interrupt);
  return 0;
}

void g_dealloc(PyObject* self) {
  G& g = *as_g(self);
  if (g.state == GState::raised && !g.retrieved) [[unlikely]] {
    if (PyObject_CallFinalizerFromDealloc(self) < 0) return;
  }
  PyObject_GC_UnTrack(self);
  Py_TRASHCAN_BEGIN(self, g_dealloc) if (g.weakrefs) PyObject_ClearWeakRefs(self);
  g_clear(self);
  PyTypeObject* type = Py_TYPE(self);
  // The collector's "finalised" mark can't be taken back, so such memory is not used again.
  if (spare_count < kMostSpare && !PyObject_GC_IsFinalized(self)) {
    spare[spare_count++] = &g;
  } else {
    PyObject_GC_Del(self);
  }
  Py_DECREF(type);
  Py_TRASHCAN_END
}

const char* state_name(const G& g) noexcept {
  switch (g.state) {
    case GState::fresh:
      return "new";
    case GState::started:
      return g.home ? (&g == current_g() ? "running" : "started") : "lost";
    case GState::returned:
      return "returned";
    case GState::raised:
      return "raised";
    case GState::dropped:
      return "dropped";
  }
  return "?";
}

PyObject* g_repr(PyObject* self) {
  G& g = *as_g(self);
  const auto id = static_cast<unsigned long long>(g.id);
  // The function's own repr may let the fiber end, which lets go of it.
  const Ref fn = Ref::share(g.fn);
  if (fn) return PyUnicode_FromFormat("<runloom.G %llu %s: %R>", id, state_name(g), fn.get());
  return PyUnicode_FromFormat("<runloom.G %llu %s>", id, state_name(g));
}

// ---------------------------------------------------------------- attributes and methods

PyObject* g_done(PyObject* self, void*) {
  return PyBool_FromLong(as_g(self)->done());
}

PyObject* g_result(PyObject* self, void*) {
  G& g = *as_g(self);
  return Py_NewRef(g.state == GState::returned ? g.outcome : Py_None);
}

PyObject* g_error(PyObject* self, void*) {
  G& g = *as_g(self);
  if (g.state != GState::raised || !g.outcome) return Py_NewRef(Py_None);
  g.retrieved = true;
  return Py_NewRef(g.outcome);
}

PyObject* g_id(PyObject* self, void*) {
  return PyLong_FromUnsignedLongLong(as_g(self)->id);
}

PyObject* g_wake(PyObject* self, PyObject*) {
  G& g = *as_g(self);
  if (g.home) g.fiber.unpark();
  Py_RETURN_NONE;
}

// _wait(): as join(), but the outcome stays unseen.
PyObject* g_wait(PyObject* self, PyObject*) {
  if (join_g(*as_g(self), Deadline::never()) < 0) return nullptr;
  Py_RETURN_NONE;
}

PyObject* g_cancel(PyObject* self, PyObject*) {
  return PyBool_FromLong(cancel_g(*as_g(self)));
}

PyObject* g_join(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const parameters[] = {"timeout"};
  static const Signature signature{"join", parameters, 1, 0, 1};
  PyObject* value[1];
  Deadline deadline;
  if (!parse(signature, args, count, names, value) || !to_deadline(value[0], deadline))
    return nullptr;
  G& g = *as_g(self);
  return join_g(g, deadline) < 0 ? nullptr : outcome_of(g);
}

PyObject* g_stack(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const parameters[] = {"limit"};
  static const Signature signature{"stack", parameters, 1, 0, 1};
  PyObject* value[1];
  Py_ssize_t limit = -1;
  if (!parse(signature, args, count, names, value)) return nullptr;
  if (is_given(value[0]) && !to_size(value[0], "limit", limit)) return nullptr;
  return stack_of_g(*as_g(self), static_cast<int>(std::clamp<Py_ssize_t>(limit, -1, INT_MAX)));
}

PyMethodDef g_methods[] = {
    method("wake", &g_wake, METH_NOARGS,
           "wake($self, /)\n--\n\n"
           "Give the fiber a permit: ends its park, or lets its next one return at once."),
    method("_wait", &g_wait, METH_NOARGS, nullptr),
    method("cancel", &g_cancel, METH_NOARGS,
           "cancel($self, /)\n--\n\n"
           "Raise Cancelled from what the fiber waits in, and from every wait to come.\n\n"
           "False when the fiber has ended. One that has not begun will not begin."),
    fast_method("join", &g_join,
                "join($self, /, timeout=None)\n--\n\n"
                "Wait for the end and return the fiber's result, or raise its exception.\n\n"
                "TimeoutError when so many seconds pass first; it may be joined again then."),
    fast_method("stack", &g_stack,
                "stack($self, /, limit=None)\n--\n\n"
                "Return (filename, lineno, name) of the fiber's Python frames, innermost first."),
    method("__class_getitem__", &Py_GenericAlias, METH_O | METH_CLASS,
           "G[T]: of a fiber whose function returns that type."),
    {},
};

PyGetSetDef g_getset[] = {
    {"done", &g_done, nullptr, "True once the fiber has ended.", nullptr},
    {"result", &g_result, nullptr, "What the fiber returned; None until then.", nullptr},
    {"error", &g_error, nullptr, "The exception that ended the fiber, else None.", nullptr},
    {"exception", &g_error, nullptr, "The exception that ended the fiber, else None.", nullptr},
    {"id", &g_id, nullptr, "A number of the fiber that no other has had.", nullptr},
    {},
};

PyMemberDef g_members[] = {
    weakref_member(),
    {},
};

PyType_Slot g_slots[] = {
    slot(Py_tp_doc, const_cast<char*>("Handle of a fiber; made by go().")),
    slot(Py_tp_finalize, &g_finalize),
    slot(Py_tp_dealloc, &g_dealloc),
    slot(Py_tp_traverse, &g_traverse),
    slot(Py_tp_clear, &g_clear),
    slot(Py_tp_repr, &g_repr),
    slot(Py_tp_methods, static_cast<void*>(g_methods)),
    slot(Py_tp_getset, static_cast<void*>(g_getset)),
    slot(Py_tp_members, static_cast<void*>(g_members)),
    {},
};

PyType_Spec g_spec = {"runloom_c.G", sizeof(G), 0,
                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
                          Py_TPFLAGS_DISALLOW_INSTANTIATION,
                      g_slots};

}  // namespace

PyObject* stack_of_g(G& g, int limit) {
  if (!g.home) return PyList_New(0);
  return rl_pystate_stack(state_of(g.local), g.home->pyhub, limit);
}

bool init_g(PyObject* module) {
  g_type = add_type(module, g_spec);
  return g_type != nullptr;
}

}  // namespace runloom::python
