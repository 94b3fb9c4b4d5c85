"""The same programs on the standard library's sockets and on ours: equal results, errno for errno
and byte for byte."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
from socket_support import LIMIT, go, join, reset, run

import runloom_c
from runloom.sync.socket import Socket

DATA = bytes(range(256)) * 400


class Stock:
    """Threads and socket.socket."""

    make = socket.socket

    @staticmethod
    def both(one: Callable[[], Any], other: Callable[[], Any]) -> list[Any]:
        results: list[Any] = [None, None]

        def fill(index: int, function: Callable[[], Any]) -> None:
            results[index] = function()

        threads = [threading.Thread(target=fill, args=(i, f)) for i, f in enumerate((one, other))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT)
        return results


class Ours:
    """Fibers and runloom.sync.Socket."""

    make = Socket

    @staticmethod
    def both(one: Callable[[], Any], other: Callable[[], Any]) -> list[Any]:
        return join(go(one), go(other))


def told(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result, or the kind and number of the error."""
    try:
        return function(*arguments)
    except OSError as error:
        return type(error).__name__, error.errno
    except Exception as error:
        return type(error).__name__


def connected(kit: Any) -> tuple[Any, Any]:
    with kit.make() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        client = kit.make()
        client.settimeout(LIMIT)
        client.connect(server.getsockname())
        accepted, _ = server.accept()
        accepted.settimeout(LIMIT)
        return client, accepted


def transfer(kit: Any) -> Any:
    client, accepted = connected(kit)

    def send() -> Any:
        with client:
            client.sendall(DATA)
            client.shutdown(socket.SHUT_WR)
            return told(client.recv, 10), told(client.send, b"after")

    def receive() -> Any:
        with accepted:
            pieces = []
            while piece := accepted.recv(1000):
                pieces.append(piece)
            accepted.sendall(b"bye")
            return b"".join(pieces), told(accepted.recv, 10)

    return kit.both(send, receive)


def closed(kit: Any) -> Any:
    sock = kit.make()
    sock.close()
    return [
        told(call)
        for call in (
            lambda: sock.recv(1),
            lambda: sock.recv(0),
            lambda: sock.send(b"x"),
            lambda: sock.sendall(b"x"),
            lambda: sock.sendall(b""),
            sock.accept,
            sock.getsockname,
            sock.getpeername,
            lambda: sock.connect(("127.0.0.1", 1)),
            lambda: sock.bind(("127.0.0.1", 0)),
            lambda: sock.shutdown(2),
            lambda: sock.setsockopt(1, 9, 1),
            lambda: sock.getsockopt(1, 9),
            sock.fileno,
            sock.detach,
            sock.close,
        )
    ]


def fresh(kit: Any) -> Any:
    with kit.make() as sock:
        sock.settimeout(LIMIT)
        return [
            told(call)
            for call in (
                lambda: sock.recv(1),
                lambda: sock.send(b"x"),
                sock.accept,
                sock.getsockname,
                sock.getpeername,
                lambda: sock.shutdown(2),
                lambda: sock.shutdown(9),
                lambda: sock.bind(("127.0.0.1", 0)),
                lambda: sock.bind(("127.0.0.1", 0)),
                lambda: sock.bind(("8.8.8.8", 0)),
                lambda: sock.getsockopt(1, 12345),
                lambda: sock.setsockopt(1, 12345, 1),
                lambda: sock.family,
                lambda: sock.type,
                lambda: sock.proto,
            )
        ]


def after_peer_close(kit: Any) -> Any:
    client, accepted = connected(kit)
    with accepted:
        client.close()
        first = told(accepted.recv, 10)
        sent = told(accepted.send, b"1")
        while (second := told(accepted.send, b"2")) == 1:
            pass
        return first, sent, second, told(accepted.recv, 1)


