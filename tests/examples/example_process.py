"""Runs the built C++ examples and talks to them with plain sockets."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).parents[2]
LIMIT = 10.0  # seconds after which something hangs


def binary(name: str) -> Path:
    build = Path(os.environ.get("RUNLOOM_BUILD_DIR", ROOT / "build" / "release"))
    path = build / "examples" / f"example_{name}"
    assert path.exists(), (
        f"{path} is not built; build it, or point RUNLOOM_BUILD_DIR at the build that has it"
    )
    return path


class Example:
    """An example that runs, from its first line of output to its clean end."""

    def __init__(
        self, name: str, *arguments: str, hubs: int = 1, under: Sequence[str] = ()
    ) -> None:
        environment = dict(os.environ)
        if under:
            # A sanitizer's leak check can't look at a process that is traced.
            options = environment.get("ASAN_OPTIONS", "")
            environment["ASAN_OPTIONS"] = f"{options}:detect_leaks=0"
        self.process = subprocess.Popen(
            [*under, binary(name), "--port", "0", "--hubs", str(hubs), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.stdout = ""
        self.stderr = ""
        try:
            self.port = self._read_port()
        except BaseException:
            self.process.kill()
            self.process.communicate()
            raise

    def _read_port(self) -> int:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], LIMIT)
        line = self.process.stdout.readline() if ready else ""
        match = re.fullmatch(r"listening on 127\.0\.0\.1:(\d+)\n", line)
        if match is None:
            self.process.kill()
            raise AssertionError(f"it said {line!r} and {self.process.communicate()[1]!r}")
        return int(match[1])

    def __enter__(self) -> Example:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.process.returncode is not None:
            return
        if error is not None:
            self.process.kill()
            output = self.process.communicate()
            print("the example wrote:", *output, sep="\n")
            return
        self.signal(signal.SIGTERM)
        self.wait()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> None:
        """Waits for the end, which must be clean."""
        try:
            self.stdout, self.stderr = self.process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.stdout, self.stderr = self.process.communicate()
            raise AssertionError(f"it did not end in {LIMIT} s: {self.stderr}") from None
        assert self.process.returncode == 0, (self.process.returncode, self.stderr)
        assert re.search(r"^accepted \d+", self.stdout), self.stdout
        # 5 s of them are the drain; what runs at exit under a sanitizer speaks here.
        assert "Sanitizer" not in self.stderr, self.stderr

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT)

    def resident(self) -> int:
        """Bytes of memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024

    def cpu_seconds(self) -> float:
        """Processor time used so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def files(self) -> int:
        """Open files, sockets and pipes; not the pollers and rings that hubs keep."""
        return sum(not link.startswith("anon_inode:") for link in open_files(self.process.pid))


def open_files(pid: int) -> list[str]:
    """What the descriptors of a process lead to."""
    links = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            links.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return links


def read_all(connection: socket.socket) -> bytes:
    pieces = []
    while piece := connection.recv(65536):
        pieces.append(piece)
    return b"".join(pieces)


def read_exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        assert piece, f"the end came after {data!r}"
        data += piece
    return data


def reset(connection: socket.socket) -> None:
    """Closes with a reset."""
    linger = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    connection.close()


def until(condition: object, what: str) -> None:
    """Polls until `condition()` holds."""
    assert callable(condition)
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen in {LIMIT} s"
        time.sleep(0.01)
