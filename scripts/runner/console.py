"""Runs commands: progress on the terminal, all that they print in a log, a limit in time."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
LOGS = BUILD / "logs"

HEARTBEAT_SECONDS = 60
TAIL_LINES = 60
ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class StageFailed(Exception):
    """A stage can't go on; the text says why, and what to do."""


def duration(seconds: float) -> str:
    return (
        f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds // 60)} min {int(seconds % 60):02} s"
    )


def say(text: str) -> None:
    print(text, flush=True)


class Progress:
    """One line a command.

    On a terminal its end shows the command's last line; elsewhere it shows once a minute that the
    command is alive.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.start = time.monotonic()
        self.live = sys.stdout.isatty()
        self.shown = 0.0
        self.last_beat = self.start
        print(f"    {title} ... ", end="", flush=True)

    def line(self, text: str) -> None:
        now = time.monotonic()
        if self.live and now - self.shown > 0.1:
            self.shown = now
            room = os.get_terminal_size().columns - len(self.title) - 10
            shown = ESCAPES.sub("", text).strip()[: max(room, 0)]
            print(f"\r\x1b[K    {self.title} ... {shown}", end="", flush=True)

    def beat(self) -> None:
        now = time.monotonic()
        if not self.live and now - self.last_beat > HEARTBEAT_SECONDS:
            self.last_beat = now
            print(f"({duration(now - self.start)}) ", end="", flush=True)

    def end(self, text: str = "") -> None:
        if self.live:
            print(f"\r\x1b[K    {self.title} ... ", end="")
        say(text + duration(time.monotonic() - self.start))


def run(
    title: str,
    command: Sequence[str | Path],
    *,
    log: str,
    limit: float,
    environment: Mapping[str, str] | None = None,
    directory: Path = ROOT,
    ok: Sequence[int] = (0,),
) -> int:
    """Runs a command and returns its exit status.

    Output goes to build/logs/<log>.log. A status that is not in `ok`, or more than `limit` seconds,
    raises StageFailed after the end of the log was shown.
    """
    LOGS.mkdir(parents=True, exist_ok=True)
    path = LOGS / f"{log}.log"
    progress = Progress(title)
    with path.open("w", encoding="utf-8", errors="replace") as file:
        file.write(f"$ {' '.join(map(str, command))}\n")
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=directory,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )

        def copy() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                file.write(line)
                progress.line(line)

        reader = threading.Thread(target=copy, daemon=True)
        reader.start()
        try:
            timed_out = not _wait(process, progress, limit)
        finally:
            # Also what the command left running, and also when we are interrupted.
            _end_group(process)
        reader.join(10)

    name = path.relative_to(ROOT)
    if timed_out:
        progress.end("ended after ")
        show_tail(path)
        raise StageFailed(f"`{title}` took more than {duration(limit)} and was ended; see {name}")
    status = process.returncode
    if status not in ok:
        progress.end("failed after ")
        show_tail(path)
        how = f"was killed by signal {-status}" if status < 0 else f"failed with status {status}"
        raise StageFailed(f"`{title}` {how}; the whole log is {name}")
    progress.end()
    return status


def _wait(process: subprocess.Popen[str], progress: Progress, limit: float) -> bool:
    end = time.monotonic() + limit
    while time.monotonic() < end:
        try:
            process.wait(timeout=1)
            return True
        except subprocess.TimeoutExpired:
            progress.beat()
    return False


def _end_group(process: subprocess.Popen[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            process.wait(timeout=3)
        except subprocess.TimeoutExpired:
            continue


def show_tail(path: Path) -> None:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for line in lines[-TAIL_LINES:]:
        say(f"    | {line}")
