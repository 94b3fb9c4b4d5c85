"""Fibers without async and await: sockets, channels, and the primitives of asyncio.

Lock, Event, Condition and Semaphore may be used by fibers, by OS threads, and between both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import runloom_c
from runloom_c import (
    Chan,
    Condition,
    Event,
    G,
    Lock,
    Mutex,
    RLock,
    Semaphore,
    park,
    park_self,
    select,
    sleep,
    unpark_many,
)
from runloom_c import _sync_fiber as fiber
from runloom_c import current_g as current
from runloom_c import sched_yield as yield_now

from .socket import Socket, tcp_connect, tcp_listen

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "Chan",
    "Condition",
    "Event",
    "Lock",
    "Mutex",
    "RLock",
    "Semaphore",
    "Socket",
    "current",
    "fiber",
    "park",
    "park_self",
    "run",
    "select",
    "sleep",
    "tcp_connect",
    "tcp_listen",
    "unpark_many",
    "wake",
    "yield_now",
]


def run(main_fn: Callable[[], object] | None = None) -> int:
    """As runloom.run(1, main_fn)."""
    return runloom_c.run() if main_fn is None else runloom_c._run_main(main_fn)


def wake(g: G[Any] | None) -> None:
    """Wake a fiber by its handle."""
    if g is not None:
        g.wake()
