// Starting Python fibers.
#pragma once

#include <Python.h>

#include <cstddef>

#include "core/g.hpp"
#include "runloom/sched/hooks.hpp"

namespace runloom::python {

struct SpawnRequest {
  PyObject* fn;                // called as fn(*args, **kwargs)
  PyObject* args = nullptr;    // tuple; null: none
  PyObject* kwargs = nullptr;  // dict; null: none
  std::size_t stack_size = 0;  // 0: the default
  bool noyield = false;
};

// Starts a fiber on `home`, the calling thread's. A new reference, or null with an exception set.
G* spawn(Home& home, const SpawnRequest& request);

// Makes Python fibers of those that C++ code starts with SpawnOptions::guest. Their G has no
// function; it returns None.
extern const GuestHooks guest_hooks;

// Takes the stacks of `count` fibers and gives them back, touched, for those to come. Returns how
// many there were; fewer when the kernel refuses one.
std::size_t warm_stacks(Home& home, std::size_t count, std::size_t stack_size);

// go, fiber, fiber_fast, fiber_noyield, fiber_n, warmup, prewarm.
bool add_spawn_functions(PyObject* module);

}  // namespace runloom::python
