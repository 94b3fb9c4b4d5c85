"""Closing while others use the socket, and what peers' ends look like."""

from __future__ import annotations

import errno
import gc
import os
import socket
import threading

import pytest
from socket_support import (
    LIMIT,
    failure,
    go,
    join,
    listener,
    own_pair,
    pair,
    parked_on,
    read_all,
    reset,
    run,
)

import runloom_c
from runloom.sync.socket import Socket, tcp_connect, tcp_listen


def is_errno(error: BaseException | None, number: int) -> bool:
    return isinstance(error, OSError) and error.errno == number


def test_T04_reset_before_accept() -> None:
    def main() -> None:
        with listener() as server:
            reset(socket.create_connection(server.getsockname()))
            ours, _ = server.accept()
            fd = ours.fileno()
            with ours, pytest.raises(ConnectionResetError):
                ours.recv(10)
            assert is_errno(failure(os.fstat, fd), errno.EBADF)
            # The listener lives.
            with socket.create_connection(server.getsockname()):
                server.accept()[0].close()

    run(main)


def test_T06_close_wakes_the_reader() -> None:
    def main() -> None:
        with pair() as (ours, _peer):
            fd = ours.fileno()
            reader = go(failure, ours.recv, 100)
            parked_on(ours)
            ours.close()
            (error,) = join(reader)
            assert is_errno(error, errno.EBADF), error
            assert ours.fileno() == -1
            assert is_errno(failure(os.fstat, fd), errno.EBADF)

    run(main)


def test_T06_close_wakes_every_kind_of_waiter() -> None:
    def main() -> None:
        with pair() as (ours, _peer):
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            waiters = [
                go(failure, ours.recv, 100),
                go(failure, ours.recv_into, bytearray(10)),  # queues behind the first
                go(failure, ours.sendall, bytes(50 << 20)),
                go(failure, runloom_c.wait_fd, ours.fileno(), 1),
            ]
            parked_on(ours)
            runloom_c.sched_sleep(0.01)
            ours.close()
            for error in join(*waiters):
                assert is_errno(error, errno.EBADF), error

    run(main)


def test_T07_close_races_with_the_park() -> None:
    """The close lands between the reader's EAGAIN and its park, or before, or after."""

    def main() -> None:
        with listener() as server:
            for round_ in range(1000):
                peer = socket.create_connection(server.getsockname())
                ours, _ = server.accept()
                reader = go(failure, ours.recv, 10)
                for _ in range(round_ % 3):
                    runloom_c.sched_yield()
                closer = threading.Thread(target=ours.close) if round_ % 10 == 0 else None
                if closer:
                    closer.start()
                else:
                    ours.close()
                # Takes the number that was closed, with something to read.
                left, right = socket.socketpair()
                right.send(b"other")
                (error,) = join(reader)
                assert is_errno(error, errno.EBADF), error
                if closer:
                    closer.join()
                assert left.recv(10) == b"other"
                for each in (left, right, peer):
                    each.close()

    run(main)


def test_T08_closing_the_listener_ends_accept() -> None:
    def main() -> None:
        server = tcp_listen("127.0.0.1", 0)
        address = server.getsockname()
        waiting = [go(failure, server.accept) for _ in range(3)]
        parked_on(server)
        server.close()
        # The port is free at once.
        tcp_listen(*address).close()
        for error in join(*waiting):
            assert is_errno(error, errno.EBADF), error

    run(main)


def test_T08_shutting_the_listener_down_ends_accept() -> None:
    def main() -> None:
        with listener() as server:
            waiting = go(failure, server.accept)
            parked_on(server)
            server.shutdown(socket.SHUT_RDWR)
            (error,) = join(waiting)
            assert is_errno(error, errno.EINVAL), error

    run(main)


def test_T16_a_reset_never_reads_as_the_end() -> None:
    """The bytes that came before the reset come first, as on the plain kernel."""

    def main() -> None:
        for _ in range(20):
            with pair() as (ours, peer):
                reader = go(ours.recv, 3)
                parked_on(ours)
                peer.send(b"12345")
                reset(peer)
                assert join(reader) == [b"123"]
                assert ours.recv(3) == b"45"
                with pytest.raises(ConnectionResetError):
                    ours.recv(3)

    run(main)


def test_T26_the_peer_has_gone() -> None:
    def main() -> None:
        with pair() as (ours, peer):
            peer.close()
            assert ours.recv(1) == b""
            assert ours.send(b"a") == 1
            error = None
            while error is None:  # until the reset has come back
                error = failure(ours.send, b"b")
            assert is_errno(error, errno.EPIPE), error
        with pair() as (ours, peer):
            ours.sendall(b"not read")
            peer.recv(1, socket.MSG_PEEK)
            peer.close()
            with pytest.raises(ConnectionResetError):
                ours.recv(10)

    run(main)


