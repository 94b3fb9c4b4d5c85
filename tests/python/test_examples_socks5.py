"""examples/python/socks5_proxy.py, driven by curl and by plain sockets."""

from __future__ import annotations

import signal
import socket
import struct
import subprocess

import pytest
from example_support import (
    MEGABYTE,
    Example,
    command,
    output_of,
    running,
    tool,
    until,
    upstream,
)
from socket_support import LIMIT, read_all, read_exactly

HELLO = b"\5\1\0"
NAME, IPV4, IPV6 = 3, 1, 4


def request(kind: int, host: bytes, port: int, number: int = 1) -> bytes:
    return bytes([5, number, 0, kind]) + host + struct.pack("!H", port)


def named(host: bytes, port: int) -> bytes:
    return request(NAME, bytes([len(host)]) + host, port)


def code_of(client: socket.socket) -> int:
    """The answer to a request, with an IPv4 address."""
    version, code, _, kind = read_exactly(client, 4)
    assert (version, kind) == (5, IPV4)
    read_exactly(client, 6)
    return code


def answer(server: Example, *data: bytes) -> bytes:
    with server.connect() as client:
        for piece in data:
            client.sendall(piece)
        return read_all(client)


def test_socks5_says_how_it_is_used() -> None:
    assert "python examples/python/socks5_proxy.py" in output_of(command("socks5_proxy", "--help"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_socks5_ends_cleanly_with_connections_open(number: signal.Signals) -> None:
    with upstream(read_all) as target:
        example = Example("socks5_proxy")
        with example.connect() as idle, example.connect() as busy:
            busy.sendall(HELLO + named(b"localhost", int(target.rpartition(":")[2])))
            assert read_exactly(busy, 2) == b"\5\0"
            assert code_of(busy) == 0
            example.end(number)
            assert read_all(idle) == read_all(busy) == b""


@pytest.mark.parametrize("by_name", [True, False])
def test_socks5_with_curl(by_name: bool) -> None:
    curl = tool("curl")
    with running("http_hello") as web, running("socks5_proxy") as proxy:
        option = "--socks5-hostname" if by_name else "--socks5"
        arguments = [option, f"127.0.0.1:{proxy.address[1]}", "--noproxy", ""]
        url = f"http://localhost:{web.address[1]}/"
        out = output_of([curl, "-4sS", "--max-time", str(LIMIT), *arguments, url, url])
        assert out == "Hello from runloom!\n" * 2


def test_socks5_with_curl_to_nobody() -> None:
    curl = tool("curl")
    with socket.socket() as unused, running("socks5_proxy") as proxy:
        unused.bind(("127.0.0.1", 0))
        url = f"http://localhost:{unused.getsockname()[1]}/"
        arguments = ["--socks5-hostname", f"127.0.0.1:{proxy.address[1]}", "--noproxy", ""]
        done = subprocess.run([curl, "-sS", *arguments, url], capture_output=True, timeout=LIMIT)
    assert done.returncode == 97  # the proxy refuses


def test_socks5_passes_both_directions_and_half_closes_on() -> None:
    def reverse(connection: socket.socket) -> None:
        connection.sendall(read_all(connection)[::-1])

    data = bytes(range(256)) * (MEGABYTE // 256)
    with upstream(reverse) as target, running("socks5_proxy") as proxy:
        before = proxy.descriptors()
        port = int(target.rpartition(":")[2])
        with proxy.connect() as client:
            # All at once: what follows the request is for the server.
            client.sendall(HELLO + request(IPV4, socket.inet_aton("127.0.0.1"), port) + data[:100])
            assert read_exactly(client, 2) == b"\5\0"
            assert code_of(client) == 0
            client.sendall(data[100:])
            client.shutdown(socket.SHUT_WR)
            assert read_all(client) == data[::-1]
        until(lambda: proxy.descriptors() == before, "closing both connections")


def test_socks5_tries_every_address_of_a_name() -> None:
    """localhost is ::1 and 127.0.0.1, and only the second one listens."""
    with (
        upstream(lambda connection: connection.sendall(b"here")) as target,
        running("socks5_proxy") as proxy,
        proxy.connect() as client,
    ):
        client.sendall(HELLO + named(b"localhost", int(target.rpartition(":")[2])))
        assert read_exactly(client, 2) == b"\5\0"
        assert code_of(client) == 0
        assert read_all(client) == b"here"


def test_socks5_refuses() -> None:
    with socket.socket() as unused, running("socks5_proxy") as proxy:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        local = socket.inet_aton("127.0.0.1")
        cases = {
            request(IPV4, local, port): 5,
            request(IPV6, socket.inet_pton(socket.AF_INET6, "::1"), port): 5,
            named(b"no.such.name.invalid", 80): 4,
            request(IPV4, local, port, number=2): 7,
            request(9, b"", 80)[:4]: 8,
        }
        for asked, code in cases.items():
            assert answer(proxy, HELLO, asked)[:4] == bytes([5, 0, 5, code])
        assert answer(proxy, b"\5\1\2") == b"\5\xff"  # only with a password
        assert answer(proxy, b"\4\1") == b""
        assert answer(proxy, b"\5\1\0", b"\6\1\0\1") == b"\5\0"
        for unfinished in (b"\5", b"\5\3\0", HELLO + b"\5\1\0\3\xff"):
            with proxy.connect() as client:
                client.sendall(unfinished)
                client.shutdown(socket.SHUT_WR)
                assert read_all(client) in (b"", b"\5\0")
