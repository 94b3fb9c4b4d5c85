#include "core/spawn.hpp"

#include <algorithm>
#include <exception>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "core/config.hpp"
#include "core/decimal_context.hpp"
#include "core/gil.hpp"
#include "core/run.hpp"
#include "core/scope.hpp"
#include "core/signals.hpp"
#include "core/stack_advice.hpp"
#include "runloom/sched/error.hpp"
#include "support/args.hpp"
#include "support/errors.hpp"
#include "support/ref.hpp"
#include "support/types.hpp"

namespace runloom::python {
namespace {

// ---------------------------------------------------------------- a fiber's life

// Room for the fiber's Python frames. CPython maps 16 KiB more when that is not enough, and
// unmaps it on the way back, so a loop that calls across the border pays system calls: large
// enough that few programs get there. Untouched pages cost nothing.
constexpr std::size_t kLocalSize = 16 * 1024;

std::size_t local_size_for(std::size_t stack_size) noexcept {
  return std::min(kLocalSize, stack_size / 8);
}

std::size_t stack_size_or_default(std::size_t size) noexcept {
  return size ? size : config().options.stack_size;
}

PyObject* call(G& g) {
  if (!g.args) return PyObject_CallNoArgs(g.fn);
  return PyObject_Call(g.fn, g.args, g.kwargs);
}

// What a fiber that was cancelled before it began ends with.
PyObject* never_begun() {
  PyErr_SetString(cancelled_error, "the fiber was cancelled before it began");
  return nullptr;
}

// The life of a fiber: `body(g)` is what it does; it returns what the fiber returns, or null with
// an exception set.
template <class Body>
void live(FiberLocal& local, Body&& body) {
  G& g = *local.g;
  Home& home = *tl_home;
  g.state = GState::started;
  const bool drop = home.unwinding || g.cancelled;
  if (local.inherits && !drop) own_decimal_context();
  if (stack_advice_on && !drop) [[unlikely]]
    begin_measuring();
  PyObject* outcome = body(g, drop);
  if (stack_advice_on && !drop) [[unlikely]]
    end_measuring(g);
  if (g.scopes) [[unlikely]]
    leave_scopes(g);  // generators that it has not ended are in them
  // A signal that the fiber was to be told of by its next wait, which never came.
  PyObject* late = std::exchange(g.interrupt, nullptr);
  if (outcome) [[likely]] {
    finish_g(g, GState::returned, outcome);
    if (late) deliver_interrupt(home, late);
  } else {
    Py_XDECREF(late);
    PyObject* error = take_raised();
    if (PyErr_GivenExceptionMatches(error, cancelled_error)) g.retrieved = true;
    if (g.run_main || PyErr_GivenExceptionMatches(error, PyExc_KeyboardInterrupt)) [[unlikely]]
      fiber_raised(home, g, error);
    finish_g(g, GState::raised, error);
  }
  local.g = nullptr;
  Py_DECREF(g.object());
  rl_pystate_finish(state_of(&local), home.pyhub);
  local.finished = true;
}

void run_g(void*) {
  keep_stack([] {
    live(*current_local(), [](G& g, bool drop) { return drop ? never_begun() : call(g); });
  });
}

void ignore(void*) noexcept {}

constexpr runloom::detail::FrameOps kOps{&run_g, &ignore, &ignore};

// Makes a fiber's local memory, in which there is room for its state, what belongs to the G. No
// object is made, so that the collector does not meet a fiber that is half-made.
void make_local(Home& home, G& g, runloom::detail::Fiber* fiber, std::size_t local_size,
                Ref context) {
  auto* memory = static_cast<char*>(runloom::detail::fiber_local(fiber));
  const runloom::detail::StackBounds stack = runloom::detail::fiber_stack(fiber);
  auto* local = new (memory) FiberLocal{.g = &g,
                                        .stack_begin = stack.high,
                                        .inherits = static_cast<bool>(context),
                                        .finished = false};
  rl_pystate_init(state_of(local), home.pyhub, stack.low, stack.high,
                  memory + local_layout.datastack, local_size - local_layout.datastack,
                  context.release());
  g.home = &home;
  g.local = local;
  g.fiber = FiberHandle(fiber);
  g.id = home.id_base + g.fiber.id();
  Py_INCREF(g.object());  // the scheduler's, in local->g
}

std::string_view name_of(PyObject* fn) noexcept {
  const char* text = nullptr;
  if (PyMethod_Check(fn)) fn = PyMethod_GET_FUNCTION(fn);
  if (PyFunction_Check(fn)) {
    PyObject* name = reinterpret_cast<PyFunctionObject*>(fn)->func_name;
    if (PyUnicode_IS_COMPACT_ASCII(name))
      return {static_cast<const char*>(PyUnicode_DATA(name)),
              static_cast<std::size_t>(PyUnicode_GET_LENGTH(name))};
    text = PyUnicode_AsUTF8(name);
    if (!text) PyErr_Clear();
  } else if (PyCFunction_Check(fn)) {
    text = reinterpret_cast<PyCFunctionObject*>(fn)->m_ml->ml_name;
  }
  return text ? text : Py_TYPE(fn)->tp_name;
}

void raise_spawn_error(std::error_code error) {
  if (error == errno_code(ENOMEM)) {
    PyErr_NoMemory();
  } else {
    raise(error);
  }
}

}  // namespace

G* spawn(Home& home, const SpawnRequest& request) {
  Ref context;
  if (rl_pystate_copy_context(home.pyhub, context.address()) < 0) return nullptr;
  const std::size_t learned =
      stack_advice_on && request.stack_size == 0 ? learned_stack_size(request.fn) : 0;
  G* g = new_g(request.fn, request.args, request.kwargs);
  if (!g) return nullptr;
  // From here on no object is made: the collector must not meet a fiber that is half-made.
  const std::size_t stack_size = learned != 0 ? learned : stack_size_or_default(request.stack_size);
  const SpawnOptions options{.name = name_of(request.fn),
                             .stack_size = stack_size,
                             .local_size = local_size_for(stack_size),
                             .noyield = request.noyield};
  std::error_code error;
  auto* fiber = runloom::detail::allocate_fiber(&home.scheduler, options, 0, 1, error);
  if (!fiber) [[unlikely]] {
    g->state = GState::dropped;
    Py_DECREF(g->object());
    raise_spawn_error(error);
    return nullptr;
  }
  make_local(home, *g, fiber, options.local_size, std::move(context));
  g->noyield = request.noyield;
  runloom::detail::start_fiber(fiber, &kOps, false);
  return g;
}

// ---------------------------------------------------------------- guests

namespace {

std::size_t guest_local_size(void*, std::size_t stack_size) {
  return local_size_for(stack_size_or_default(stack_size));
}

bool make_guest(void* context, runloom::detail::Fiber* fiber, std::size_t local_size) {
  auto& home = *static_cast<Home*>(context);
  new (runloom::detail::fiber_local(fiber)) FiberLocal{};  // listings skip it
  Ref variables;
  G* g = rl_pystate_copy_context(home.pyhub, variables.address()) < 0
             ? nullptr
             : new_g(Py_None, nullptr, nullptr);
  if (!g) {
    PyErr_Clear();
    return false;
  }
  make_local(home, *g, fiber, local_size, std::move(variables));
  Py_DECREF(g->object());
  return true;
}

void drop_guest(void* context, runloom::detail::Fiber* fiber) {
  auto* local = static_cast<FiberLocal*>(runloom::detail::fiber_local(fiber));
  G* g = std::exchange(local->g, nullptr);
  if (!g) return;
  g->home = nullptr;
  g->fiber = FiberHandle();
  g->state = GState::dropped;
  Py_DECREF(g->object());
  rl_pystate_abandon(state_of(local), static_cast<Home*>(context)->pyhub);
}

void run_guest(void*, void (*run)(void*), void* frame) {
  std::exception_ptr thrown;
  keep_stack([&] {
    live(*current_local(), [&](G&, bool) {
      try {
        run(frame);
      } catch (const abi::__forced_unwind&) {
        throw;
      } catch (...) {
        thrown = std::current_exception();
      }
      return Py_NewRef(Py_None);
    });
  });
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace

const GuestHooks guest_hooks{&guest_local_size, &make_guest, &drop_guest, &run_guest};

std::size_t warm_stacks(Home& home, std::size_t count, std::size_t stack_size) {
  const std::size_t size = stack_size_or_default(stack_size);
  const SpawnOptions options{.stack_size = size, .local_size = local_size_for(size)};
  std::vector<runloom::detail::Fiber*> fibers;
  fibers.reserve(count);
  std::error_code error;
  while (fibers.size() < count) {
    auto* fiber = runloom::detail::allocate_fiber(&home.scheduler, options, 0, 1, error);
    if (!fiber) break;
    auto* local = static_cast<char*>(runloom::detail::fiber_local(fiber));
    new (local) FiberLocal{};
    fibers.push_back(fiber);
  }
  for (auto* fiber : fibers)
    runloom::detail::discard_fiber(fiber);
  return fibers.size();
}

namespace {

// ---------------------------------------------------------------- functions

bool require_callable(const char* function, PyObject* fn) {
  if (PyCallable_Check(fn)) return true;
  PyErr_Format(PyExc_TypeError, "%s() argument 'fn' must be callable, not %.100s", function,
               Py_TYPE(fn)->tp_name);
  return false;
}

PyObject* start(const char* function, const SpawnRequest& request) {
  if (!require_callable(function, request.fn)) return nullptr;
  Home* own = home();
  if (!own) return nullptr;
  G* g = spawn(*own, request);
  return g ? g->object() : nullptr;
}

PyObject* go(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  if (count == 1 && !names) [[likely]]
    return start("go", {.fn = args[0]});
  static const char* const parameters[] = {"fn", "stack_size"};
  static const Signature signature{"go", parameters, 2, 1, 1};
  PyObject* value[2];
  SpawnRequest request{};
  if (!parse(signature, args, count, names, value) || !to_stack_size(value[1], request.stack_size))
    return nullptr;
  request.fn = value[0];
  return start("go", request);
}

// As go; `fifo` is what every spawn is here.
PyObject* fiber(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const parameters[] = {"fn", "stack_size", "fifo"};
  static const Signature signature{"fiber", parameters, 3, 1, 3};
  PyObject* value[3];
  SpawnRequest request{};
  if (!parse(signature, args, count, names, value) || !to_stack_size(value[1], request.stack_size))
    return nullptr;
  request.fn = value[0];
  return start("fiber", request);
}

PyObject* fiber_noyield(PyObject*, PyObject* fn) {
  return start("fiber_noyield", {.fn = fn, .noyield = true});
}

PyObject* fiber_n(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const parameters[] = {"fn", "n", "stack_size", "indexed"};
  static const Signature signature{"fiber_n", parameters, 4, 2, 4};
  PyObject* value[4];
  Py_ssize_t number;
  SpawnRequest request{};
  if (!parse(signature, args, count, names, value) || !require_callable("fiber_n", value[0]) ||
      !to_size(value[1], "n", number) || !to_stack_size(value[2], request.stack_size))
    return nullptr;
  if (number < 0) {
    PyErr_SetString(PyExc_ValueError, "n must not be negative");
    return nullptr;
  }
  const int indexed = value[3] ? PyObject_IsTrue(value[3]) : 0;
  Home* own = indexed < 0 ? nullptr : home();
  if (!own) return nullptr;
  request.fn = value[0];
  for (Py_ssize_t i = 0; i < number; ++i) {
    Ref index;
    if (indexed) {
      index = Ref::steal(Py_BuildValue("(n)", i));
      if (!index) return nullptr;
      request.args = index.get();
    }
    G* g = spawn(*own, request);
    if (!g) return nullptr;
    Py_DECREF(g->object());
  }
  return PyLong_FromSsize_t(number);
}

PyObject* warmup(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const parameters[] = {"n", "stack_size"};
  static const Signature signature{"warmup", parameters, 2, 1, 2};
  PyObject* value[2];
  Py_ssize_t number;
  std::size_t stack_size;
  if (!parse(signature, args, count, names, value) || !to_size(value[0], "n", number) ||
      !to_stack_size(value[1], stack_size))
    return nullptr;
  if (number < 0) {
    PyErr_SetString(PyExc_ValueError, "n must not be negative");
    return nullptr;
  }
  Home* own = home();
  if (!own) return nullptr;
  try {
    return PyLong_FromSize_t(warm_stacks(*own, static_cast<std::size_t>(number), stack_size));
  } catch (const std::exception&) {
    return PyErr_NoMemory();
  }
}

// fn(*args, **kwargs): what stands behind fn in the call. With `own_size` the keyword stack_size
// is ours.
PyObject* fiber_with(const char* function, PyObject* const* args, Py_ssize_t count, PyObject* names,
                     bool own_size) {
  if (count < 1) {
    PyErr_Format(PyExc_TypeError, "%s() missing required argument 'fn' (pos 1)", function);
    return nullptr;
  }
  SpawnRequest request{.fn = args[0]};
  Ref tuple, dict;
  const Py_ssize_t keywords = names ? PyTuple_GET_SIZE(names) : 0;
  for (Py_ssize_t i = 0; i < keywords; ++i) {
    PyObject* keyword = PyTuple_GET_ITEM(names, i);
    PyObject* value = args[count + i];
    if (own_size && PyUnicode_CompareWithASCIIString(keyword, "stack_size") == 0) {
      if (!to_stack_size(value, request.stack_size)) return nullptr;
      continue;
    }
    if (!dict) dict = Ref::steal(PyDict_New());
    if (!dict || PyDict_SetItem(dict.get(), keyword, value) < 0) return nullptr;
  }
  if (count > 1 || dict) {
    tuple = Ref::steal(PyTuple_New(count - 1));
    if (!tuple) return nullptr;
    for (Py_ssize_t i = 1; i < count; ++i)
      PyTuple_SET_ITEM(tuple.get(), i - 1, Py_NewRef(args[i]));
  }
  request.args = tuple.get();
  request.kwargs = dict.get();
  return start(function, request);
}

PyObject* friendly_fiber(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  return fiber_with("fiber", args, count, names, true);
}
PyObject* sync_fiber(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  return fiber_with("fiber", args, count, names, false);
}

PyMethodDef functions[] = {
    fast_method("go", &go,
                "go($module, fn, /, *, stack_size=None)\n--\n\n"
                "Start a fiber that calls fn(), and return its handle."),
    fast_method("fiber", &fiber,
                "fiber($module, fn, stack_size=-1, fifo=False)\n--\n\n"
                "As go(). Every spawn is first in, first out, whatever `fifo`."),
    fast_method("fiber_fast", &fiber,
                "fiber_fast($module, fn, stack_size=-1, fifo=False)\n--\n\n"
                "As go()."),
    method("fiber_noyield", &fiber_noyield, METH_O,
           "fiber_noyield($module, fn, /)\n--\n\n"
           "Start a fiber that promises not to wait: what would wait in it raises RuntimeError."),
    fast_method("fiber_n", &fiber_n,
                "fiber_n($module, fn, n, stack_size=0, indexed=False)\n--\n\n"
                "Start n fibers that call fn(), or fn(0) to fn(n - 1) if `indexed`. Returns n."),
    fast_method("warmup", &warmup,
                "warmup($module, n, stack_size=None)\n--\n\n"
                "Have the stacks of n fibers ready; returns how many are."),
    fast_method("prewarm", &warmup, "prewarm($module, n, stack_size=None)\n--\n\nAs warmup()."),
    {},
};

// What the packages call fiber(). They know where programs find them, so that help() shows that
// name and a pickle finds them there.
PyMethodDef friendly =
    fast_method("fiber", &friendly_fiber,
                "fiber($module, fn, /, *args, stack_size=None, **kwargs)\n--\n\n"
                "Start a fiber that calls fn(*args, **kwargs), and return its handle.");
PyMethodDef simple =
    fast_method("fiber", &sync_fiber,
                "fiber($module, fn, /, *args, **kwargs)\n--\n\n"
                "Start a fiber that calls fn(*args, **kwargs), and return its handle.");

bool add_for(PyObject* module, const char* package, const char* attribute, PyMethodDef& method) {
  const Ref home = Ref::steal(PyUnicode_FromString(package));
  if (!home) return false;
  const Ref function = Ref::steal(PyCFunction_NewEx(&method, module, home.get()));
  return function && PyModule_AddObjectRef(module, attribute, function.get()) == 0;
}

}  // namespace

bool add_spawn_functions(PyObject* module) {
  return PyModule_AddFunctions(module, functions) == 0 &&
         add_for(module, "runloom", "_friendly_fiber", friendly) &&
         add_for(module, "runloom.sync", "_sync_fiber", simple);
}

}  // namespace runloom::python
