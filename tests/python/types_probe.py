"""Uses each type as nobody should: python types_probe.py. It must say "done" and nothing else.

First objects whose __init__ never ran, then ones that are whole: every attribute is read, changed
and deleted, every method called without arguments and with wrong ones, on a fiber that is
cancelled when it waits. What is raised must say what is wrong.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from types_support import MAKERS, all_types, type_name

import runloom_c


class Raises:
    """Fails at whatever it is asked."""

    def fail(self, *_: object, **__: object) -> Any:
        raise ZeroDivisionError("asked")

    __index__ = __bool__ = __len__ = __iter__ = __call__ = __float__ = fileno = fail
    __eq__ = __hash__ = __enter__ = __exit__ = __getitem__ = fail  # type: ignore[assignment]


WRONG: tuple[Callable[[], Any], ...] = (
    object, Raises, lambda: None, lambda: -1, lambda: 1.5, lambda: "a\0b", lambda: [object()],
)  # fmt: skip
# What replaces the type itself, or says nothing of it.
LEFT_OUT = {"__class__", "__init_subclass__", "__subclasshook__", "__subclasses__", "mro"}
# These answer with a number, with nothing, or with what the caller gave; they may say little.
TERSE = (AssertionError, KeyError, StopIteration, ZeroDivisionError, runloom_c.Cancelled)
faults = 0


def fault(where: str, text: str) -> None:
    global faults
    faults += 1
    print(f"FAULT {where}: {text}", flush=True)


def check(where: str, error: BaseException) -> None:
    if isinstance(error, SystemError):
        fault(where, f"a call broke CPython's rules: {error!r}")
    elif not isinstance(error, TERSE) and not str(error):
        fault(where, f"{type(error).__name__} says nothing")


def call(where: str, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Its result, or what it raised, on a fiber of its own."""
    fiber = runloom_c.go(lambda: function(*arguments, **keywords))
    for _ in range(3):
        if not fiber.done:
            runloom_c.sched_yield()
    while not fiber.done:
        fiber.cancel()
        runloom_c.sched_yield()
    if fiber.error is not None:
        check(where, fiber.error)
        return fiber.error
    return fiber.result


def argument_lists() -> Iterator[tuple[Any, ...]]:
    yield ()
    for make in WRONG:
        yield (make(),)
        yield make(), make()
    yield tuple(make() for make in WRONG)
    yield tuple(object() for _ in range(30))


def exercise(where: str, make: Callable[[], Any]) -> None:
    """All attributes of what `make` gives, a new one for each."""
    subject = make()
    cls = type(subject)
    names = sorted(set(dir(subject)) | set(dir(cls)))
    for name in names:
        if name in LEFT_OUT:
            continue
        at = f"{where}.{name}"
        os.write(2, f"{at}\n".encode())  # what a crash is found by
        subject = make()
        found = call(at, getattr, subject, name)
        if callable(found) and not isinstance(found, BaseException | type):
            for arguments in argument_lists():
                call(at, found, *arguments)
            call(at, found, bogus=1)
        owner = getattr(cls, name, None)
        if callable(owner):
            for wrong in WRONG:
                call(f"{at} of another", owner, wrong())
        if name.startswith("__") or not name.startswith("_"):
            for value in (object(), None, -1):
                call(f"{at} set", setattr, subject, name, value)
            call(f"{at} deleted", delattr, subject, name)
            call(f"{at} read again", getattr, subject, name)
        call(f"repr after {at}", repr, subject)


def half_made(cls: type) -> None:
    where = f"{type_name(cls)} without __init__"
    made = call(where, lambda: cls.__new__(cls))
    if isinstance(made, TypeError):
        if cls.__name__ not in str(made):
            fault(where, f"no name in {made}")
        return
    if not isinstance(made, cls):
        fault(where, repr(made))
        return
    exercise(where, lambda: cls.__new__(cls))
    for arguments in argument_lists():
        call(f"{where}: __new__", cls.__new__, cls, *arguments)
    for wrong in WRONG:
        call(f"{where}: __new__ of another", cls.__new__, wrong())
    call(f"{where}: __new__ of another", cls.__new__, int)


def initialised_twice(cls: type, make: Callable[[], Any]) -> None:
    where = f"{type_name(cls)} again"
    for arguments in argument_lists():
        subject = make()
        call(where, subject.__init__, *arguments)
        call(where, subject.__init__, *arguments)
        call(f"{where}: repr", repr, subject)
        call(where, cls, *arguments)


def main() -> None:
    for cls in all_types():
        make = MAKERS[cls]
        half_made(cls)
        exercise(type_name(cls), make)
        initialised_twice(cls, make)
    print("done" if not faults else f"{faults} faults", flush=True)
    os._exit(0)  # alarms that were set are not waited for


def unraisable(what: Any) -> None:
    # An alarm's fiber, or a Raises that is compared, may fail in a place of its own.
    if isinstance(what.exc_value, SystemError | AttributeError):
        fault("unraisable", f"{what.exc_value!r} in {what.object!r}")


faulthandler.enable()
faulthandler.dump_traceback_later(100, exit=True)
warnings.simplefilter("ignore")
sys.unraisablehook = unraisable
runloom_c.set_deadlock_mode(0)
for each in MAKERS.values():
    each()  # whatever an import does is done
runloom_c._run_main(main)
