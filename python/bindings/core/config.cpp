#include "core/config.hpp"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "core/home.hpp"
#include "support/args.hpp"
#include "support/types.hpp"

namespace runloom::python {
namespace {

// CPython up to 3.13 counts nested C calls instead of looking at the stack, against a limit made
// for a thread's 8 MiB. 3.12 and 3.13 let a fiber have a limit for its own stack. 3.11 has one
// counter for Python and C calls, so its stacks must bear the 1,000 calls of the default limit,
// whatever they are; a sort in a sort takes 5 KiB for two. Only touched pages cost memory.
#if PY_VERSION_HEX >= 0x030E0000
constexpr std::size_t kDefaultStack = std::size_t{256} << 10;
#elif PY_VERSION_HEX < 0x030C0000
constexpr std::size_t kDefaultStack = std::size_t{4} << 20;
#else
constexpr std::size_t kDefaultStack = std::size_t{1} << 20;
#endif
constexpr Py_ssize_t kLeastStack = Py_ssize_t{16} << 10;
constexpr Py_ssize_t kMostDefaultStack = Py_ssize_t{8} << 20;

Config make_config() {
  Config config{.options = Options::from_environment({.stack_size = kDefaultStack})};
  config.options.hubs = 1;
  config.max_fibers = config.options.max_fibers;
  return config;
}

template <class Fn>
void for_each_home(Fn&& fn) {
  for (Home* each = first_home(); each; each = each->next)
    fn(each->scheduler);
}

PyObject* get_stack_size(PyObject*, PyObject*) {
  return PyLong_FromSize_t(config().options.stack_size);
}

PyObject* set_stack_size(PyObject*, PyObject* value) {
  Py_ssize_t bytes;
  if (!to_size(value, "stack size", bytes)) return nullptr;
  if (bytes <= 0) {
    PyErr_SetString(PyExc_ValueError, "stack size must be positive");
    return nullptr;
  }
  const auto size = static_cast<std::size_t>(std::clamp(bytes, kLeastStack, kMostDefaultStack));
  config().options.stack_size = size;
  config().stack_size_set = true;
  for_each_home([size](Scheduler& scheduler) { scheduler.set_default_stack_size(size); });
  Py_RETURN_NONE;
}

PyObject* get_max_fibers(PyObject*, PyObject*) {
  return PyLong_FromUnsignedLongLong(config().max_fibers);
}

PyObject* set_max_fibers(PyObject*, PyObject* value) {
  Py_ssize_t limit;
  if (!to_size(value, "fiber limit", limit)) return nullptr;
  if (limit < 0) {
    PyErr_SetString(PyExc_ValueError, "fiber limit must not be negative");
    return nullptr;
  }
  const auto most = static_cast<std::uint64_t>(limit);
  config().max_fibers = config().options.max_fibers = most;
  for_each_home([most](Scheduler& scheduler) { scheduler.set_max_fibers(most); });
  Py_RETURN_NONE;
}

PyObject* live_fibers(PyObject*, PyObject*) {
  std::uint64_t live = 0;
  for_each_home([&live](Scheduler& scheduler) { live += scheduler.stats().live; });
  return PyLong_FromUnsignedLongLong(live);
}

PyObject* get_deadlock_mode(PyObject*, PyObject*) {
  return PyLong_FromLong(static_cast<long>(config().options.deadlock));
}

PyObject* set_deadlock_mode(PyObject*, PyObject* value) {
  int number;
  if (!to_int(value, "deadlock mode", number)) return nullptr;
  if (number < 0 || number > 2) {
    PyErr_SetString(PyExc_ValueError, "deadlock mode must be 0 (off), 1 (warn) or 2 (raise)");
    return nullptr;
  }
  const auto mode = static_cast<DeadlockMode>(number);
  config().options.deadlock = mode;
  for_each_home([mode](Scheduler& scheduler) { scheduler.set_deadlock_mode(mode); });
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    method("get_stack_size", &get_stack_size, METH_NOARGS,
           "get_stack_size($module, /)\n--\n\nThe stack size of fibers, in bytes."),
    method("set_stack_size", &set_stack_size, METH_O,
           "set_stack_size($module, bytes, /)\n--\n\n"
           "Set the stack size of fibers to come; clamped to 16 KiB .. 8 MiB."),
    method("get_max_fibers", &get_max_fibers, METH_NOARGS,
           "get_max_fibers($module, /)\n--\n\nThe most fibers that may live at once; 0: any."),
    method("set_max_fibers", &set_max_fibers, METH_O,
           "set_max_fibers($module, n, /)\n--\n\n"
           "Set the most fibers that may live at once; past it a spawn raises RuntimeError."),
    method("live_fibers", &live_fibers, METH_NOARGS,
           "live_fibers($module, /)\n--\n\nCount the fibers that have not ended."),
    method("get_deadlock_mode", &get_deadlock_mode, METH_NOARGS,
           "get_deadlock_mode($module, /)\n--\n\n0 off, 1 warn, 2 raise."),
    method("set_deadlock_mode", &set_deadlock_mode, METH_O,
           "set_deadlock_mode($module, mode, /)\n--\n\n"
           "What run() does when all fibers are blocked: 0 nothing, 1 dump them to fd 2, 2 raise."
           "\n\nThe default is 1, or what RUNLOOM_DEADLOCK says. With 0 and 1 run() returns."),
    {},
};

}  // namespace

Config& config() {
  static Config instance = make_config();
  return instance;
}

bool environment_switch(const char* variable, bool fallback) noexcept {
  const char* const text = std::getenv(variable);
  if (!text || !*text) return fallback;
  return std::string_view(text) != "0" && std::string_view(text) != "off";
}

bool to_stack_size(PyObject* value, std::size_t& size) {
  size = 0;
  if (!is_given(value)) return true;
  Py_ssize_t bytes;
  if (!to_size(value, "stack_size", bytes)) return false;
  if (bytes > 0) size = static_cast<std::size_t>(std::max(bytes, kLeastStack));
  return true;
}

bool add_config_functions(PyObject* module) {
  return PyModule_AddFunctions(module, functions) == 0;
}

}  // namespace runloom::python
