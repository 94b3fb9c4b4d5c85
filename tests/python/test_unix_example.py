"""examples/python/unix_chat.py, driven from outside."""

from __future__ import annotations

import os
import pwd
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from socket_support import LIMIT

PROGRAM = Path(__file__).parents[2] / "examples" / "python" / "unix_chat.py"
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


class Chat:
    """The program, and its output line by line."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, PROGRAM, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
            bufsize=0,
        )

    @property
    def name(self) -> str:
        return f"{pwd.getpwuid(os.geteuid()).pw_name}/{self.process.pid}"

    def line(self) -> str:
        assert self.process.stdout is not None
        text = b""
        while not text.endswith(b"\n"):
            ready, _, _ = select.select([self.process.stdout], [], [], LIMIT)
            assert ready, f"it says no more than {text!r}"
            byte = self.process.stdout.read(1)
            if not byte:
                break
            text += byte
        return text.decode().rstrip("\n")

    def say(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode() + b"\n")

    def end(self) -> None:
        errors = self.process.communicate(timeout=LIMIT)[1]
        assert (self.process.returncode, errors) == (0, b"")

    def __enter__(self) -> Chat:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@pytest.fixture
def path() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="rl-", dir="/tmp") as folder:
        yield f"{folder}/chat"


def test_chat_tells_the_others_who_said_what(path: str) -> None:
    with Chat("serve", path) as server:
        assert server.line() == f"listening on {path}"
        assert os.stat(path).st_mode & 0o777 == 0o600
        with Chat("join", path) as ann:
            assert ann.line() == f"* {ann.name} has joined"
            with Chat("join", path) as bob:
                assert ann.line() == bob.line() == f"* {bob.name} has joined"
                ann.say("hello")
                assert bob.line() == f"{ann.name}: hello"
                bob.say("hi")
                bob.say("there")
                assert [ann.line(), ann.line()] == [f"{bob.name}: hi", f"{bob.name}: there"]
                bob.end()  # the end of what it says
            assert ann.line() == f"* {bob.name} has left"
            with socket.socket(socket.AF_UNIX) as plain:
                plain.connect(path)
                assert ann.line().endswith(f"/{os.getpid()} has joined")
                plain.sendall(b"too long" * 1000)
                while not (said := ann.line()).endswith(" has left"):
                    assert "too long" in said
            ann.end()
        server.process.send_signal(signal.SIGTERM)
        assert server.line() == "stopped"
        server.end()
    assert not os.path.exists(path)


def test_a_successor_takes_the_name_only_of_the_dead(path: str) -> None:
    with Chat("serve", path) as server:
        server.line()
        with Chat("serve", path) as second:
            errors = second.process.communicate(timeout=LIMIT)[1]
            assert second.process.returncode == 1 and b"Address already in use" in errors
        server.process.kill()
        server.process.wait()
        with Chat("serve", path) as third:
            assert third.line() == f"listening on {path}"