def test_everything_on_a_closed_socket_is_EBADF() -> None:
    def main() -> None:
        with pair() as (ours, _peer):
            ours.close()
            ours.close()
            calls = {
                "recv": (1,),
                "recv_into": (bytearray(1),),
                "recvfrom": (1,),
                "send": (b"x",),
                "sendall": (b"x",),
                "accept": (),
                "listen": (),
                "connect": (("127.0.0.1", 1),),
                "bind": (("127.0.0.1", 0),),
                "getsockname": (),
                "getpeername": (),
                "getsockopt": (socket.SOL_SOCKET, socket.SO_ERROR),
                "setsockopt": (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
                "shutdown": (socket.SHUT_RDWR,),
                "dup": (),
            }
            for name, arguments in calls.items():
                error = failure(getattr(ours, name), *arguments)
                assert is_errno(error, errno.EBADF), (name, error)
            assert ours.connect_ex(("127.0.0.1", 1)) == errno.EBADF
            assert ours.fileno() == -1
            assert ours.detach() == -1
            assert "[closed]" in repr(ours)

    run(main)
    # Not in a fiber either.
    main()


def test_closing_does_not_touch_who_took_the_number() -> None:
    def main() -> None:
        with own_pair() as (client, accepted):
            number = accepted.fileno()
            accepted.close()
            os.dup2(2, number)
            try:
                accepted.close()
                os.fstat(number)
            finally:
                os.close(number)
            assert client.recv(1) == b""

    run(main)


def test_detach_hands_out_a_blocking_descriptor_and_ends_the_readers() -> None:
    def main() -> None:
        with pair() as (ours, peer):
            reader = go(failure, ours.recv, 1)
            parked_on(ours)
            fd = ours.detach()
            (error,) = join(reader)
            assert is_errno(error, errno.EBADF), error
            assert ours.fileno() == -1
            assert os.get_blocking(fd)
            with socket.socket(fileno=fd) as plain:
                plain.send(b"hi")
                assert peer.recv(2) == b"hi"

    run(main)


def test_detach_outside_of_fibers_leaves_a_socket_that_is_waited_on() -> None:
    """Nobody runs the fiber that waits, so waiting for it to leave would be for ever."""
    mine, peer = socket.socketpair()
    with peer, Socket(fileno=mine.detach()) as ours:
        file = ours.makefile("rb")
        reader = go(ours.recv, 1)
        go(runloom_c.sched_stop)
        runloom_c.run()
        for _ in range(2):
            with pytest.raises(OSError) as caught:
                ours.detach()
            assert caught.value.errno == errno.EBUSY
        file.close()
        peer.send(b"x")
        runloom_c.run()
        assert join(reader) == [b"x"]
        with socket.socket(fileno=ours.detach()) as plain:
            assert plain.getblocking()
            plain.send(b"hi")
            assert peer.recv(2) == b"hi"


def test_a_detached_descriptor_can_be_taken_over_again() -> None:
    def main() -> None:
        with pair() as (ours, peer):
            fd = ours.detach()
            with Socket(fileno=fd) as again:
                assert (again.family, again.type) == (socket.AF_INET, socket.SOCK_STREAM)
                assert again.fileno() == fd
                assert not os.get_blocking(fd)
                with pytest.raises(OSError) as caught:
                    Socket(fileno=fd)
                assert caught.value.errno == errno.EBUSY
                reader = go(again.recv, 10)
                parked_on(again)
                peer.send(b"again")
                assert join(reader) == [b"again"]

    run(main)


def test_an_unclosed_socket_warns_and_is_closed() -> None:
    def main() -> None:
        sock = Socket()
        fd = sock.fileno()
        with pytest.warns(ResourceWarning, match=r"unclosed <runloom\.sync\.Socket fd="):
            del sock
            gc.collect()
        assert is_errno(failure(os.fstat, fd), errno.EBADF)

    run(main)
    main()


def test_shutdown_ends_one_direction() -> None:
    def main() -> None:
        with own_pair() as (client, accepted):
            client.sendall(b"request")
            client.shutdown(socket.SHUT_WR)
            assert read_all(accepted) == b"request"
            accepted.sendall(b"reply")
            accepted.close()
            assert read_all(client) == b"reply"
            with pytest.raises(BrokenPipeError):
                client.send(b"more")

    run(main)


def test_connections_do_not_leak_descriptors() -> None:
    def serve(server: Socket) -> None:
        while True:
            try:
                conn, _ = server.accept()
            except OSError:
                return
            with conn:
                conn.sendall(conn.recv(10))

    def main() -> None:
        before = len(os.listdir("/proc/self/fd"))
        with listener() as server:
            serving = go(serve, server)
            for _ in range(300):
                with tcp_connect(*server.getsockname(), timeout=LIMIT) as client:
                    client.sendall(b"x")
                    assert client.recv(10) == b"x"
        join(serving)
        assert len(os.listdir("/proc/self/fd")) <= before

    run(lambda: tcp_listen("127.0.0.1", 0).close())  # whatever is opened once, is
    run(main)
