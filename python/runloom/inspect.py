"""What the fibers of a program do: lists, dumps, leaks, crashes and stacks.

import runloom.inspect as inspect

print(inspect.format(stacks=True))  # which fibers, and where they are stuck
inspect.install_dump_signal()       # kill -QUIT <pid> writes them to stderr
"""

from __future__ import annotations

import faulthandler
import os
import sys
from typing import IO, TYPE_CHECKING, Any

import runloom_c
from runloom_c import (
    crash_handler_installed,
    enable_stack_advice,
    enable_stack_autosize,
    get_max_fibers,
    go,
    live_fibers,
    sched_sleep,
    set_max_fibers,
    stack_advice,
    stack_autosize_enabled,
    uninstall_crash_handler,
)
from runloom_c import fiber_count as count
from runloom_c import fiber_stack as stack
from runloom_c import install_traceback_signal as install_dump_signal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from runloom_c import G

__all__ = [
    "count",
    "crash_handler_installed",
    "dump",
    "enable_stack_advice",
    "enable_stack_autosize",
    "enable_timestamps",
    "fibers",
    "format",
    "get_deadlock_mode",
    "get_max_fibers",
    "hubs",
    "install_crash_handler",
    "install_dump_signal",
    "leaked",
    "live_fibers",
    "print_hubs",
    "print_stack_advice",
    "set_deadlock_mode",
    "set_max_fibers",
    "stack",
    "stack_advice",
    "stack_autosize_enabled",
    "uninstall_crash_handler",
    "watch_leaks",
]

_MODES = ("off", "warn", "raise")
_Frames = list[tuple[str, int | None, str]]


def fibers(stacks: bool = False) -> list[dict[str, Any]]:
    """One dict for each fiber that lives, as runloom_c.fibers(). When they are asked for, with
    `stack`, its Python frames, and `native_stack`, the C++ frames in which it waits: both innermost
    first."""
    found = sorted(runloom_c.fibers(), key=lambda each: each["id"])
    if stacks:
        for each in found:
            each["stack"] = _frames(each["id"])
            each["native_stack"] = runloom_c._native_stack(each["id"])
    return found


def _frames(number: int) -> _Frames:
    try:
        return stack(number)[1]
    except LookupError:
        return []  # it has ended since


def format(stacks: bool = False) -> str:
    """All fibers as text: what each waits for and for how long; when they are asked for, with the
    C++ frames in which it waits and its Python frames, innermost first; and below them how many
    are in which state."""
    lines: list[str] = []
    states: dict[str, int] = {}
    for each in fibers(stacks):
        states[each["state"]] = states.get(each["state"], 0) + 1
        lines.append(_describe(each))
        lines += [f"    at {frame}" for frame in each.get("native_stack", ())]
        for filename, lineno, name in each.get("stack", ()):
            lines.append(f'    File "{filename}", line {lineno}, in {name}')
    summary = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
    lines.append(f"{sum(states.values())} fibers: {summary}" if states else "no fibers")
    return "\n".join(lines) + "\n"


def _describe(fiber: dict[str, Any]) -> str:
    text = f"fiber {fiber['id']} {fiber['name']!r}: {fiber['state']}"
    if fiber["blocked_on"] is not None and fiber["blocked_on"] != fiber["state"]:
        text += f" in {fiber['blocked_on']}"
    if "fd" in fiber:
        text += f" fd {fiber['fd']} ({fiber['events']})"
    if "wake_in" in fiber:
        text += f", wakes in {fiber['wake_in']:.3f} s"
    if fiber["age"] > 0:
        text += f", for {fiber['age']:.3f} s"
    return text


def dump(file: IO[str] | None = None, stacks: bool = False) -> None:
    """Write format() to a file, sys.stderr when none is given."""
    (sys.stderr if file is None else file).write(format(stacks))


def enable_timestamps(on: bool = True) -> None:
    """Ask for `age` in fibers(). It is always there, and costs nothing."""
    runloom_c.set_introspect_timestamps(on)


# ---------------------------------------------------------------- leaks


def leaked(
    min_age: float = 60.0, states: Iterable[str] | None = ("chan-wait", "park")
) -> list[dict[str, Any]]:
    """The fibers that have been in one of these states (None: any in which they wait) for so many
    seconds, the oldest first, with their frames: those that nobody will wake, perhaps."""
    chosen = None if states is None else {states} if isinstance(states, str) else set(states)
    found = [
        each
        for each in runloom_c.fibers()
        if each["age"] >= min_age
        and each["blocked_on"] is not None
        and (chosen is None or each["state"] in chosen)
    ]
    for each in found:
        each["stack"] = _frames(each["id"])
    return sorted(found, key=lambda each: -each["age"])


