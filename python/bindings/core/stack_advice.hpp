// How much stack the fibers of each kind really use, and spawns that take what was learned.
//
// A kind is what a fiber calls: a function's module and qualified name. While this is on, a fiber
// gives the pages of its stack back when it begins, so that those in memory at its end are its own.
#pragma once

#include <Python.h>

#include <cstddef>

#include "core/g.hpp"

namespace runloom::python {

// Whether begin_measuring() and end_measuring() have something to do.
extern bool stack_advice_on;

// On the fiber: at its beginning, and at its end.
void begin_measuring() noexcept;
void end_measuring(const G& g) noexcept;

// What a fiber that calls `fn` should get; 0: the default.
std::size_t learned_stack_size(PyObject* fn) noexcept;

// Bytes of stack that the running fiber has touched; 0 outside of fibers.
std::size_t stack_high_water() noexcept;
// The most that one has used, and how many were measured, since it is on.
std::size_t most_stack_used() noexcept;
std::uint64_t stacks_measured() noexcept;

// enable_stack_advice, stack_advice, enable_stack_autosize, stack_autosize_enabled, set_grow_down,
// grow_down_enabled; RUNLOOM_STACK_AUTOSIZE, RUNLOOM_GROW_DOWN.
bool add_stack_advice(PyObject* module);

}  // namespace runloom::python
