"""The servers of the Python examples under clients whose connections are stalled, cut, reset,
trickled and reordered. What is left alone must be right, and nothing may be wrong; afterwards the
server is as it was: it serves, has no descriptor more, and ends when told, without a traceback."""

from __future__ import annotations

import os
import socket
import ssl
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from chaos_proxy import ChaosProxy
from example_support import Authority, Example, authority, running, until
from socket_support import LIMIT, read_exactly

__all__ = ["authority"]

CLIENTS = 80
Talk = Callable[[socket.socket], None]


class Wrong(Exception):
    """What no fault of a connection excuses."""


def read_to_end(client: socket.socket) -> bytes:
    """What comes, also when a reset ends it."""
    pieces = []
    try:
        while piece := client.recv(65536):
            pieces.append(piece)
    except ConnectionError:
        pass
    return b"".join(pieces)


def whole(got: bytes, wanted: bytes) -> None:
    """A prefix is a connection that was cut; anything else is wrong."""
    if not wanted.startswith(got):
        raise Wrong(f"{got[:100]!r} instead of {wanted[:100]!r}")
    if len(got) < len(wanted):
        raise ConnectionError("cut")


def echo(client: socket.socket) -> None:
    data = os.urandom(20_000)
    client.sendall(data)
    client.shutdown(socket.SHUT_WR)
    whole(read_to_end(client), data)


def endure(server: Example, talk: Talk) -> None:
    """Lets many clients talk through the chaos, then one without it."""
    with server.connect() as direct:
        talk(direct)
    before = server.descriptors()
    with ChaosProxy(server.address[1]) as proxy:

        def one_client(_: int) -> str:
            with socket.create_connection(("127.0.0.1", proxy.port), timeout=LIMIT) as client:
                try:
                    talk(client)
                except TimeoutError:
                    raise
                except (OSError, AssertionError) as error:
                    fault = proxy.fault_of(client)
                    if fault.kind not in ("cut", "reset"):
                        raise AssertionError(f"{fault} was more than that") from error
                    return "hurt"
                return "whole"

        with ThreadPoolExecutor(16) as pool:
            outcomes = list(pool.map(one_client, range(CLIENTS)))
        assert {"whole", "hurt"} == set(outcomes)
    until(lambda: server.descriptors() <= before, "closing what the chaos left")
    with server.connect() as direct:
        talk(direct)


def test_echo() -> None:
    with running("echo") as server:
        endure(server, echo)


def test_proxy() -> None:
    with running("echo") as target, running("proxy", f"127.0.0.1:{target.address[1]}") as server:
        endure(server, echo)


def test_socks5_proxy() -> None:
    with running("echo") as target, running("socks5_proxy") as server:
        address = socket.inet_aton("127.0.0.1") + struct.pack("!H", target.address[1])

        def ask(client: socket.socket) -> None:
            client.sendall(b"\5\1\0")
            if read_exactly(client, 2) != b"\5\0":
                raise Wrong("the method")
            client.sendall(b"\5\1\0\1" + address)
            if read_exactly(client, 10)[:2] != b"\5\0":
                raise Wrong("the answer")
            echo(client)

        endure(server, ask)


def test_tls_echo(authority: Authority) -> None:
    context = ssl.create_default_context(cafile=authority.ca)

    def talk(client: socket.socket) -> None:
        data = os.urandom(20_000)
        with context.wrap_socket(client.dup(), server_hostname="localhost") as secure:
            secure.settimeout(LIMIT)
            secure.sendall(data)
            whole(read_exactly(secure, len(data)), data)

    with running("tls_echo", "--certfile", authority.server) as server:
        endure(server, talk)


def test_https_files(tmp_path: Path) -> None:
    page = os.urandom(50_000)
    (tmp_path / "page").write_bytes(page)

    def get(client: socket.socket) -> None:
        client.sendall(b"GET /page HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        head, _, body = read_to_end(client).partition(b"\r\n\r\n")
        whole(body, page)
        if not head.startswith(b"HTTP/1.1 200"):
            raise Wrong(repr(head))

    with running("https_files", str(tmp_path)) as server:
        endure(server, get)


def test_redis() -> None:
    value = b"$5\r\n" * 3000
    stream = b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$%d\r\n%b\r\n" % (len(value), value)
    stream += b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n" * 3
    answer = b"+OK\r\n" + b"$%d\r\n%b\r\n" % (len(value), value) * 3

    def ask(client: socket.socket) -> None:
        client.sendall(stream)
        whole(read_exactly(client, len(answer)), answer)

    with running("redis_server") as server:
        endure(server, ask)


def test_http_hello() -> None:
    request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 20
    answer = b"Hello from runloom!\n"

    def get(client: socket.socket) -> None:
        client.sendall(request)
        client.shutdown(socket.SHUT_WR)
        got = read_to_end(client)
        if got.count(b"HTTP/1.1 200 OK") > 20 or b"400" in got:
            raise Wrong(repr(got[-200:]))
        if got.count(answer) < 20:
            raise ConnectionError("cut")

    with running("http_hello") as server:
        endure(server, get)


def test_chat() -> None:
    names = iter(range(10**6))

    def join(client: socket.socket) -> None:
        with client.makefile("rwb") as file:
            name = b"member%d" % next(names)
            whole(file.readline(), b"your name?\n")
            file.write(name + b"\n")
            file.flush()
            line = b""
            while not line.startswith(b"* welcome, " + name):
                line = file.readline()
                if not line.endswith(b"\n"):
                    raise ConnectionError("cut")
                if not line.startswith(b"* "):
                    raise Wrong(repr(line))

    with running("chat") as server:
        endure(server, join)
