// Settings of the process: the defaults of every home scheduler, those that live and those to come.
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>

#include "runloom/sched/scheduler.hpp"

namespace runloom::python {

struct Config {
  Options options;  // of a home scheduler, without its hooks
  std::uint64_t max_fibers = 0;
  bool stack_size_set = false;  // set_stack_size() was called
};

// Holds the GIL.
Config& config();

// get/set_stack_size, get/set_max_fibers, get/set_deadlock_mode, live_fibers.
bool add_config_functions(PyObject* module);

// What a switch in the environment says: off by 0 and "off", on by anything else, `fallback` when
// it is not set.
bool environment_switch(const char* variable, bool fallback) noexcept;

// A stack size as a caller gives it: None, zero and negative numbers stand for the default, which
// is 0 here; what is too small is raised to the least.
bool to_stack_size(PyObject* value, std::size_t& size);

}  // namespace runloom::python
