// G: the Python handle of a fiber.
//
// The scheduler holds a reference while the fiber lives, so a fiber runs to its end whether or not
// the program kept its handle. Once it has ended a G keeps its result or exception, and nothing of
// its stack. All members are guarded by the GIL.
#pragma once

#include <Python.h>

#include <cstdint>

#include "core/home.hpp"
#include "runloom/sched/park.hpp"

namespace runloom::python {

struct Scope;

enum class GState : std::uint8_t { fresh, started, returned, raised, dropped };

struct G {
  PyObject_HEAD PyObject* weakrefs;
  PyObject* fn;         // what it calls with args and kwargs; until it has ended
  PyObject* args;       // tuple, or null: none
  PyObject* kwargs;     // dict, or null: none
  PyObject* outcome;    // once it has ended: its result, or the exception that it raised
  PyObject* interrupt;  // what its next parking call raises instead of Cancelled
  Scope* scopes;        // that it is in, the innermost one; keeps them
  Home* home;           // null: it has ended, or will never go on
  FiberLocal* local;    // while home is not null
  FiberHandle fiber;
  runloom::detail::WaitList joiners;
  std::uint64_t id;
  std::int64_t wakes_ns;  // while it sleeps, on the monotonic clock
  GState state;
  bool noyield;
  bool cancelled;   // by cancel(), not just interrupted
  bool retrieved;   // somebody has seen the exception: nobody needs to report it
  bool nested_run;  // parked in a run() of its own
  bool run_main;    // what a run(main) waits for

  bool done() const noexcept { return state > GState::started; }
  PyObject* object() noexcept { return reinterpret_cast<PyObject*>(this); }
};

extern PyTypeObject* g_type;

// A fresh G. Steals nothing; null with an exception set on failure.
G* new_g(PyObject* fn, PyObject* args, PyObject* kwargs);

// Ends the G's life as a fiber: notes the outcome (stolen), wakes who joins it. Runs Python code
// when it drops the function.
void finish_g(G& g, GState state, PyObject* outcome);

// Cancels the fiber. False when it has ended.
bool cancel_g(G& g) noexcept;
// Lets `exception` (stolen) be raised from the fiber's present parking call, or from its next.
void interrupt_g(G& g, PyObject* exception) noexcept;

// Joins: waits for the end. 0, or -1 with an exception set.
int join_g(G& g, Deadline deadline);
// The result, or null with the fiber's exception raised; marks it as seen.
PyObject* outcome_of(G& g);
// A list of (filename, lineno, name) of its Python frames, innermost first, at most `limit` of
// them (negative: all); empty when it has not begun or has ended.
PyObject* stack_of_g(G& g, int limit);

bool init_g(PyObject* module);

}  // namespace runloom::python
