"""Descriptors whose numbers come back at once, and sockets that several threads use."""

from __future__ import annotations

import os
import socket
import threading
from typing import Any

import pytest
from socket_support import LIMIT, failure, go, join, own_pair, read_exactly, run
from test_socket_connect import silent

import runloom_c
from runloom.sync import Socket


def test_T10_a_cancelled_connect_leaves_no_trace_on_the_number() -> None:
    def main() -> None:
        with silent() as address, socket.create_server(("127.0.0.1", 0)) as server:
            for _ in range(20):
                lost = Socket()
                number = lost.fileno()
                connect = go(failure, lost.connect, address)
                runloom_c.sched_yield()
                connect.cancel()
                join(connect)
                assert isinstance(connect.result, runloom_c.Cancelled)
                lost.close()
                with Socket() as sock:
                    assert sock.fileno() == number
                    sock.settimeout(LIMIT)
                    sock.connect(server.getsockname())
                    accepted, _ = server.accept()
                    with accepted:
                        assert accepted.getpeername() == sock.getsockname()
                        accepted.sendall(b"mine")
                        assert read_exactly(sock, 4) == b"mine"

    run(main)


def test_T11_a_number_that_is_used_again_brings_nothing_of_its_last_owner() -> None:
    rounds = 150

    def open_and_close(name: int) -> int:
        right = 0
        for i in range(rounds):
            mine, peer = socket.socketpair()
            own = f"{name}.{i}".encode()
            with peer, Socket(fileno=mine.detach()) as sock:
                reader = go(sock.recv, 100)
                runloom_c.sched_yield()
                peer.send(own)
                right += reader.join(LIMIT) == own
        return right

    def wait_in_vain() -> list[str]:
        mine, peer = socket.socketpair()
        with peer, Socket(fileno=mine.detach()) as sock:
            sock.settimeout(0.001)
            return [type(failure(sock.recv, 100)).__name__ for _ in range(rounds)]

    def main() -> None:
        waiters = [go(wait_in_vain) for _ in range(32)]
        openers = [go(open_and_close, i) for i in range(32)]
        assert join(*openers) == [rounds] * 32
        assert join(*waiters) == [["TimeoutError"] * rounds] * 32

    run(main)


@pytest.mark.parametrize("foreign", [False, True], ids=["ours", "foreign"])
def test_T23_a_reader_and_a_writer_on_two_threads(foreign: bool) -> None:
    """Each waits again and again for its own direction of the one descriptor."""
    rounds, chunk = 300, 8192
    mine, peer = socket.socketpair()
    for each in (mine, peer):
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            each.setsockopt(socket.SOL_SOCKET, option, 4096)  # a chunk never fits at once
    sock: Any = mine if foreign else Socket(fileno=mine.detach())
    failures: list[BaseException] = []

    def on_a_thread(work: Any) -> threading.Thread:
        def thread() -> None:
            g = runloom_c.go(work)
            runloom_c.run()
            if g.error is not None:
                failures.append(g.error)
                peer.shutdown(socket.SHUT_RDWR)

        started = threading.Thread(target=thread, daemon=True)
        started.start()
        return started

    def write() -> None:
        for _ in range(rounds):
            runloom_c.tcp_send(sock, bytes(chunk))

    def read() -> None:
        for i in range(rounds):
            assert runloom_c.tcp_recv(sock, 1) == bytes([i % 256])

    peer.settimeout(LIMIT)
    with peer, sock:
        threads = [on_a_thread(work) for work in (write, read)]
        for i in range(rounds):
            left = chunk
            while left:
                left -= len(peer.recv(left))
            peer.send(bytes([i % 256]))
        for thread in threads:
            thread.join(LIMIT)
        assert not any(thread.is_alive() for thread in threads)
    assert failures == []


def test_many_close_what_many_wait_on() -> None:
    def main() -> None:
        for _ in range(100):
            with own_pair() as (one, other):
                waiters = [
                    go(failure, call)
                    for call in (
                        lambda sock=one: sock.recv(1),
                        lambda sock=one: sock.recv_into(bytearray(4)),
                        lambda sock=one: runloom_c.wait_fd(sock, 1),
                        lambda sock=one: sock.sendall(bytes(20_000_000)),
                    )
                ]
                closers = [go(one.close), go(other.close), go(one.close), go(os.getpid)]
                join(*closers)
                ends = [type(error) for error in join(*waiters)]
                assert all(issubclass(end, OSError) for end in ends if end is not type(None))

    run(main)
