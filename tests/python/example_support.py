"""What the tests of the examples share: programs that run as their users run them."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from socket_support import LIMIT
from tls_support import world, write

EXAMPLES = Path(__file__).parents[2] / "examples" / "python"
MEGABYTE = 1 << 20


def command(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-X", "faulthandler", str(EXAMPLES / f"{name}.py"), *arguments]


def environment() -> dict[str, str]:
    """Of a process that finds what this one imports."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


class Example:
    """A server that runs, from its first line of output to its clean end."""

    def __init__(self, name: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            command(name, "--port", "0", *arguments),
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        atexit.register(self.process.kill)  # also of a test that failed
        self.stderr = ""
        assert self.process.stdout is not None
        killer = threading.Timer(LIMIT, self.process.kill)
        killer.start()
        line = self.process.stdout.readline()
        killer.cancel()
        match = re.fullmatch(r"listening on 127\.0\.0\.1:(\d+)\n", line)
        if match is None:
            self.process.kill()
            raise AssertionError(f"it said {line!r} and {self.process.communicate()[1]}")
        self.address = ("127.0.0.1", int(match[1]))

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=LIMIT)

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def end(self, number: signal.Signals) -> None:
        """Asks it to end, which it must do cleanly."""
        self.process.send_signal(number)
        try:
            stdout, self.stderr = self.process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)
            raise AssertionError(f"it did not end: {self.process.communicate()[1]}") from None
        assert (self.process.returncode, stdout) == (0, "stopped\n"), self.stderr
        assert "Traceback" not in self.stderr, self.stderr


@contextmanager
def running(name: str, *arguments: str) -> Iterator[Example]:
    example = Example(name, *arguments)
    try:
        yield example
    except BaseException:
        example.process.kill()
        print("it wrote:", *example.process.communicate())
        raise
    example.end(signal.SIGTERM)


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(0.005)


def tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def output_of(arguments: list[str], data: bytes = b"") -> str:
    done = subprocess.run(arguments, input=data, capture_output=True, timeout=LIMIT, check=True)
    return done.stdout.decode()


@contextmanager
def upstream(handler: Callable[[socket.socket], None]) -> Iterator[str]:
    """A plain server; what its handlers raise is raised at the end."""
    errors: list[BaseException] = []

    def serve_one(connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(LIMIT)
                handler(connection)
        except BaseException as error:
            errors.append(error)

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=serve_one, args=(connection,)))
            threads[-1].start()

    threads: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        acceptor = threading.Thread(target=serve)
        acceptor.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        acceptor.join()
    for thread in threads:
        thread.join(LIMIT)
    if errors:
        raise errors[0]


class Authority:
    """Certificates as files: of our authority, and of a server and a client that it knows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = str(folder / "ca.pem")
        Path(self.ca).write_text(world().ca_pem)
        self.server = write(world().server, folder / "server.pem")
        self.client = write(world().client, folder / "client.pem")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    (tmp_path / "certificates").mkdir()
    return Authority(tmp_path / "certificates")
