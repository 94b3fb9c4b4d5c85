"""What the tests of fibers share."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from typing import Any

import pytest

import runloom_c

LIMIT = 10.0  # seconds after which something hangs


def not_under_asan(reason: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(bool(os.environ.get("RUNLOOM_SANITIZED")), reason=f"asan {reason}")


new_throws = not_under_asan("ends the process where operator new would throw")
faults_are_ours = not_under_asan("handles the signals of faults itself")
memory_is_returned = not_under_asan("keeps what is freed for a while")


def run(main: Callable[[], Any]) -> Any:
    """Runs main on a fiber until it and all that it started have ended; its result.

    A deadlock is an error here.
    """
    results: list[Any] = []
    runloom_c.set_deadlock_mode(2)
    runloom_c._run_main(lambda: results.append(main()))
    return results[0]


def run_all(*functions: Callable[[], Any]) -> list[Any]:
    """Runs each on a fiber of its own; their results in that order."""
    return run(lambda: [g.join() for g in [runloom_c.go(function) for function in functions]])


def until(condition: Callable[[], Any]) -> None:
    """Lets other fibers run until the condition holds."""
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        runloom_c.sched_yield()


def parked(*fibers: Any) -> None:
    """Lets others run until each of the fibers waits for something."""
    ids = {g.id for g in fibers}
    waiting = ("park", "chan-wait", "sleep", "io-wait")
    until(lambda: {f["id"] for f in runloom_c.fibers() if f["state"] in waiting} >= ids)


def script(
    code: str, *, environment: dict[str, str] | None = None, limit: float = 30.0
) -> subprocess.CompletedProcess[str]:
    """Runs a program in a Python of its own."""
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=limit,
        env={**os.environ, **(environment or {})},
        check=False,
    )


def output(code: str, **options: Any) -> str:
    """What a program prints that must end well and say nothing on stderr."""
    done = script(code, **options)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout
