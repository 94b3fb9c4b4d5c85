"""What happens on a socket while nobody waits costs nothing, and is told when somebody asks."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import ExitStack

import pytest
from socket_support import (
    LIMIT,
    failure,
    go,
    idle_cpu,
    join,
    listener,
    pair,
    parked_on,
    reset,
    run,
)

import runloom_c
from runloom.sync import Socket

QUIET = 0.2  # of a core; a loop that spins takes all of one


def unix_pair() -> tuple[Socket, socket.socket]:
    mine, peer = socket.socketpair()
    peer.settimeout(LIMIT)
    return Socket(fileno=mine.detach()), peer


def test_T12_a_duplicate_keeps_the_description_and_nothing_spins() -> None:
    def main() -> None:
        sock, peer = unix_pair()
        with peer:
            reader = go(failure, sock.recv, 1)
            parked_on(sock)
            with sock.dup() as copy:
                sock.close()  # the poller knew it by a number that is gone now
                (error,) = join(reader)
                assert isinstance(error, OSError) and error.errno == errno.EBADF
                peer.send(b"unread")
                assert idle_cpu(0.5) < QUIET
                assert copy.recv(10) == b"unread"

    run(main)


def test_T12_a_foreign_descriptor_closed_behind_a_wait_has_a_duplicate() -> None:
    def main() -> None:
        mine, peer = socket.socketpair()
        with mine, peer:
            number = os.dup(mine.fileno())
            waiter = go(failure, runloom_c.wait_fd, number, 1, 300)
            parked_on(number)
            os.close(number)
            peer.send(b"x")
            join(waiter)
            assert idle_cpu(0.5) < QUIET
            assert mine.recv(10) == b"x"

    run(main)


def test_T17_a_half_open_peer_without_a_reader() -> None:
    def main() -> None:
        sock, peer = unix_pair()
        with sock:
            reader = go(sock.recv, 1)
            parked_on(sock)
            peer.send(b"x")
            join(reader)
            peer.close()  # a hang-up, which no poller can be told to leave out
            assert idle_cpu(1.0) < QUIET
            assert sock.recv(1) == b""

    run(main)


def test_T18_resets_of_idle_connections_wait_for_their_owners() -> None:
    def main() -> None:
        with ExitStack() as stack:
            server = stack.enter_context(listener())
            ours, peers = [], []
            for _ in range(100):
                peers.append(socket.create_connection(server.getsockname(), timeout=LIMIT))
                ours.append(stack.enter_context(server.accept()[0]))
            readers = [go(sock.recv, 1) for sock in ours]
            for sock in ours:
                parked_on(sock)
            for peer in peers:
                peer.send(b"x")
            assert join(*readers) == [b"x"] * 100
            for peer in peers:
                reset(peer)
            assert idle_cpu(1.0) < QUIET
            errors = [failure(sock.recv, 1) for sock in ours]
            assert all(isinstance(error, ConnectionResetError) for error in errors)

    run(main)


def test_T20_a_socket_that_is_not_connected_is_hung_up() -> None:
    def main() -> None:
        with listener() as server, Socket() as sock, socket.socket() as foreign:
            for call in (
                lambda: sock.recv(1),
                lambda: sock.recv_into(bytearray(1)),
                lambda: runloom_c.tcp_recv(sock, 1),
                lambda: runloom_c.tcp_recv(foreign, 1),
                lambda: runloom_c.fd_read(foreign, 1),
            ):
                with pytest.raises(OSError) as caught:
                    call()
                assert caught.value.errno == errno.ENOTCONN
            for each in (sock, foreign):
                assert runloom_c.wait_fd(each, 1, LIMIT * 1000) & 1
            assert idle_cpu(0.5) < QUIET
            # The hang-up is over when it connects, and was no end of the connection.
            sock.connect(server.getsockname())
            accepted, _ = server.accept()
            with accepted:
                reader = go(sock.recv, 10)
                parked_on(sock)
                accepted.sendall(b"connected")
                assert join(reader) == [b"connected"]
            assert idle_cpu(0.3) < QUIET

    run(main)


def test_unread_ends_cost_nothing() -> None:
    def main() -> None:
        with pair() as (ours, peer):
            reader = go(ours.recv, 1)
            parked_on(ours)
            peer.send(b"x")
            join(reader)
            peer.shutdown(socket.SHUT_WR)
            assert idle_cpu(0.5) < QUIET
            assert ours.recv(1) == b""

    run(main)
