"""Child processes that are pinned, favoured, bounded in time and always reaped."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

from harness.model import BenchError

_PR_SET_PDEATHSIG = 1
_NICE = -20
_libc = ctypes.CDLL(None)

Argv = Sequence[str | os.PathLike[str]]


class ChildError(BenchError):
    """A child ended badly. `output` is all that it said, for a log."""

    def __init__(self, text: str, output: str):
        super().__init__(text)
        self.output = output


def name_of(argv: Argv) -> str:
    return Path(argv[0]).name


def start(
    argv: Argv,
    *,
    cpus: Sequence[int] = (),
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdout: int | IO[bytes] = subprocess.DEVNULL,
    stderr: int | IO[bytes] = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Starts a process in a session of its own that dies with this one. `cpus` pins it from its
    first instruction on, so that a runtime that counts cores counts these."""

    def in_child() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if cpus:
            os.sched_setaffinity(0, cpus)
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, 0, _NICE)

    try:
        child = subprocess.Popen(
            [os.fspath(word) for word in argv],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            start_new_session=True,
            preexec_fn=in_child,
        )
    except OSError as error:
        raise BenchError(f"{name_of(argv)} cannot be started: {error}") from error
    if cpus:
        _favour(child.pid)
    return child


def _favour(pid: int) -> None:
    """With sched_autogroup a nice value weighs only within the session; the session's own weight
    stands here. Needs root; without it the samples are merely noisier."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(_NICE))


def stop(child: subprocess.Popen[bytes]) -> None:
    """Kills a process that start() made, with whatever it started in its session, and reaps it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


@dataclass
class Finished:
    stdout: str
    cpu: float  # seconds of CPU time, of its children too


def run(
    argv: Argv,
    *,
    timeout: float,
    cpus: Sequence[int] = (),
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Finished:
    """Runs a process to its end. A non-zero exit, a signal or a timeout is a BenchError with the
    last words of its output."""
    before = _children_cpu()
    child = start(argv, cpus=cpus, env=env, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        out, err = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise BenchError(f"{name_of(argv)} did not end within {timeout:.0f} s") from None
    finally:
        stop(child)
        for pipe in (child.stdout, child.stderr):
            if pipe:
                pipe.close()
    stdout, stderr = out.decode(errors="replace"), err.decode(errors="replace")
    if child.returncode != 0:
        words = last_words(stderr or stdout)
        text = f"{name_of(argv)} {how_it_ended(child.returncode)}{words}"
        raise ChildError(text, stdout + stderr)
    return Finished(stdout, _children_cpu() - before)


def _children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def how_it_ended(returncode: int) -> str:
    if returncode < 0:
        return f"was killed by {signal.Signals(-returncode).name}"
    return f"ended with exit status {returncode}"


def last_words(output: str, lines: int = 3) -> str:
    tail = [line.strip() for line in output.splitlines() if line.strip()][-lines:]
    return ": " + " | ".join(tail)[-400:] if tail else ""


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process, from schedstat (ns, where getrusage counts ticks)."""
    total = 0
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                total += int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0])
    return total / 1e9


def exit_on_signals() -> None:
    """SIGTERM and SIGHUP unwind like Ctrl-C, so that every child is reaped on the way out."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