def watch_leaks(
    interval: float = 60.0,
    min_age: float = 60.0,
    states: Iterable[str] | None = ("chan-wait", "park"),
    callback: Callable[[list[dict[str, Any]]], object] | None = None,
) -> G[None]:
    """Start a fiber that looks for leaks now and then, and calls back with those that it has not
    told of before; without a callback it writes them to sys.stderr. cancel() ends it."""
    if not interval > 0:
        raise ValueError(f"interval must be positive, not {interval!r}")
    chosen = None if states is None else tuple(states)

    def watch() -> None:
        told: set[int] = set()
        while True:
            sched_sleep(interval)
            found = leaked(min_age, chosen)
            new = [each for each in found if each["id"] not in told]
            told = {each["id"] for each in found}
            if not new:
                continue
            if callback is not None:
                callback(new)
                continue
            for each in new:
                sys.stderr.write(f"runloom: leaked? {_describe(each)}\n")
                for filename, lineno, name in each["stack"]:
                    sys.stderr.write(f'    File "{filename}", line {lineno}, in {name}\n')

    return go(watch)


# ---------------------------------------------------------------- settings


def set_deadlock_mode(mode: str | int) -> None:
    """What run() does when all fibers wait for each other: "off", "warn" or "raise"."""
    if isinstance(mode, str):
        if mode not in _MODES:
            raise ValueError(f"the deadlock mode must be one of {', '.join(_MODES)}, not {mode!r}")
        mode = _MODES.index(mode)
    runloom_c.set_deadlock_mode(mode)


def get_deadlock_mode() -> str:
    """As it was set."""
    return _MODES[runloom_c.get_deadlock_mode()]


# ---------------------------------------------------------------- hubs


def hubs() -> list[dict[str, Any]]:
    """One dict for each hub of the M:N scheduler, none when that does not run; stack_cmd is a
    command that shows what the process does."""
    found = runloom_c.mn_hub_states()
    for each in found:
        each["stack_cmd"] = f"py-spy dump --pid {os.getpid()}"
    return found


def print_hubs(file: IO[str] | None = None) -> None:
    """Write hubs() as a table."""
    out = sys.stdout if file is None else file
    found = hubs()
    if not found:
        out.write("the M:N scheduler is not running\n")
        return
    out.write(f"{'hub':>4} {'state':<10} {'fiber':>8} {'ms':>8} {'pending':>8}\n")
    for each in found:
        out.write(
            f"{each['id']:>4} {each['state']:<10} {each['running_g'] or '-':>8} "
            f"{each['dwell_ms']:>8} {each['pending']:>8}\n"
        )


# ---------------------------------------------------------------- crashes and stacks


def install_crash_handler(
    level: str | None = None, file: str | os.PathLike[str] | None = None
) -> bool:
    """Say on a fatal signal (SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT) whether a fiber has
    overflowed its stack or a pointer was wild, and write all fibers, to stderr and to the file.

    The level is on; backtrace (the C frames, too); pystack (the Python frames, by faulthandler);
    all (both); wait (stop for a debugger); gdb (run it); or off. None: what RUNLOOM_CRASH says, or
    on. Then the signal takes its course. False when it is off.
    """
    if level is None:
        level = os.environ.get("RUNLOOM_CRASH") or "on"
    level = {"1": "on", "0": "off"}.get(level, level)
    if level == "off":
        uninstall_crash_handler()
        return False
    if level in ("all", "pystack") and not faulthandler.is_enabled():
        try:
            faulthandler.enable()
        except (OSError, ValueError, AttributeError):
            pass  # stderr is no file
    runloom_c._install_crash_handler(level, file)
    return True


def print_stack_advice(file: IO[str] | None = None) -> None:
    """Write stack_advice() as a table."""
    out = sys.stdout if file is None else file
    found = sorted(stack_advice(), key=lambda each: -each["max_hwm"])
    out.write(f"{'samples':>8} {'used':>9} {'reserved':>9} {'suggested':>9}  kind\n")
    for each in found:
        out.write(
            f"{each['samples']:>8} {each['max_hwm']:>9} {each['reserved']:>9} "
            f"{each['suggested']:>9}  {each['kind']}\n"
        )
