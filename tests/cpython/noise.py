"""Fibers that do what disturbs others if a switch forgets something: generators, coroutines,
exceptions that are being handled, contexts, I/O."""

from __future__ import annotations

import contextvars
import decimal
import sys
from collections.abc import Callable, Generator, Iterator
from functools import partial

import runloom.sync
import runloom_c
from runloom_c import sched_yield

variable: contextvars.ContextVar[int] = contextvars.ContextVar("noise")


class Noise(Exception):
    pass


def generators(step: int) -> None:
    def numbers(n: int) -> Iterator[int]:
        for i in range(n):
            sched_yield()
            yield i

    def delegate(n: int) -> Generator[int, None, int]:
        yield from numbers(n)
        return n

    assert list(delegate(3)) == [0, 1, 2]
    left_open = delegate(5)
    assert next(left_open) == 0
    left_open.close()


def exceptions(step: int) -> None:
    try:
        raise Noise(step)
    except Noise as outer:
        sched_yield()
        try:
            raise KeyError(step)
        except KeyError as inner:
            sched_yield()
            assert inner.__context__ is outer
        assert sys.exc_info()[1] is outer
    assert sys.exc_info() == (None, None, None)


class Numbers:
    """No asynchronous generator: the hooks for those (sys.set_asyncgen_hooks) are the thread's, so
    a loop of the tests would get the noise's."""

    def __init__(self, n: int) -> None:
        self._left = n

    def __aiter__(self) -> Numbers:
        return self

    async def __anext__(self) -> int:
        sched_yield()
        if self._left == 0:
            raise StopAsyncIteration
        self._left -= 1
        return self._left


def coroutines(step: int) -> None:
    async def total() -> int:
        return sum([i async for i in Numbers(2)])

    try:
        total().send(None)
    except StopIteration as stop:
        assert stop.value == 1


def contexts(step: int) -> None:
    variable.set(step)
    with decimal.localcontext() as context:
        context.prec = 5 + step % 5
        sched_yield()
        assert decimal.getcontext().prec == 5 + step % 5
    assert variable.get() == step


def slots(step: int) -> None:
    def key(value: int) -> int:
        sched_yield()
        return -value

    assert sorted([1, 2], key=key) == [2, 1]


class Noises:
    """Starts them; each goes on until stop()."""

    def __init__(self) -> None:
        self._goes_on = True
        self.rounds = 0
        self._left, self._right = runloom.sync.socketpair()
        self._fibers = [
            *(
                runloom_c.go(partial(self._repeat, each))
                for each in (generators, exceptions, coroutines, contexts, slots)
            ),
            runloom_c.go(self._send),
            runloom_c.go(self._receive),
        ]

    def _repeat(self, step: Callable[[int], None]) -> None:
        while self._goes_on:
            step(self.rounds)
            self.rounds += 1
            sched_yield()

    def _send(self) -> None:
        while self._goes_on:
            self._left.sendall(b"noise")
            sched_yield()
        self._left.close()

    def _receive(self) -> None:
        while self._right.recv(5):
            pass
        self._right.close()

    def stop(self) -> None:
        """Ends them; raises what one of them has met."""
        self._goes_on = False
        for each in self._fibers:
            each.join()
