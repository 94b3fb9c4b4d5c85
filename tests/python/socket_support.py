"""What the socket tests share: running fibers, and pairs of connected sockets."""

from __future__ import annotations

import resource
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import runloom_c
from runloom.sync.socket import Socket, tcp_connect, tcp_listen

LIMIT = 10.0  # seconds after which something hangs


def run(main: Callable[[], Any]) -> Any:
    """Runs main on a fiber until it and all that it started have ended; its result."""
    results: list[Any] = []
    runloom_c._run_main(lambda: results.append(main()))
    return results[0]


def go(function: Callable[..., Any], *arguments: Any) -> Any:
    """Starts a fiber; its exceptions are kept in the handle."""
    return runloom_c.go(lambda: function(*arguments))


def join(*fibers: Any) -> list[Any]:
    """Waits for fibers; their results, or the exception that one ended with."""
    for fiber in fibers:
        end = time.monotonic() + LIMIT
        while not fiber.done:
            assert time.monotonic() < end, f"{fiber} did not end"
            runloom_c.sched_sleep(0.0005)
    for fiber in fibers:
        if fiber.error is not None:
            raise fiber.error
    return [fiber.result for fiber in fibers]


def failure(function: Callable[..., Any], *arguments: Any) -> BaseException | None:
    """What the call raises."""
    try:
        function(*arguments)
    except BaseException as error:
        return error
    return None


def parked_on(sock_or_fd: Any) -> None:
    """Lets others run until a fiber is parked on the descriptor."""
    fd = sock_or_fd if isinstance(sock_or_fd, int) else sock_or_fd.fileno()
    end = time.monotonic() + LIMIT
    while not any(f["state"] == "io-wait" and f["fd"] == fd for f in runloom_c.fibers()):
        assert time.monotonic() < end, f"nobody waits on {fd}"
        runloom_c.sched_yield()


@contextmanager
def listener(**options: Any) -> Iterator[Socket]:
    with tcp_listen("127.0.0.1", 0, **options) as sock:
        yield sock


@contextmanager
def pair() -> Iterator[tuple[Socket, socket.socket]]:
    """Ours, and its peer, a plain socket that never blocks for long."""
    with listener() as server:
        peer = socket.create_connection(server.getsockname(), timeout=LIMIT)
        ours, _ = server.accept()
    with ours, peer:
        yield ours, peer


@contextmanager
def own_pair() -> Iterator[tuple[Socket, Socket]]:
    with listener() as server:
        client = tcp_connect(*server.getsockname())
        accepted, _ = server.accept()
    with client, accepted:
        yield client, accepted


def reset(sock: Any) -> None:
    """Closes with a reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def read_all(sock: Any, size: int = 65536) -> bytes:
    pieces = []
    while piece := sock.recv(size):
        pieces.append(piece)
    return b"".join(pieces)


def read_exactly(sock: Any, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        assert piece, f"the end came after {len(data)} bytes"
        data += piece
    return data


def idle_cpu(seconds: float) -> float:
    """The share of a core that the process uses while the calling fiber sleeps."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    begin = time.monotonic()
    runloom_c.sched_sleep(seconds)
    passed = time.monotonic() - begin
    after = resource.getrusage(resource.RUSAGE_SELF)
    used = (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)
    return used / passed
