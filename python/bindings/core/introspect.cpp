#include "core/introspect.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/config.hpp"
#include "core/g.hpp"
#include "core/stack_advice.hpp"
#include "runloom/net/file.hpp"
#include "runloom/net/netpoll.hpp"
#include "support/args.hpp"
#include "support/errors.hpp"
#include "support/ref.hpp"
#include "support/types.hpp"

namespace runloom::python {
namespace {

// ---------------------------------------------------------------- one fiber as a dict

// The state as the dump of a Go program names it: what it waits for, if it waits.
const char* state_word(const FiberInfo& info) noexcept {
  if (std::string_view(info.state) != "parked") return info.state;
  switch (info.reason) {
    case WaitReason::sleep:
      return "sleep";
    case WaitReason::channel_send:
    case WaitReason::channel_recv:
    case WaitReason::select:
      return "chan-wait";
    default:
      return waits_on_descriptor(info.reason) ? "io-wait" : "park";
  }
}

const char* poll_events(WaitReason reason) noexcept {
  switch (reason) {
    case WaitReason::io_write:
    case WaitReason::io_connect:
      return "w";
    case WaitReason::io_poll:
      return "rw";
    default:
      return "r";
  }
}

bool put(PyObject* dict, const char* key, PyObject* value) {
  const Ref keep = Ref::steal(value);
  return keep && PyDict_SetItemString(dict, key, keep.get()) == 0;
}

// A fiber as it was when it was looked at.
struct Seen {
  std::uint64_t id;
  unsigned long owner;
  FiberInfo info;
  Ref g;  // empty: a fiber of C++, or one that has ended but for its last references
};

std::vector<Seen> look_at_fibers() {
  std::vector<Seen> seen;
  for (Home* home = first_home(); home; home = home->next) {
    for (FiberInfo& info : home->scheduler.fibers()) {
      auto* local = static_cast<FiberLocal*>(info.local);
      Ref g = Ref::share(local && local->g ? local->g->object() : nullptr);
      seen.push_back({home->id_base + info.id, home->thread, std::move(info), std::move(g)});
    }
  }
  return seen;
}

PyObject* describe(const Seen& seen) {
  const FiberInfo& info = seen.info;
  const auto* g = reinterpret_cast<const G*>(seen.g.get());
  const bool parked = std::string_view(info.state) == "parked";
  const double age = std::chrono::duration<double>(info.age).count();
  Ref dict = Ref::steal(PyDict_New());
  PyObject* d = dict.get();
  if (!d || !put(d, "id", PyLong_FromUnsignedLongLong(seen.id)) ||
      !put(d, "name",
           PyUnicode_DecodeUTF8(info.name.data(), static_cast<Py_ssize_t>(info.name.size()),
                                "replace")) ||
      !put(d, "state", PyUnicode_FromString(state_word(info))) ||
      !put(d, "blocked_on",
           parked ? PyUnicode_FromString(to_string(info.reason)) : Py_NewRef(Py_None)) ||
      !put(d, "age", PyFloat_FromDouble(age)) ||
      !put(d, "refcount", PyLong_FromSsize_t(g ? Py_REFCNT(seen.g.get()) - 1 : 0)) ||
      !put(d, "noyield", PyBool_FromLong(g && g->noyield)) ||
      !put(d, "owner", PyLong_FromUnsignedLong(seen.owner)) ||
      !put(d, "stack_size", PyLong_FromSize_t(info.stack_size)))
    return nullptr;
  if (parked && g && info.reason == WaitReason::sleep) {
    const auto left = static_cast<double>(g->wakes_ns - monotonic_ns()) / 1e9;
    if (!put(d, "wake_in", PyFloat_FromDouble(std::max(left, 0.0)))) return nullptr;
  }
  if (parked && waits_on_descriptor(info.reason)) {
    if (!put(d, "fd", PyLong_FromVoidPtr(const_cast<void*>(info.object))) ||
        !put(d, "events", PyUnicode_FromString(poll_events(info.reason))))
      return nullptr;
  }
  return dict.release();
}

PyObject* fibers(PyObject*, PyObject*) {
  return or_no_memory([]() -> PyObject* {
    // In two steps: making objects may run the collector, and its finalisers other threads' fibers.
    const std::vector<Seen> all = look_at_fibers();
    Ref list = Ref::steal(PyList_New(0));
    for (const Seen& seen : all) {
      const Ref entry = Ref::steal(list ? describe(seen) : nullptr);
      if (!entry || PyList_Append(list.get(), entry.get()) < 0) return nullptr;
    }
    return list.release();
  });
}

PyObject* fiber_count(PyObject*, PyObject*) {
  std::uint64_t live = 0;
  for (Home* home = first_home(); home; home = home->next)
    live += home->scheduler.stats().live;
  return PyLong_FromUnsignedLongLong(live);
}

G* find_g(std::uint64_t id) {
  for (Home* home = first_home(); home; home = home->next) {
    for (const FiberInfo& info : home->scheduler.fibers()) {
      auto* local = static_cast<FiberLocal*>(info.local);
      if (home->id_base + info.id == id && local) return local->g;
    }
  }
  return nullptr;
}

PyObject* fiber_stack(PyObject*, PyObject* value) {
  const Ref number = Ref::steal(PyNumber_Index(value));
  if (!number) return nullptr;
  const unsigned long long id = PyLong_AsUnsignedLongLong(number.get());
  if (PyErr_Occurred()) return nullptr;
  const Ref keep = or_no_memory([id] {
    G* found = find_g(id);
    return Ref::share(found ? found->object() : nullptr);
  });
  if (PyErr_Occurred()) return nullptr;
  if (!keep) return PyErr_Format(PyExc_LookupError, "no fiber %R lives", number.get());
  auto* g = reinterpret_cast<G*>(keep.get());
  const Ref fn = Ref::share(g->fn ? g->fn : Py_None);
  const Ref name = Ref::steal(PyObject_Repr(fn.get()));
  if (!name) return nullptr;
  const Ref stack = Ref::steal(stack_of_g(*g, -1));
  return stack ? PyTuple_Pack(2, name.get(), stack.get()) : nullptr;
}

// _native_stack(id) -> its C++ frames, innermost first. No fiber of any home runs while the GIL is
// held here.
PyObject* native_stack(PyObject*, PyObject* value) {
  const Ref number = Ref::steal(PyNumber_Index(value));
  if (!number) return nullptr;
  const unsigned long long id = PyLong_AsUnsignedLongLong(number.get());
  if (PyErr_Occurred()) return nullptr;
  return or_no_memory([&]() -> PyObject* {
    std::vector<std::string> frames;
    for (Home* home = first_home(); home && frames.empty(); home = home->next)
      if (id > home->id_base) frames = home->scheduler.parked_stack(id - home->id_base);
    const Ref list = Ref::steal(PyList_New(0));
    for (const std::string& frame : frames) {
      const Ref text =
          Ref::steal(list ? PyUnicode_DecodeUTF8(frame.data(),
                                                 static_cast<Py_ssize_t>(frame.size()), "replace")
                          : nullptr);
      if (!text || PyList_Append(list.get(), text.get()) < 0) return nullptr;
    }
    return Py_XNewRef(list.get());
  });
}

PyObject* dump_fibers(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const parameters[] = {"fd"};
  static const Signature signature{"dump_fibers", parameters, 1, 0, 1};
  PyObject* value[1];
  int fd = 2;
  if (!parse(signature, args, count, names, value)) return nullptr;
  if (value[0] && !to_int(value[0], "fd", fd)) return nullptr;
  for (Home* home = first_home(); home; home = home->next)
    home->scheduler.dump(fd);
  Py_RETURN_NONE;
}

// ---------------------------------------------------------------- the calling thread's scheduler

// Of the poller that the thread has, or that it will get.
const char* netpoll_name() {
  static const std::string preset = [] {
    const auto made = net::make_netpoll();
    return std::string(made ? (*made)->name() : "none");
  }();
  return preset.c_str();
}

PyObject* stats(PyObject*, PyObject*) {
  const Stats now = tl_home ? tl_home->scheduler.stats() : Stats{};
  Ref dict = Ref::steal(PyDict_New());
  PyObject* d = dict.get();
  const struct {
    const char* key;
    std::uint64_t value;
  } counters[] = {
      {"ready", now.ready},
      {"sleeping", now.sleeping},
      {"netpoll_parked", now.io_parked},
      {"completed", now.completed},
      {"live", now.live},
      {"spawned", now.spawned},
      {"switches", now.switches},
      {"turns", now.turns},
      {"polls", now.polls},
      {"sleeps", now.sleeps},
      {"wakes_sent", now.wakes_sent},
      {"stack_size_default", config().options.stack_size},
      {"stack_hwm", most_stack_used()},
      {"stack_completed", stacks_measured()},
      {"stacks_mapped", now.stacks_mapped},
      {"stacks_free", now.stacks_free},
  };
  for (const auto& counter : counters)
    if (!d || !put(d, counter.key, PyLong_FromUnsignedLongLong(counter.value))) return nullptr;
  if (!put(d, "running", PyBool_FromLong(tl_home && tl_home->running)) ||
      !put(d, "stack_calibrated", PyBool_FromLong(config().stack_size_set)) ||
      !put(d, "stack_painting", PyBool_FromLong(stack_advice_on)) ||
      !put(d, "backend", PyUnicode_FromString("fcontext-asm")) ||
      !put(d, "netpoll", PyUnicode_FromString(netpoll_name())) ||
      !put(d, "netpoll_fallback", PyUnicode_FromString(net::netpoll_fallback().c_str())) ||
      !put(d, "files_fallback", PyUnicode_FromString(net::file_ring_refusal().c_str())))
    return nullptr;
  return dict.release();
}

PyObject* current_g_hwm(PyObject*, PyObject*) {
  return PyLong_FromSize_t(stack_high_water());
}

PyObject* backend(PyObject*, PyObject*) {
  return PyUnicode_FromString("fcontext-asm");
}

PyMethodDef functions[] = {
    method("fibers", &fibers, METH_NOARGS,
           "fibers($module, /)\n--\n\nOne dict for each fiber that lives, on any thread."),
    method("fiber_count", &fiber_count, METH_NOARGS,
           "fiber_count($module, /)\n--\n\nCount the fibers that live, on any thread."),
    method("_native_stack", &native_stack, METH_O, nullptr),
    method("fiber_stack", &fiber_stack, METH_O,
           "fiber_stack($module, id, /)\n--\n\n"
           "Return (callable, frames): frames are (filename, lineno, name), innermost first."),
    fast_method("dump_fibers", &dump_fibers,
                "dump_fibers($module, /, fd=2)\n--\n\nWrite a line for each fiber to fd."),
    method("stats", &stats, METH_NOARGS,
           "stats($module, /)\n--\n\nCounters of the calling thread's scheduler."),
    method("current_g_hwm", &current_g_hwm, METH_NOARGS,
           "current_g_hwm($module, /)\n--\n\n"
           "Bytes of stack that the running fiber has touched, in pages; 0 outside of fibers."),
    method("backend", &backend, METH_NOARGS,
           "backend($module, /)\n--\n\nWhat switches stacks: 'fcontext-asm'."),
    {},
};

}  // namespace

bool add_introspect_functions(PyObject* module) {
  return PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace runloom::python
