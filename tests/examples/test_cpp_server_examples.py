"""The SOCKS5 proxy and the restart without downtime, driven from outside."""

from __future__ import annotations

import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from example_process import LIMIT, Example, binary, read_all, read_exactly, until

HUBS = pytest.mark.parametrize("hubs", [1, 2])


# ---- SOCKS5 ----


@contextmanager
def echo_server(family: socket.AddressFamily = socket.AF_INET) -> Iterator[tuple[str, int]]:
    """Echoes one connection after the other, each to its end."""
    host = "127.0.0.1" if family == socket.AF_INET else "::1"
    with socket.create_server((host, 0), family=family) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.settimeout(LIMIT)
                    while piece := connection.recv(65536):
                        connection.sendall(piece)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[:2]
        listener.shutdown(socket.SHUT_RD)
        thread.join(LIMIT)


def request(host: str, port: int, command: int = 1) -> bytes:
    if re.fullmatch(r"[\d.]+", host):
        address = b"\x01" + socket.inet_aton(host)
    elif ":" in host and not host.startswith("name="):
        address = b"\x04" + socket.inet_pton(socket.AF_INET6, host)
    else:
        name = host.removeprefix("name=").encode()
        address = b"\x03" + bytes([len(name)]) + name
    return b"\x05" + bytes([command]) + b"\x00" + address + struct.pack(">H", port)


def read_reply(client: socket.socket) -> int:
    version, reply, _, kind = read_exactly(client, 4)
    assert version == 5
    read_exactly(client, {1: 4, 4: 16}[kind] + 2)
    return reply


@HUBS
def test_socks5_connects_to_both_families_and_numeric_names(hubs: int) -> None:
    with Example("socks5", hubs=hubs) as proxy:
        for family in (socket.AF_INET, socket.AF_INET6):
            with echo_server(family) as (host, port):
                for named in (host, f"name={host}"):
                    with proxy.connect() as client:
                        # All at once, and what follows the request is the connection's.
                        client.sendall(b"\x05\x02\x01\x00" + request(named, port) + b"early ")
                        assert read_exactly(client, 2) == b"\x05\x00"
                        assert read_reply(client) == 0
                        client.sendall(b"late")
                        client.shutdown(socket.SHUT_WR)
                        assert read_all(client) == b"early late"


def test_socks5_byte_by_byte() -> None:
    with Example("socks5") as proxy, echo_server() as (host, port), proxy.connect() as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"\x05\x01\x00" + request(host, port) + b"x":
            client.send(bytes([byte]))
        assert read_exactly(client, 2) == b"\x05\x00"
        assert read_reply(client) == 0
        assert read_exactly(client, 1) == b"x"


def test_socks5_refuses_what_it_does_not_know() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        closed_port = unused.getsockname()[1]
        cases = {
            request("127.0.0.1", closed_port): 5,  # connection refused
            request("name=example.org", 80): 8,  # no resolver
            request("127.0.0.1", 80, command=2): 7,  # BIND
            request("127.0.0.1", 80, command=3): 7,  # UDP
            b"\x05\x01\x00\x09": 8,
        }
        with Example("socks5") as proxy:
            for asked, expected in cases.items():
                with proxy.connect() as client:
                    client.sendall(b"\x05\x01\x00" + asked)
                    assert read_exactly(client, 2) == b"\x05\x00"
                    assert read_reply(client) == expected
                    client.shutdown(socket.SHUT_WR)
                    assert read_all(client) == b""
            for other in (b"\x04\x01\x00", b"GET / HTTP/1.0\r\n\r\n"):
                with proxy.connect() as client:
                    client.sendall(other)
                    client.shutdown(socket.SHUT_WR)
                    assert read_all(client) == b""