def after_peer_reset(kit: Any) -> Any:
    client, accepted = connected(kit)
    with accepted:
        client.sendall(b"12345")
        told(accepted.recv, 1, socket.MSG_PEEK)
        reset(client)
        seen = [told(accepted.recv, 3), told(accepted.recv, 3)]
        while seen[-1] == b"":
            seen[-1] = told(accepted.recv, 3)
        return seen, told(accepted.recv, 3), told(accepted.send, b"x"), told(accepted.send, b"x")


def unread_at_close(kit: Any) -> Any:
    client, accepted = connected(kit)
    with accepted:
        accepted.sendall(b"not read")
        client.recv(1, socket.MSG_PEEK)
        client.close()
        return told(accepted.recv, 10)


def flags(kit: Any) -> Any:
    client, accepted = connected(kit)
    with client, accepted:
        client.sendall(b"0123456789")
        accepted.settimeout(None)
        return [
            accepted.recv(4, socket.MSG_PEEK),
            accepted.recv(4),
            accepted.recv(4, socket.MSG_WAITALL),
            accepted.recv(4, socket.MSG_DONTWAIT),
            told(accepted.recv, 4, socket.MSG_DONTWAIT),
            told(client.send, b"x", socket.MSG_OOB),
        ]


def timeouts(kit: Any) -> Any:
    def attempts(timeout: float) -> Any:
        client, accepted = connected(kit)
        with client, accepted:
            accepted.settimeout(timeout)
            return [
                told(accepted.recv, 1),
                told(accepted.recv_into, bytearray(1)),
                told(accepted.recvfrom, 1),
                told(accepted.sendall, bytes(50 << 20)),
            ]

    return attempts(0.01), attempts(0)


def arguments(kit: Any) -> Any:
    with kit.make() as sock:
        return [
            told(call)
            for call in (
                lambda: sock.recv(),
                lambda: sock.recv(-1),
                lambda: sock.recv("1"),
                lambda: sock.recv(1, 2, 3),
                lambda: sock.recv_into(b"x"),
                lambda: sock.recv_into(bytearray(1), 2),
                lambda: sock.recv_into(bytearray(1), -1),
                lambda: sock.send("text"),
                lambda: sock.sendall(None),
                lambda: sock.settimeout(-1),
                lambda: sock.settimeout("x"),
                lambda: sock.connect("x"),
                lambda: sock.connect(("127.0.0.1",)),
                lambda: sock.connect(("127.0.0.1", 1 << 16)),
                lambda: sock.connect(("127.0.0.1", "1")),
                lambda: sock.bind(("127.0.0.1", -1)),
                lambda: sock.makefile("x"),
                lambda: sock.makefile("r", 0),
                lambda: sock.getsockopt(1, 9, 5000),
                lambda: kit.make(fileno=-1),
                lambda: kit.make(fileno="1"),
                lambda: kit.make(socket.AF_INET, 99),
                lambda: kit.make(nonsense=1),
            )
        ]


def files(kit: Any) -> Any:
    client, accepted = connected(kit)
    with client, accepted:
        with client.makefile("w", encoding="utf-8", newline="\r\n") as out:
            out.write("eins\nzwei\n")
            print("drei", file=out)
        client.shutdown(socket.SHUT_WR)
        with accepted.makefile("rb") as lines:
            return [lines.readline(), lines.read(3), lines.readlines(), lines.readable()]


PROGRAMS = [
    transfer,
    closed,
    fresh,
    after_peer_close,
    after_peer_reset,
    unread_at_close,
    flags,
    timeouts,
    arguments,
    files,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_both_do_the_same(program: Callable[[Any], Any]) -> None:
    stock = program(Stock)
    assert run(lambda: program(Ours)) == stock
    if program is not transfer:
        assert program(Ours) == stock  # outside of fibers


def test_the_oracle_notices_a_difference() -> None:
    class Other(Ours):
        @staticmethod
        def make(*arguments: Any, **options: Any) -> Socket:
            sock = Socket(*arguments, **options)
            os.close(sock.detach())
            return sock

    assert run(lambda: fresh(Other)) != fresh(Stock)
    assert runloom_c.fiber_count() == 0
