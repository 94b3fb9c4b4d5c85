"""Contexts in the manner of Go: a deadline, a cancellation and values that travel with a request.

    ctx, cancel = context.WithTimeout(context.Background(), 2.0)
    try:
        index, _ = sync.select([("recv", results), ("recv", ctx.done)])
    finally:
        cancel()

A context ends nothing by itself: whoever does the work looks at it. runloom.timeout() and
runloom.CancelScope end the calls that wait in a block.
"""

from __future__ import annotations

import time as _time
from typing import TYPE_CHECKING, Any, Final

from runloom_c import Chan, Mutex

from ._unique import Unique
from .time import AfterFunc

if TYPE_CHECKING:
    from collections.abc import Callable

    from .time import Timer

__all__ = [
    "CANCELED",
    "DEADLINE_EXCEEDED",
    "TODO",
    "Background",
    "Context",
    "WithCancel",
    "WithDeadline",
    "WithTimeout",
    "WithValue",
]

CANCELED: Final = "context canceled"
DEADLINE_EXCEEDED: Final = "context deadline exceeded"


class Context(Unique):
    """What Background() and the With functions give.

    `done` is a channel that is closed when the context ends; err() says why.
    """

    __slots__ = (
        "__weakref__",
        "_children",
        "_deadline",
        "_done",
        "_error",
        "_lock",
        "_parent",
        "_timer",
        "_values",
    )

    def __init__(self, parent: Context | None = None) -> None:
        self._parent = parent
        self._done: Chan[None] = Chan(0)
        self._error: str | None = None
        self._deadline: float | None = None if parent is None else parent._deadline
        self._values: dict[Any, Any] = {}
        self._children: set[Context] = set()
        self._timer: Timer | None = None
        self._lock = Mutex()
        if parent is not None:
            parent._adopt(self)

    def __repr__(self) -> str:
        return f"<runloom.context.Context: {self._error or 'active'}>"

    @property
    def done(self) -> Chan[None]:
        """A channel that is closed when the context ends."""
        return self._done

    def err(self) -> str | None:
        """None, or why it has ended: CANCELED or DEADLINE_EXCEEDED."""
        return self._error

    def deadline(self) -> float | None:
        """When it ends by itself, on the clock of time.time(); None: never."""
        return self._deadline

    def value(self, key: Any) -> Any:
        """What WithValue() has put under the key, here or above; None: nothing."""
        ctx: Context | None = self
        while ctx is not None:
            if key in ctx._values:
                return ctx._values[key]
            ctx = ctx._parent
        return None

    def _adopt(self, child: Context) -> None:
        with self._lock:
            if self._error is None:
                # A context that never ends needs no list of those that may.
                if self._parent is not None:
                    self._children.add(child)
                return
        child._end(self._error)

    def _end(self, error: str) -> None:
        with self._lock:
            if self._error is not None:
                return
            self._error = error
            children, self._children = self._children, set()
            timer, self._timer = self._timer, None
            self._done.close()
        if timer is not None:
            timer.Stop()
        for child in children:
            child._end(error)
        if self._parent is not None:
            self._parent._children.discard(self)


_BACKGROUND: Final = Context()


def Background() -> Context:
    """The context that never ends, above all others."""
    return _BACKGROUND


def TODO() -> Context:
    """As Background(), where it is not clear yet which context is meant."""
    return _BACKGROUND


def WithCancel(parent: Context) -> tuple[Context, Callable[[], None]]:
    """A context that ends with its parent, or when the function beside it is called."""
    ctx = Context(_context(parent))
    return ctx, lambda: ctx._end(CANCELED)


def WithDeadline(parent: Context, when: float) -> tuple[Context, Callable[[], None]]:
    """As WithCancel; ends at a moment of time.time(), too.

    Call the function when the work is done: it ends the timer.
    """
    return _with_time(parent, when, when - _time.time())


def WithTimeout(parent: Context, seconds: float) -> tuple[Context, Callable[[], None]]:
    """As WithDeadline, so many seconds from now."""
    return _with_time(parent, _time.time() + seconds, seconds)


def _with_time(parent: Context, when: float, seconds: float) -> tuple[Context, Callable[[], None]]:
    ctx = Context(_context(parent))
    sooner = ctx._deadline is None or when < ctx._deadline
    if sooner:
        ctx._deadline = when
    if seconds <= 0:
        ctx._end(DEADLINE_EXCEEDED)
    elif sooner and ctx._error is None:
        ctx._timer = AfterFunc(seconds, lambda: ctx._end(DEADLINE_EXCEEDED))
    return ctx, lambda: ctx._end(CANCELED)


def WithValue(parent: Context, key: Any, value: Any) -> Context:
    """A context that knows a value, for value()."""
    ctx = Context(_context(parent))
    ctx._values[key] = value
    return ctx


def _context(parent: Context) -> Context:
    if not isinstance(parent, Context):
        raise TypeError(f"parent must be a Context, not {parent!r}")
    return parent