def test_socks5_asks_for_the_login() -> None:
    with Example("socks5", "me:secret") as proxy, echo_server() as (host, port):
        with proxy.connect() as client:
            client.sendall(b"\x05\x01\x00")
            assert read_exactly(client, 2) == b"\x05\xff"
        for password, right in ((b"wrong!", False), (b"secre", False), (b"secret", True)):
            with proxy.connect() as client:
                client.sendall(b"\x05\x02\x00\x02")
                assert read_exactly(client, 2) == b"\x05\x02"
                client.sendall(b"\x01\x02me" + bytes([len(password)]) + password)
                answer = read_exactly(client, 2)
                assert (answer == b"\x01\x00") == right
                if right:
                    client.sendall(request(host, port) + b"x")
                    assert read_reply(client) == 0
                    assert read_exactly(client, 1) == b"x"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_socks5_with_curl(tmp_path: Path) -> None:
    (tmp_path / "page").write_text("hello\n")
    with Example("http_static", str(tmp_path)) as web, Example("socks5", "me:secret") as proxy:
        done = subprocess.run(
            [
                "curl",
                "-sS",
                "--max-time",
                "10",
                "--socks5",
                f"127.0.0.1:{proxy.port}",
                "--proxy-user",
                "me:secret",
                f"http://127.0.0.1:{web.port}/page",
            ],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        assert done.stdout == "hello\n"


# ---- restart ----


class Restart:
    """One process of the service: the first has a port, the others take it over."""

    def __init__(self, control: Path, hubs: int) -> None:
        self.process = subprocess.Popen(
            [binary("restart"), "--hubs", str(hubs), str(control)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], LIMIT)
        line = self.process.stdout.readline() if ready else ""
        match = re.fullmatch(r"listening on 127\.0\.0\.1:(\d+)\n", line)
        assert match is not None, line
        self.port = int(match[1])

    def end(self) -> str:
        out, _ = self.process.communicate(timeout=LIMIT)
        assert self.process.returncode == 0
        return out


def ask(port: int) -> int:
    """Connects, and returns the id of the process that serves."""
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT) as client:
        client.sendall(b"done\n")
        client.shutdown(socket.SHUT_WR)
        match = re.fullmatch(rb"this is process (\d+)\ndone\n", read_all(client))
        assert match is not None
        return int(match[1])


@pytest.mark.parametrize(("first_hubs", "second_hubs"), [(1, 1), (2, 1), (1, 2)])
def test_restart_loses_no_connection(tmp_path: Path, first_hubs: int, second_hubs: int) -> None:
    control = tmp_path / "control"
    processes = [Restart(control, first_hubs)]
    port = processes[0].port
    served: set[int] = set()
    failures: list[BaseException] = []
    stop = threading.Event()

    def connect_all_the_time() -> None:
        while not stop.is_set():
            try:
                served.add(ask(port))
            except BaseException as error:
                failures.append(error)

    clients = [threading.Thread(target=connect_all_the_time) for _ in range(4)]
    old = socket.create_connection(("127.0.0.1", port), timeout=LIMIT)
    try:
        for client in clients:
            client.start()
        for generation in range(3):
            until(lambda: processes[-1].process.pid in served, "serving")
            processes.append(Restart(control, second_hubs if generation % 2 == 0 else first_hubs))
            assert processes[-1].port == port
        until(lambda: processes[-1].process.pid in served, "serving")
        stop.set()
        for client in clients:
            client.join(LIMIT)
        # A client of the first process is served by it to its end, and then it ends, too.
        assert processes[0].process.poll() is None
        old.sendall(b"still here")
        old.shutdown(socket.SHUT_WR)
        assert read_all(old).endswith(b"still here")
        for process in processes[:-1]:
            assert "cancelled 0" in process.end()
        processes[-1].process.send_signal(signal.SIGTERM)
        processes[-1].end()
    finally:
        stop.set()
        old.close()
        for process in processes:
            process.process.kill()
            process.process.wait()
    assert failures == []
    assert not control.exists()


def test_restart_survives_a_successor_that_is_killed(tmp_path: Path) -> None:
    control = tmp_path / "control"
    first = Restart(control, 1)
    try:
        # It says what a successor says first, and dies.
        with socket.socket(socket.AF_UNIX) as successor:
            successor.settimeout(LIMIT)
            successor.connect(str(control))
            assert successor.recv(2) == b"H1"
        assert ask(first.port) == first.process.pid
        second = Restart(control, 1)
        second.process.kill()
        second.process.wait()
        # Nobody is left, and the next one starts afresh where the socket's file is stale.
        first.end()
        third = Restart(control, 1)
        assert ask(third.port) == third.process.pid
        third.process.send_signal(signal.SIGTERM)
        third.end()
    finally:
        first.process.kill()
        first.process.wait()
