// CancelScope: runloom.CancelScope. A scope of the core (sched/cancel.hpp) as a context manager.
//
// A with block may be left in the wrong order, on another fiber, or never: a generator holds it. So
// the scopes that a fiber is in are listed at its G, which keeps them alive; a scope is taken out
// of the fiber's chain by that fiber alone, at the latest when it ends.
#pragma once

#include <Python.h>

#include <system_error>

#include "core/g.hpp"
#include "runloom/sched/deadline.hpp"
#include "runloom/sched/error.hpp"

namespace runloom::python {

// True when a scope that the calling fiber is in, or the fiber itself, was cancelled or is past its
// deadline: what failed with Errc::timed_out may have failed because of that.
bool scope_has_ended() noexcept;

// Whether a call has failed with `error` because its own deadline has passed. Not so when a scope
// around it was sooner; but a call that never waits has nothing that a scope could end.
inline bool own_time_is_up(std::error_code error, Deadline own) noexcept {
  if (own == Deadline::now() && error == make_error_code(Errc::cancelled)) return true;
  return error == make_error_code(Errc::timed_out) && (own.passed() || !scope_has_ended());
}

// The fiber ends: it is in none of its scopes any more. On that fiber.
void leave_scopes(G& g) noexcept;
// The same in a forked child, where the fiber does not go on.
void forget_scopes(G& g) noexcept;

bool add_cancel_scope(PyObject* module);

}  // namespace runloom::python
