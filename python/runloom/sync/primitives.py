"""What is built on locks and conditions: for fibers and OS threads alike."""

from __future__ import annotations

import time
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from runloom._unique import Unique
from runloom.cancel import shield
from runloom_c import Cancelled, Condition, Lock, _sync_fiber, current_g

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

__all__ = ["Group", "Once", "RWMutex", "WaitGroup", "Watch", "once_func", "once_value"]

_T = TypeVar("_T")
_Function = TypeVar("_Function", bound="Callable[..., object]")


def named_as(fn: Callable[..., object], inner: _Function) -> _Function:
    """Lets a fiber that runs fn by way of a function of ours have the name of fn, in dumps and in
    advice on stacks."""
    for name in ("__module__", "__name__", "__qualname__"):
        value = getattr(fn, name, None)
        if isinstance(value, str):
            setattr(inner, name, value)
    return inner


class WaitGroup(Unique):
    """Counts what is under way: add() before it begins, done() when it ends, wait() for all.

    go() does the first two for a fiber.
    """

    __slots__ = ("__weakref__", "_changed", "_count")

    def __init__(self, count: int = 0) -> None:
        self._changed = Condition()
        self._count = 0
        if count:
            self.add(count)

    def add(self, delta: int = 1) -> None:
        """Change the count, which never gets below zero (ValueError)."""
        if not isinstance(delta, int):
            raise TypeError(f"delta must be an int, not {delta!r}")
        with self._changed:
            if self._count + delta < 0:
                raise ValueError("the count of a WaitGroup would get below zero")
            self._count += delta
            if self._count == 0:
                self._changed.notify_all()

    def done(self) -> None:
        """As add(-1)."""
        self.add(-1)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the count is zero; False when the time was up first."""
        with self._changed:
            return bool(self._changed.wait_for(lambda: self._count == 0, timeout))

    def go(self, fn: Callable[..., object], /, *args: Any, **kwargs: Any) -> None:
        """Start a fiber that is counted until it has ended."""

        def counted() -> None:
            try:
                fn(*args, **kwargs)
            finally:
                self.done()

        self.add(1)
        try:
            _sync_fiber(named_as(fn, counted))
        except BaseException:
            self.done()
            raise

    @property
    def count(self) -> int:
        """The count."""
        return self._count


class RWMutex(Unique):
    """A lock that many may hold for reading, or one for writing. Who waits to write comes first.

    with lock.reader(): ...
    with lock.writer(): ...
    """

    __slots__ = ("__weakref__", "_changed", "_readers", "_writer", "_writers_waiting")

    def __init__(self) -> None:
        self._changed = Condition(Lock())
        self._readers = 0
        self._writer = False
        self._writers_waiting = 0

    def rlock(self, timeout: float | None = None) -> bool:
        """Take it for reading; False when the time was up first."""
        with self._changed:
            if not self._changed.wait_for(
                lambda: not self._writer and not self._writers_waiting, timeout
            ):
                return False
            self._readers += 1
            return True

    def try_rlock(self) -> bool:
        """Take it for reading if that needs no waiting."""
        with self._changed:
            if self._writer or self._writers_waiting:
                return False
            self._readers += 1
            return True

    def runlock(self) -> None:
        """Give it back after rlock()."""
        with self._changed:
            if self._readers == 0:
                raise RuntimeError("runlock() of an RWMutex that nobody reads")
            self._readers -= 1
            if self._readers == 0:
                self._changed.notify_all()

    def lock(self, timeout: float | None = None) -> bool:
        """Take it for writing; False when the time was up first."""
        with self._changed:
            self._writers_waiting += 1
            try:
                if not self._changed.wait_for(
                    lambda: not self._writer and self._readers == 0, timeout
                ):
                    return False
                self._writer = True
                return True
            finally:
                self._writers_waiting -= 1
                if not self._writer and not self._writers_waiting:
                    self._changed.notify_all()  # readers waited for a writer who gave up

    def try_lock(self) -> bool:
        """Take it for writing if that needs no waiting."""
        with self._changed:
            if self._writer or self._readers:
                return False
            self._writer = True
            return True

    def unlock(self) -> None:
        """Give it back after lock()."""
        with self._changed:
            if not self._writer:
                raise RuntimeError("unlock() of an RWMutex that nobody writes")
            self._writer = False
            self._changed.notify_all()

    @contextmanager
    def reader(self) -> Iterator[None]:
        """A block that holds it for reading."""
        self.rlock()
        try:
            yield
        finally:
            self.runlock()

    @contextmanager
    def writer(self) -> Iterator[None]:
        """A block that holds it for writing."""
        self.lock()
        try:
            yield
        finally:
            self.unlock()


class Once(Unique):
    """Does something once, however many ask at the same time; all wait for its end."""

    __slots__ = ("__weakref__", "_done", "_lock")

    def __init__(self) -> None:
        self._lock = Lock()
        self._done = False

    def do(self, fn: Callable[[], object]) -> None:
        """Call the function, unless one was called here before: also one that raised."""
        if self._done:
            return
        with self._lock:
            if self._done:
                return  # type: ignore[unreachable] # while we waited
            try:
                fn()
            finally:
                self._done = True

    @property
    def done(self) -> bool:
        """Whether something was done."""
        return self._done


def once_value(fn: Callable[[], _T]) -> Callable[[], _T]:
    """A function that calls fn the first time, and has its result, or its exception, every time."""
    once = Once()
    outcome: list[Any] = [None, None]

    def call() -> None:
        try:
            outcome[0] = fn()
        except BaseException as error:
            outcome[1] = error

    def value() -> _T:
        once.do(call)
        if outcome[1] is not None:
            raise outcome[1]
        return outcome[0]  # type: ignore[no-any-return]

    return value


def once_func(fn: Callable[[], object]) -> Callable[[], None]:
    """A function that calls fn the first time; what that raised is raised every time."""
    value = once_value(fn)

    def call() -> None:
        value()

    return call


class _Flight(Unique):
    """A call that is under way."""

    __slots__ = ("changed", "error", "landed", "shared", "value")

    def __init__(self) -> None:
        self.changed = Condition()
        self.landed = False
        self.shared = False
        self.value: Any = None
        self.error: BaseException | None = None


class Group(Unique):
    """Calls under a key, one at a time: those who ask meanwhile share its result."""

    __slots__ = ("__weakref__", "_flights", "_lock")

    def __init__(self) -> None:
        self._lock = Lock()
        self._flights: dict[Hashable, _Flight] = {}

    def do(self, key: Hashable, fn: Callable[[], _T]) -> tuple[_T, bool]:
        """(what fn() returns, whether others have got it too). What it raises all of them raise.

        When the one who calls fn is cancelled, one of those who wait calls his own.
        """
        while True:
            with self._lock:
                flight = self._flights.get(key)
                own = flight is None
                if flight is None:
                    flight = self._flights[key] = _Flight()
                else:
                    flight.shared = True
            if own:
                return self._fly(key, flight, fn), flight.shared
            with flight.changed:
                flight.changed.wait_for(lambda flight=flight: flight.landed)  # type: ignore[misc]
            if isinstance(flight.error, Cancelled):
                continue
            if flight.error is not None:
                raise flight.error
            return flight.value, True

    def _fly(self, key: Hashable, flight: _Flight, fn: Callable[[], _T]) -> _T:
        try:
            value = flight.value = fn()
            return value
        except BaseException as error:
            flight.error = error
            raise
        finally:
            # Those who wait are told in any case.
            with shield() if current_g() is not None else nullcontext():
                self._land(key, flight)

    def _land(self, key: Hashable, flight: _Flight) -> None:
        with self._lock:
            if self._flights.get(key) is flight:
                del self._flights[key]
        with flight.changed:
            flight.landed = True
            flight.changed.notify_all()

    def forget(self, key: Hashable) -> None:
        """Let the next one who asks make a call of its own, also while one is under way."""
        with self._lock:
            self._flights.pop(key, None)


class Watch(Unique, Generic[_T]):
    """A value that changes, and those who wait for that; each change has a version."""

    __slots__ = ("__weakref__", "_changed", "_value", "_version")

    def __init__(self, value: _T) -> None:
        self._changed = Condition()
        self._value = value
        self._version = 0

    def set(self, value: _T) -> int:
        """Change the value; return its version."""
        with self._changed:
            self._value = value
            self._version += 1
            self._changed.notify_all()
            return self._version

    def get(self) -> tuple[_T, int]:
        """(value, version)."""
        with self._changed:
            return self._value, self._version

    def wait_changed(
        self, seen_version: int, timeout: float | None = None
    ) -> tuple[_T, int] | None:
        """(value, version) as soon as the version is another one than seen; None when the time was
        up first. Changes in between are passed over."""
        end = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            left = None if end is None else end - time.monotonic()
            if not self._changed.wait_for(lambda: self._version != seen_version, left):
                return None
            return self._value, self._version
