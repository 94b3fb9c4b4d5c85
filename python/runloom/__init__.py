"""Networked I/O on fibers: code that reads like blocking code and runs like an event loop.

    import runloom

    def main():
        for i in range(3):
            runloom.fiber(work, i)

    runloom.run(1, main)

runloom.sync has sockets, channels and locks. The native module runloom_c has all of it in its
plainest form, and settings and introspection besides.
"""

from runloom_c import (
    Cancelled,
    Chan,
    G,
    Mutex,
    __version__,
    backend,
    blocking,
    current_g_hwm,
    fiber_n,
    fiber_noyield,
    netpoll_backend,
    prewarm,
    select,
    stats,
    wait_fd,
    warmup,
)
from runloom_c import dump_fibers as dump
from runloom_c import fiber as fiber_fast

from .cancel import CancelScope, shield, timeout
from .runtime import Goroutine, current, fiber, run, sleep, yield_, yield_now

__all__ = [
    "CancelScope",
    "Cancelled",
    "Chan",
    "G",
    "Goroutine",
    "Mutex",
    "__version__",
    "backend",
    "blocking",
    "current",
    "current_g_hwm",
    "dump",
    "fiber",
    "fiber_fast",
    "fiber_n",
    "fiber_noyield",
    "netpoll_backend",
    "prewarm",
    "run",
    "select",
    "shield",
    "sleep",
    "stats",
    "timeout",
    "wait_fd",
    "warmup",
    "yield_",
    "yield_now",
]
