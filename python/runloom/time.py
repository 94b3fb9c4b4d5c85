"""Timers and tickers in the manner of Go: what happens later is a value in a channel.

    after = runloom.time.After(1.0)
    index, _ = sync.select([("recv", messages), ("recv", after)])

A timer that nobody can receive from any more ends by itself.
"""

from __future__ import annotations

import time as _time
import weakref
from typing import TYPE_CHECKING

from runloom._unique import Unique
from runloom_c import Chan, go, sched_sleep
from runloom_c import sleep as Sleep

if TYPE_CHECKING:
    from collections.abc import Callable

    from runloom_c import G

__all__ = ["After", "AfterFunc", "NewTicker", "NewTimer", "Sleep", "Tick", "Ticker", "Timer"]

_Channel = Chan[float]


def _sleep_until(moment: float) -> None:
    left = moment - _time.monotonic()
    if left > 0:
        sched_sleep(left)


def _offer(channel: weakref.ref[_Channel]) -> bool:
    """Puts the time in where there is room; False when the channel is gone."""
    alive = channel()
    if alive is None or alive.closed:
        return False
    alive.try_send(_time.time())
    return True


def _fire_once(channel: weakref.ref[_Channel], moment: float) -> Callable[[], None]:
    def fire() -> None:
        _sleep_until(moment)
        _offer(channel)

    return fire


class _Alarm(Unique):
    """A fiber that fills a channel, for as long as somebody has the channel."""

    __slots__ = ("C", "__weakref__", "_fiber", "_fired")

    C: _Channel
    _fiber: G[None] | None

    def __init__(self) -> None:
        self.C = Chan(1)
        self._fiber = None

    @property
    def c(self) -> _Channel:
        """As C."""
        return self.C

    def _start(self, make: Callable[[weakref.ref[_Channel]], Callable[[], None]]) -> None:
        holder: list[G[None]] = []
        # Nobody can receive any more: the fiber need not wait, nor keep run() waiting.
        channel = weakref.ref(self.C, lambda _: [each.cancel() for each in holder])
        fiber = go(make(channel))
        holder.append(fiber)
        self._fiber = fiber

    def _end(self) -> bool:
        """True when it has ended something."""
        fiber, self._fiber = self._fiber, None
        return fiber is not None and not fiber.done and fiber.cancel()


class Timer(_Alarm):
    """One event: the time, in the channel C, after so many seconds. NewTimer() makes it."""

    __slots__ = ()

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.Reset(seconds)

    def Stop(self) -> bool:
        """End it; True when it had not fired yet. What is in the channel stays there."""
        return self._end()

    def Reset(self, seconds: float) -> bool:
        """Let it fire after so many seconds from now; True when it had not fired yet."""
        moment = _time.monotonic() + seconds
        active = self._end()
        self._begin(moment)
        return active

    def _begin(self, moment: float) -> None:
        self._start(lambda channel: _fire_once(channel, moment))


class Ticker(_Alarm):
    """Many events: the time, in the channel C, every so many seconds. NewTicker() makes it.

    The ticks don't drift. One for which there is no room in the channel is dropped.
    """

    __slots__ = ()

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.Reset(seconds)

    def Stop(self) -> None:
        """End it. The channel is not closed."""
        self._end()

    def Reset(self, seconds: float) -> None:
        """Let it tick every so many seconds from now on."""
        if not seconds > 0:
            raise ValueError(f"a ticker needs a positive interval, not {seconds!r}")
        begin = _time.monotonic()
        self._end()

        def make(channel: weakref.ref[_Channel]) -> Callable[[], None]:
            def tick() -> None:
                count = 1
                while True:
                    _sleep_until(begin + count * seconds)
                    if not _offer(channel):
                        return
                    # What is late is left out, not made up for.
                    late = int((_time.monotonic() - begin) / seconds)
                    count = max(count, late) + 1

            return tick

        self._start(make)


def NewTimer(seconds: float) -> Timer:
    """A timer that fires after so many seconds."""
    return Timer(seconds)


def NewTicker(seconds: float) -> Ticker:
    """A ticker; the interval must be positive (ValueError)."""
    return Ticker(seconds)


def After(seconds: float) -> _Channel:
    """A channel that receives the current time (time.time()) after so many seconds, once."""
    return Timer(seconds).C


class _Call(Timer):
    """A timer that calls a function; nothing comes through its channel."""

    __slots__ = ("_fn",)

    def __init__(self, seconds: float, fn: Callable[[], object]) -> None:
        self._fn = fn
        super().__init__(seconds)

    def _begin(self, moment: float) -> None:
        fn = self._fn

        def call() -> None:
            _sleep_until(moment)
            go(fn)

        self._fiber = go(call)


def AfterFunc(seconds: float, fn: Callable[[], object]) -> Timer:
    """Call a function on a fiber of its own after so many seconds; Stop() takes it back."""
    if not callable(fn):
        raise TypeError(f"fn must be callable, not {fn!r}")
    return _Call(seconds, fn)


def Tick(seconds: float) -> _Channel:
    """A ticker's channel, for as long as somebody has it."""
    return Ticker(seconds).C
