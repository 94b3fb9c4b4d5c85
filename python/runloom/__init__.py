"""Networked I/O on fibers: code that reads like blocking code and runs like an event loop.

    import runloom

    def main():
        for i in range(3):
            runloom.fiber(work, i)

    runloom.run(1, main)

runloom.sync has sockets, channels and locks. The native module runloom_c has all of it in its
plainest form, and settings and introspection besides.
"""

import os as _os
from typing import TYPE_CHECKING, Any

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
    grow_down_enabled,
    netpoll_backend,
    prewarm,
    select,
    set_grow_down,
    stats,
    wait_fd,
    warmup,
)
from runloom_c import dump_fibers as dump
from runloom_c import fiber as fiber_fast

from .cancel import CancelScope, shield, timeout
from .runtime import Goroutine, current, fiber, run, sleep, yield_, yield_now

if TYPE_CHECKING:
    from .compat import serve
    from .inspect import hubs

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
    "grow_down_enabled",
    "hubs",
    "netpoll_backend",
    "prewarm",
    "run",
    "select",
    "serve",
    "set_grow_down",
    "shield",
    "sleep",
    "stats",
    "timeout",
    "wait_fd",
    "warmup",
    "yield_",
    "yield_now",
]


def __getattr__(name: str) -> Any:
    # What few programs use is loaded with its first use.
    if name == "serve":
        from .compat import serve

        return serve
    if name == "hubs":
        from .inspect import hubs

        return hubs
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _watch_crashes() -> None:
    if _os.environ.get("RUNLOOM_CRASH", "off") not in ("", "0", "off"):
        from .inspect import install_crash_handler

        install_crash_handler()


_watch_crashes()
