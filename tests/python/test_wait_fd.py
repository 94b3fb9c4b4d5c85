"""wait_fd, fd_read, fd_write, tcp_recv, tcp_send: descriptors of any origin."""

from __future__ import annotations

import errno
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from socket_support import failure, go, idle_cpu, join, pair, parked_on, run

import runloom_c
from runloom_c import fd_read, fd_write, tcp_recv, tcp_recv_alloc, tcp_send, tcp_send_once, wait_fd

MEGABYTE = 1 << 20


@contextmanager
def plain_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    try:
        yield reader, writer
    finally:
        for fd in (reader, writer):
            failure(os.close, fd)


def both(body: Any) -> None:
    """In a fiber, and outside of fibers."""
    run(body)
    body()


# ---- wait_fd ----


def test_what_is_ready_is_told_at_once() -> None:
    def main() -> None:
        with plain_pair() as (left, right):
            assert wait_fd(left.fileno(), 2) == 2
            assert wait_fd(left.fileno(), 3) == 2
            assert wait_fd(left.fileno(), 1, 0) == 0
            right.send(b"x")
            assert wait_fd(left.fileno(), 1) == 1
            assert wait_fd(left.fileno(), events=3, timeout_ms=0) == 3
            assert wait_fd(left, 1) == 1  # anything with a fileno()
            right.close()
            assert left.recv(1) == b"x"
            assert wait_fd(left.fileno(), 1) == 1

    both(main)


def test_a_wait_ends_by_the_event() -> None:
    def main() -> None:
        with plain_pair() as (left, right):
            for _ in range(3):
                waiters = [go(wait_fd, left.fileno(), 1) for _ in range(3)]
                parked_on(left)
                right.send(b"x")
                assert join(*waiters) == [1, 1, 1]
                left.recv(1)
            assert os.get_blocking(left.fileno())

    run(main)


@pytest.mark.parametrize("timeout_ms", [1, 20, 0.5, 20.3])
def test_a_timeout_returns_0_and_is_never_early(timeout_ms: float) -> None:
    def main() -> None:
        with plain_pair() as (left, _right):
            begin = time.monotonic()
            assert wait_fd(left.fileno(), 1, timeout_ms) == 0
            assert time.monotonic() - begin >= timeout_ms / 1000

    both(main)


def test_wrong_descriptors_and_events() -> None:
    def main() -> None:
        with tempfile.TemporaryFile() as file, plain_pair() as (left, _right):
            with pytest.raises(PermissionError):
                wait_fd(file.fileno(), 1)
            for bad in (-1, 1 << 20):
                error = failure(wait_fd, bad, 1)
                assert isinstance(error, OSError) and error.errno == errno.EBADF
            for events in (0, 4, -1):
                with pytest.raises(ValueError):
                    wait_fd(left.fileno(), events)
            for arguments in ((), (1,), ("1", 1), (1, "1"), (1, 1, "x"), (1, 1, 1, 1)):
                with pytest.raises(TypeError):
                    wait_fd(*arguments)
            with pytest.raises(TypeError, match="unexpected keyword"):
                wait_fd(left.fileno(), 1, timeout=5)

    both(main)


def test_a_wait_on_a_socket_of_ours_ends_by_its_close() -> None:
    def main() -> None:
        with pair() as (ours, _peer):
            waiting = go(failure, wait_fd, ours.fileno(), 1)
            parked_on(ours)
            ours.close()
            (error,) = join(waiting)
            assert isinstance(error, OSError) and error.errno == errno.EBADF

    run(main)


def test_a_wait_that_is_over_costs_nothing() -> None:
    def main() -> None:
        with plain_pair() as (left, right):
            waiting = go(wait_fd, left.fileno(), 1)
            parked_on(left)
            right.send(b"unread")
            join(waiting)
            assert idle_cpu(0.5) < 0.2

    run(main)


def test_a_cancel_ends_the_wait() -> None:
    def main() -> None:
        with plain_pair() as (left, _right):
            waiting = go(failure, wait_fd, left.fileno(), 1)
            parked_on(left)
            waiting.cancel()
            assert isinstance(join(waiting)[0], runloom_c.Cancelled)

    run(main)


def test_backend() -> None:
    wanted = os.environ.get("RUNLOOM_NETPOLL", "epoll")
    assert runloom_c.netpoll_backend() == wanted
    assert run(runloom_c.netpoll_backend) == wanted


# ---- fd_read, fd_write ----


def test_a_pipe_both_ways() -> None:
    def main() -> None:
        with pipe() as (reader, writer):
            assert fd_write(writer, b"hello") == 5
            assert fd_read(reader, 2) == b"he"
            buffer = bytearray(10)
            assert fd_read(reader, buffer, 10) == 3
            assert buffer == b"llo" + bytes(7)
            assert fd_read(reader, buffer, 0) == 0
            os.close(writer)
            assert fd_read(reader, 5) == b""
            assert fd_read(reader, buffer, 5) == 0
            assert os.get_blocking(reader)

    both(main)


