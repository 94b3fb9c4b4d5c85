#include "core/stack_advice.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_map>

#include "core/config.hpp"
#include "core/home.hpp"
#include "support/args.hpp"
#include "support/errors.hpp"
#include "support/ref.hpp"
#include "support/types.hpp"

namespace runloom::python {

bool stack_advice_on = false;

namespace {

constexpr std::size_t kPage = 4096;
// What a fiber may need beside what was seen of its kind: the fattest C frames of CPython
// (decimal, the first use of TLS, select.select). Only touched pages cost memory.
constexpr std::size_t kReserve = std::size_t{256} << 10;
// So many have to end before a kind counts as known.
constexpr std::uint64_t kSamples = 3;

struct Kind {
  std::uint64_t samples = 0;
  std::size_t most = 0;
  std::size_t reserved = 0;
};

// Guarded by the GIL. Never destroyed: fibers end until the process does.
std::unordered_map<std::string, Kind>& kinds() {
  static auto* const all = new std::unordered_map<std::string, Kind>;
  return *all;
}

bool autosize = false;
bool advice = false;
bool grow_down = true;
std::uint64_t measured = 0;
std::size_t most_used = 0;

std::string text_of(PyObject* object, const char* attribute) {
  const Ref value = Ref::steal(PyObject_GetAttrString(object, attribute));
  const char* text = value && PyUnicode_Check(value.get()) ? PyUnicode_AsUTF8(value.get()) : "";
  if (!text || !value) PyErr_Clear();
  return text ? text : "";
}

// Of a partial object the function that it calls.
std::string kind_of(PyObject* fn) {
  Ref called = Ref::share(fn);
  for (int depth = 0; depth < 8; ++depth) {
    Ref inner = Ref::steal(PyObject_GetAttrString(called.get(), "func"));
    if (!inner) {
      PyErr_Clear();
      break;
    }
    called = std::move(inner);
  }
  const std::string name = text_of(called.get(), "__qualname__");
  if (name.empty()) return Py_TYPE(called.get())->tp_name;
  const std::string module = text_of(called.get(), "__module__");
  return module.empty() ? name : module + "." + name;
}

std::size_t suggestion(const Kind& kind) noexcept {
  return (2 * kind.most + kReserve + kPage - 1) / kPage * kPage;
}

struct Bounds {
  std::uintptr_t low, top;
};
Bounds stack_bounds(const FiberLocal& local) noexcept {
  const auto here = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
  const std::uintptr_t low = (here - this_fiber::stack_left() + kPage - 1) / kPage * kPage;
  return {low, reinterpret_cast<std::uintptr_t>(local.stack_begin)};
}

// ---------------------------------------------------------------- functions

bool to_switch(PyObject* const* args, Py_ssize_t count, PyObject* names, const char* function,
               bool& on) {
  static const char* const parameters[] = {"on"};
  const Signature signature{function, parameters, 1, 0, 1};
  PyObject* value[1];
  if (!parse(signature, args, count, names, value)) return false;
  const int truth = value[0] ? PyObject_IsTrue(value[0]) : 1;
  on = truth == 1;
  return truth >= 0;
}

PyObject* enable_stack_advice(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  if (!to_switch(args, count, names, "enable_stack_advice", advice)) return nullptr;
  stack_advice_on = advice || autosize;
  Py_RETURN_NONE;
}

PyObject* stack_advice_list(PyObject*, PyObject*) {
  return or_no_memory([]() -> PyObject* {
    Ref list = Ref::steal(PyList_New(0));
    for (const auto& [name, kind] : kinds()) {
      const Ref entry = Ref::steal(Py_BuildValue(
          "{s:s,s:K,s:n,s:n,s:n}", "kind", name.c_str(), "samples",
          static_cast<unsigned long long>(kind.samples), "max_hwm",
          static_cast<Py_ssize_t>(kind.most), "reserved", static_cast<Py_ssize_t>(kind.reserved),
          "suggested", static_cast<Py_ssize_t>(suggestion(kind))));
      if (!list || !entry || PyList_Append(list.get(), entry.get()) < 0) return nullptr;
    }
    return list.release();
  });
}

PyObject* enable_stack_autosize(PyObject*, PyObject* const* args, Py_ssize_t count,
                                PyObject* names) {
  static const char* const parameters[] = {"on", "prescan"};
  static const Signature signature{"enable_stack_autosize", parameters, 2, 0, 2};
  PyObject* value[2];
  if (!parse(signature, args, count, names, value)) return nullptr;
  const int on = value[0] ? PyObject_IsTrue(value[0]) : 1;
  // Every kind starts with the default, which bears the deepest frames, so there is nothing to
  // look for in advance.
  const int prescan = value[1] ? PyObject_IsTrue(value[1]) : 0;
  if (on < 0 || prescan < 0) return nullptr;
  autosize = on != 0;
  stack_advice_on = advice || autosize;
  Py_RETURN_NONE;
}

PyObject* stack_autosize_enabled(PyObject*, PyObject*) {
  return PyBool_FromLong(autosize);
}

PyObject* set_grow_down(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  static const char* const parameters[] = {"enabled"};
  static const Signature signature{"set_grow_down", parameters, 1, 0, 1};
  PyObject* value[1];
  if (!parse(signature, args, count, names, value)) return nullptr;
  const int on = value[0] ? PyObject_IsTrue(value[0]) : 1;
  if (on < 0) return nullptr;
  grow_down = on != 0;
  Py_RETURN_NONE;
}

PyObject* grow_down_enabled(PyObject*, PyObject*) {
  return PyBool_FromLong(grow_down);
}

PyMethodDef functions[] = {
    fast_method("enable_stack_advice", &enable_stack_advice,
                "enable_stack_advice($module, /, on=True)\n--\n\n"
                "Measure how much stack the fibers that begin from now on use, by kind."),
    method("stack_advice", &stack_advice_list, METH_NOARGS,
           "stack_advice($module, /)\n--\n\n"
           "One dict for each kind of fiber: kind, samples, max_hwm, reserved, suggested (bytes)."),
    fast_method("enable_stack_autosize", &enable_stack_autosize,
                "enable_stack_autosize($module, /, on=True, prescan=False)\n--\n\n"
                "Give fibers of a kind that is known the stack that was suggested for it.\n\n"
                "RUNLOOM_STACK_AUTOSIZE=1 does it at the start. A stack_size that is named wins."),
    method("stack_autosize_enabled", &stack_autosize_enabled, METH_NOARGS,
           "stack_autosize_enabled($module, /)\n--\n\nWhether that is on."),
    fast_method("set_grow_down", &set_grow_down,
                "set_grow_down($module, /, enabled=True)\n--\n\n"
                "Let the M:N scheduler learn the stack sizes of functions. On one hub it is not "
                "used."),
    method("grow_down_enabled", &grow_down_enabled, METH_NOARGS,
           "grow_down_enabled($module, /)\n--\n\nWhether it may."),
    {},
};

}  // namespace

std::size_t stack_high_water() noexcept {
  const FiberLocal* const local = current_local();
  if (!local) return 0;
  const Bounds bounds = stack_bounds(*local);
  const auto here = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
  // The deepest page first.
  unsigned char present[256];
  for (std::uintptr_t at = bounds.low; at < here; at += sizeof present * kPage) {
    const std::size_t pages = std::min(sizeof present, (here - at) / kPage + 1);
    if (::mincore(reinterpret_cast<void*>(at), pages * kPage, present) != 0) break;
    for (std::size_t i = 0; i < pages; ++i)
      if (present[i] & 1) return bounds.top - (at + i * kPage);
  }
  return bounds.top - here / kPage * kPage;
}

std::size_t most_stack_used() noexcept {
  return most_used;
}
std::uint64_t stacks_measured() noexcept {
  return measured;
}

void begin_measuring() noexcept {
  const FiberLocal* const local = current_local();
  if (!local) return;
  const Bounds bounds = stack_bounds(*local);
  const auto here = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
  // Not the page below: what is called from here may be in it.
  const std::uintptr_t end = here / kPage * kPage - kPage;
  if (end > bounds.low)
    ::madvise(reinterpret_cast<void*>(bounds.low), end - bounds.low, MADV_DONTNEED);
}

void end_measuring(const G& g) noexcept {
  const std::size_t used = stack_high_water();
  ++measured;
  most_used = std::max(most_used, used);
  if (!g.fn) return;
  const Ref raised = Ref::steal(take_raised());
  try {
    Kind& kind = kinds()[kind_of(g.fn)];
    ++kind.samples;
    kind.most = std::max(kind.most, used);
    const Bounds bounds = stack_bounds(*current_local());
    kind.reserved = bounds.top - bounds.low;
  } catch (const std::bad_alloc&) {
  }
  if (raised) raise_again(Py_NewRef(raised.get()));
}

std::size_t learned_stack_size(PyObject* fn) noexcept {
#if PY_VERSION_HEX < 0x030C0000
  // One limit of recursion for all stacks, see config.cpp: none may be smaller than the default.
  (void)fn;
  return 0;
#else
  if (!autosize) return 0;
  try {
    const auto found = kinds().find(kind_of(fn));
    if (found == kinds().end() || found->second.samples < kSamples) return 0;
    return std::min(suggestion(found->second), config().options.stack_size);
  } catch (const std::bad_alloc&) {
    return 0;
  }
#endif
}

bool add_stack_advice(PyObject* module) {
  autosize = environment_switch("RUNLOOM_STACK_AUTOSIZE", false);
  grow_down = environment_switch("RUNLOOM_GROW_DOWN", true);
  stack_advice_on = autosize;
  return PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace runloom::python
