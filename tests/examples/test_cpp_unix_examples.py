"""The C++ examples that use Unix sockets, driven from outside."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
from example_process import LIMIT, binary, open_files, until


class Program:
    """A program that runs, and its output line by line."""

    def __init__(self, name: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [binary(name), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], LIMIT)
        assert ready, "it says nothing"
        # Byte by byte, so that select() sees what has not been read.
        text = b""
        while not text.endswith(b"\n") and (byte := os.read(self.process.stdout.fileno(), 1)):
            text += byte
        return text.decode().rstrip("\n")

    def say(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")

    def end(self, signal_: signal.Signals | None = signal.SIGTERM) -> None:
        """Ends it, cleanly."""
        if signal_ is not None:
            self.process.send_signal(signal_)
        _, errors = self.process.communicate(timeout=LIMIT)
        assert self.process.returncode == 0, (self.process.returncode, errors)
        assert "Sanitizer" not in errors, errors

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@pytest.fixture
def path() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="rl-", dir="/tmp") as folder:
        yield f"{folder}/chat"


# ---- unix_chat ----


@pytest.mark.parametrize("hubs", ["1", "2"])
def test_chat_tells_the_others_who_said_what(path: str, hubs: str) -> None:
    with Program("unix_chat", "serve", path, "--hubs", hubs) as server:
        assert server.line() == f"listening on unix:{path}"
        assert os.stat(path).st_mode & 0o777 == 0o600
        with contextlib.ExitStack() as members:
            names = []
            for _ in range(2):  # one after the other, so that ann hears of both
                member = members.enter_context(Program("unix_chat", "join", path))
                names.append(f"user {os.geteuid()} (process {member.process.pid})")
                assert member.line() == f"* {names[-1]} has joined"
                if len(names) == 1:
                    ann = member
            bob = member
            assert ann.line() == f"* {names[1]} has joined"
            ann.say("hello")
            assert bob.line().endswith(f"{names[0]}: hello")
            bob.say("hi")
            bob.say("there")
            assert [ann.line(), ann.line()] == [f"{names[1]}: hi", f"{names[1]}: there"]
            assert bob.process.stdin is not None
            bob.process.stdin.close()  # the end of what bob says ends bob
            bob.process.stdin = None
            assert ann.line() == f"* {names[1]} has left"
            bob.end(None)
            # A plain socket is as good a member.
            with socket.socket(socket.AF_UNIX) as plain:
                plain.settimeout(LIMIT)
                plain.connect(path)
                me = f"user {os.geteuid()} (process {os.getpid()})"
                assert ann.line() == f"* {me} has joined"
                plain.sendall(b"one\ntwo\n")
                assert [ann.line(), ann.line()] == [f"{me}: one", f"{me}: two"]
            assert ann.line() == f"* {me} has left"
            server.end()
            ann.end(None)
        assert not os.path.exists(path)


def test_chat_takes_its_lines_from_a_file(path: str) -> None:
    with Program("unix_chat", "serve", path) as server, socket.socket(socket.AF_UNIX) as plain:
        server.line()
        plain.settimeout(LIMIT)
        plain.connect(path)
        script = Path(path + ".txt")
        script.write_text("from a file\n")
        with script.open() as file:
            done = subprocess.run(
                [binary("unix_chat"), "join", path], stdin=file, stdout=subprocess.DEVNULL
            )
        assert done.returncode == 0
        text = ""
        while "has left" not in text:
            text += plain.recv(4096).decode()
        assert re.search(r"process \d+\): from a file\n", text), text
        server.end()


def test_chat_says_what_is_wrong(path: str) -> None:
    def told(*arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [binary("unix_chat"), *arguments], capture_output=True, text=True, timeout=LIMIT
        )
        return done.returncode, done.stderr

    assert told()[0] == 2
    assert told("join", path) == (1, f"{path}: No such file or directory\n")
    code, text = told("serve", "/tmp/" + "x" * 120)
    assert code == 2 and "x" * 120 in text
    with Program("unix_chat", "serve", path) as server:
        server.line()
        assert told("serve", path) == (1, f"{path}: Address already in use\n")
        server.process.kill()
        server.process.wait()
        with Program("unix_chat", "serve", path) as successor:
            assert successor.line() == f"listening on unix:{path}"
            successor.end()


# ---- fd_passing_pool ----


class Pool(Program):
    def __init__(self, workers: int) -> None:
        super().__init__("fd_passing_pool", "--port", "0", str(workers))
        self.pids = {self.started() for _ in range(workers)}
        found = re.fullmatch(r"listening on 127\.0\.0\.1:(\d+)", self.line())
        assert found is not None
        self.port = int(found[1])

    def started(self) -> int:
        found = re.fullmatch(r"worker (\d+) started", self.line())
        assert found is not None
        return int(found[1])

    def client(self) -> Client:
        return Client(self.port)


class Client:
    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=LIMIT)
        self.file = self.sock.makefile("r")

    def ask(self, text: str) -> int:
        """The process that answers."""
        self.sock.sendall(text.encode() + b"\n")
        worker, _, rest = self.file.readline().partition(": ")
        assert rest == text + "\n"
        return int(worker)

    def ended(self) -> bool:
        try:
            return self.file.readline() == ""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.file.close()
        self.sock.close()


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_pool_spreads_connections_over_its_workers() -> None:
    with Pool(3) as pool:
        clients = [pool.client() for _ in range(6)]
        workers = [client.ask(f"number {i}") for i, client in enumerate(clients)]
        assert set(workers) == pool.pids
        assert sorted(workers.count(pid) for pid in pool.pids) == [2, 2, 2]
        # Each stays where it is.
        assert [client.ask("again") for client in clients] == workers
        for client in clients:
            client.close()
        # The acceptor keeps no connection, and the workers give theirs back.
        until(
            lambda: all(
                sum("socket" in link for link in open_files(pid)) == 1 for pid in pool.pids
            ),
            "the end of the connections",
        )
        pool.end()
        until(lambda: not any(alive(pid) for pid in pool.pids), "the end of the workers")


def test_pool_notices_a_dead_worker() -> None:
    with Pool(2) as pool:
        clients = [pool.client() for _ in range(4)]
        workers = [client.ask("x") for client in clients]
        victim = workers[0]
        os.kill(victim, signal.SIGKILL)
        assert pool.line() == f"worker {victim} ended"
        fresh = pool.started()
        for client, worker in zip(clients, workers, strict=True):
            if worker == victim:
                assert client.ended()
            else:
                assert client.ask("still there") == worker
        more = [pool.client() for _ in range(4)]
        assert {client.ask("y") for client in more} <= {fresh, *pool.pids} - {victim}
        assert fresh in {client.ask("z") for client in more}
        for client in (*clients, *more):
            client.close()
        pool.end()
        assert not alive(fresh)
