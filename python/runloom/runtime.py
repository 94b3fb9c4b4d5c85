"""The everyday calls of the package, under their friendly names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import runloom_c
from runloom_c import G, sleep
from runloom_c import _friendly_fiber as fiber
from runloom_c import current_g as current
from runloom_c import sched_yield as yield_now

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Goroutine", "current", "fiber", "run", "sleep", "yield_", "yield_now"]

Goroutine = G
yield_ = yield_now


def run(n: int, main_fn: Callable[[], object] | None = None) -> int:
    """Run fibers on n threads until all have ended; return how many did.

    With main_fn it is run on a fiber first, and what it raises is raised here, after the other
    fibers were cancelled and have unwound. Inside a fiber it runs until all others have ended, but
    for those that are inside such a run themselves.

    When all that are left wait for each other it writes them to stderr and returns, or does what
    RUNLOOM_DEADLOCK or runloom_c.set_deadlock_mode() says.

    Fibers on more than one thread need a Python without the GIL.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        hint = "; run(1, main_fn), or runloom.sync.run(main_fn)" if callable(n) else ""
        raise ValueError(f"run(n, main_fn): n must be an int >= 1, not {n!r}{hint}")
    if main_fn is not None and not callable(main_fn):
        raise TypeError(f"run(n, main_fn): main_fn must be callable, not {main_fn!r}")
    if n > 1:
        raise RuntimeError(
            f"run({n}): fibers run in parallel only on a free-threaded CPython (3.13t or later), "
            "and this one has a GIL"
        )
    return runloom_c.run() if main_fn is None else runloom_c._run_main(main_fn)