@pytest.mark.parametrize("blocking", [True, False])
def test_a_full_pipe_makes_the_writer_wait(blocking: bool) -> None:
    data = os.urandom(MEGABYTE)

    def main() -> None:
        with pipe() as (reader, writer):
            os.set_blocking(reader, blocking)
            os.set_blocking(writer, blocking)
            sender = go(fd_write, writer, data)
            pieces, size = [], 0
            while size < len(data):
                pieces.append(fd_read(reader, 10_000))
                size += len(pieces[-1])
            assert b"".join(pieces) == data
            assert join(sender) == [len(data)]
            assert os.get_blocking(writer) == blocking

    run(main)


def test_a_file_is_read_and_written() -> None:
    def main() -> None:
        with tempfile.TemporaryFile() as file:
            assert fd_write(file.fileno(), b"0123456789") == 10
            file.seek(2)
            assert fd_read(file.fileno(), 5) == b"23456"
            assert fd_read(file.fileno(), 50) == b"789"
            assert fd_read(file.fileno(), 5) == b""

    both(main)


def test_a_broken_pipe() -> None:
    def main() -> None:
        with pipe() as (reader, writer):
            os.close(reader)
            with pytest.raises(BrokenPipeError):
                fd_write(writer, b"x")

    both(main)


def test_fd_arguments() -> None:
    with pipe() as (reader, writer):
        with pytest.raises(ValueError, match="too small"):
            fd_read(reader, bytearray(4), 5)
        with pytest.raises(ValueError, match="negative"):
            fd_read(reader, -1)
        for arguments in ((), (reader,), (reader, "5"), (reader, b"12345", 5)):
            with pytest.raises(TypeError):
                fd_read(*arguments)
        for arguments in ((writer,), (writer, "text"), (writer, b"", 1)):
            with pytest.raises(TypeError):
                fd_write(*arguments)
        for call in (lambda: fd_read(-1, 1), lambda: fd_write(-1, b"x")):
            error = failure(call)
            assert isinstance(error, OSError) and error.errno == errno.EBADF


# ---- tcp_recv, tcp_send ----


@pytest.mark.parametrize("as_fd", [False, True])
def test_tcp_functions_take_sockets_of_any_kind(as_fd: bool) -> None:
    def exchange(one: Any, peer: socket.socket) -> None:
        sock = one.fileno() if as_fd else one
        assert tcp_send(sock, b"hello") == 5
        assert tcp_send_once(sock, bytearray(b"!")) == 1
        assert peer.recv(10) == b"hello!"
        peer.send(b"0123456789")
        assert tcp_recv(sock, 2) == b"01"
        buffer = bytearray(4)
        assert tcp_recv(sock, buffer, 3) == 3
        assert buffer == b"234\0"
        assert tcp_recv(sock, buffer, 4, socket.MSG_PEEK) == 4
        assert tcp_recv(sock, buffer, n=4, flags=0) == 4
        assert buffer == b"5678"
        assert tcp_recv_alloc(sock, 10) == b"9"
        with pytest.raises(ValueError, match="too small"):
            tcp_recv(sock, buffer, 5)
        reader = go(tcp_recv, sock, 100)
        parked_on(one)
        peer.send(b"later")
        assert join(reader) == [b"later"]
        peer.close()
        assert tcp_recv(sock, 5) == b""
        assert tcp_recv(sock, buffer, 4) == 0

    def main() -> None:
        with pair() as (ours, peer):
            exchange(ours, peer)
        with plain_pair() as (left, right):
            exchange(left, right)
            assert os.get_blocking(left.fileno())

    run(main)


def test_tcp_send_sends_all_while_the_peer_reads_slowly() -> None:
    data = os.urandom(8 * MEGABYTE)

    def main() -> None:
        with plain_pair() as (left, right):
            got: list[bytes] = []

            def read() -> None:
                size = 0
                while size < len(data):
                    got.append(right.recv(MEGABYTE))
                    size += len(got[-1])

            reader = threading.Thread(target=read)
            reader.start()
            assert tcp_send(left, data) == len(data)
            reader.join()
            assert b"".join(got) == data

    both(main)


def test_tcp_arguments() -> None:
    with plain_pair() as (left, _right):
        for call in (
            lambda: tcp_recv(left),
            lambda: tcp_recv(left, "5"),
            lambda: tcp_recv(left, 5, 5, 5),
            lambda: tcp_recv(object(), 5),
            lambda: tcp_recv(left, bytearray(5), 5, unknown=1),
            lambda: tcp_send(left, "text"),
            lambda: tcp_send(left),
        ):
            with pytest.raises(TypeError):
                call()
        with pytest.raises(ValueError):
            tcp_recv(left, -1)
    with pipe() as (reader, _writer):
        error = failure(tcp_recv, reader, 5)
        assert isinstance(error, OSError) and error.errno == errno.ENOTSOCK
