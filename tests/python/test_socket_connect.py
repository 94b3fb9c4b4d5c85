"""Connecting, listening, names and addresses, and the type itself."""

from __future__ import annotations

import copy
import errno
import io
import os
import pickle
import resource
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

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
    read_exactly,
    run,
)

import runloom_c
from runloom.sync.socket import Socket, tcp_connect, tcp_listen


@contextmanager
def refusing() -> Iterator[tuple[str, int]]:
    """An address that nobody listens on, and nobody else gets."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()


@contextmanager
def silent() -> Iterator[tuple[str, int]]:
    """An address where connects are not answered: its queue is full."""
    with socket.socket() as sock, ExitStack() as stack:
        sock.bind(("127.0.0.1", 0))
        sock.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(sock.getsockname())
        time.sleep(0.05)
        yield sock.getsockname()


def in_and_out_of_fibers(body: Any) -> None:
    run(body)
    body()


def test_T30_a_connect_that_is_not_answered_times_out() -> None:
    def main() -> None:
        with silent() as address:
            failure(lambda: tcp_connect(*address, timeout=0.001))  # whatever is opened once, is
            before = len(os.listdir("/proc/self/fd"))
            begin = time.monotonic()
            with pytest.raises(TimeoutError, match=f"timed out: 127.0.0.1:{address[1]}"):
                tcp_connect(*address, timeout=0.2)
            assert time.monotonic() - begin >= 0.2
            assert len(os.listdir("/proc/self/fd")) == before

    in_and_out_of_fibers(main)


def test_T32_a_refusal_is_told_once_with_the_address() -> None:
    def main() -> None:
        with refusing() as address, Socket() as sock:
            with pytest.raises(ConnectionRefusedError, match=f"127.0.0.1:{address[1]}") as caught:
                sock.connect(address)
            assert caught.value.errno == errno.ECONNREFUSED
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
            assert sock.connect_ex(address) in (errno.ECONNREFUSED, errno.ECONNABORTED)
            with pytest.raises(ConnectionRefusedError, match=f"127.0.0.1:{address[1]}"):
                tcp_connect(*address)

    in_and_out_of_fibers(main)


def test_T34_a_cancel_ends_connect_and_nothing_is_left() -> None:
    def main() -> None:
        with silent() as address:
            before = len(os.listdir("/proc/self/fd"))
            connecting = go(failure, lambda: tcp_connect(*address))
            runloom_c.sched_sleep(0.01)
            connecting.cancel()
            (error,) = join(connecting)
            assert isinstance(error, runloom_c.Cancelled)
            assert len(os.listdir("/proc/self/fd")) == before

    run(lambda: tcp_listen("127.0.0.1", 0).close())
    run(main)


def test_T34_whatever_step_of_a_connect_it_ends_in_no_descriptor_is_left() -> None:
    """By name, so that there are all steps: the resolution on another thread, then the connect."""

    def connect(port: int) -> None:
        with tcp_connect("localhost", port):
            pass

    def main() -> None:
        with tcp_listen("localhost", 0) as server:
            port = server.getsockname()[1]
            connect(port)
            server.accept()[0].close()
            before = sorted(os.listdir("/proc/self/fd"))
            ends = set()
            for i in range(300):
                fiber = go(failure, connect, port)
                for _ in range(i % 30 + 1):  # not before it has begun
                    runloom_c.sched_yield()
                fiber.cancel()
                ends.add(type(join(fiber)[0]).__name__)
            assert "Cancelled" in ends
            server.settimeout(0)
            while not isinstance(failure(lambda: server.accept()[0].close()), BlockingIOError):
                pass
            assert sorted(os.listdir("/proc/self/fd")) == before

    run(main)


def test_a_non_blocking_connect() -> None:
    def main() -> None:
        with listener() as server, Socket() as sock:
            sock.setblocking(False)
            with pytest.raises(BlockingIOError) as caught:
                sock.connect(server.getsockname())
            assert caught.value.errno == errno.EINPROGRESS
            assert runloom_c.wait_fd(sock.fileno(), 2) == 2
            assert sock.connect_ex(server.getsockname()) in (0, errno.EISCONN)
            sock.settimeout(LIMIT)
            accepted, address = server.accept()
            with accepted:
                assert address == sock.getsockname()
                accepted.sendall(b"hi")
                assert sock.recv(2) == b"hi"

    in_and_out_of_fibers(main)


def test_connect_twice_does_no_harm() -> None:
    def main() -> None:
        with listener() as server, tcp_connect(*server.getsockname()) as sock:
            accepted, _ = server.accept()
            with accepted:
                # The first one of them tells the kernel that its answer was seen.
                assert sock.connect_ex(server.getsockname()) in (0, errno.EISCONN)
                assert sock.connect_ex(server.getsockname()) == errno.EISCONN
                sock.sendall(b"as before")
                assert accepted.recv(20) == b"as before"

    in_and_out_of_fibers(main)


def test_a_socket_that_is_connected_to_itself_is_refused() -> None:
    def main() -> None:
        with Socket() as sock:
            sock.bind(("127.0.0.1", 0))
            with pytest.raises(ConnectionRefusedError, match="connected to itself"):
                sock.connect(sock.getsockname())

    in_and_out_of_fibers(main)


def test_names_are_resolved() -> None:
    def main() -> None:
        with listener() as server:
            port = server.getsockname()[1]
            for host in ("localhost", "127.1", b"localhost", "0x7f.1", "", None):
                with tcp_connect(host, port) as sock:
                    assert sock.getpeername()[1] == port
                server.accept()[0].close()
            with Socket() as sock:
                sock.connect(("localhost", port))
                assert sock.getpeername() == ("127.0.0.1", port)
            with pytest.raises(socket.gaierror, match=r"no\.\.name"):
                tcp_connect("no..name", port)  # nobody is asked for it
            with pytest.raises(socket.gaierror):
                Socket().connect(("::1", port))

    in_and_out_of_fibers(main)


def test_ipv6() -> None:
    def main() -> None:
        try:
            server = tcp_listen("::1", 0)
        except OSError:
            pytest.skip("no IPv6 here")
        with server:
            assert server.family == socket.AF_INET6
            with tcp_connect("::1", server.getsockname()[1]) as client:
                accepted, address = server.accept()
                with accepted:
                    assert address == client.getsockname()
                    assert address[0] == "::1" and address[2:] == (0, 0)
            with Socket(socket.AF_INET6) as client:
                client.connect(server.getsockname())
                assert client.getpeername() == server.getsockname()

    run(main)


def test_listen_refuses_a_taken_port_and_names_it() -> None:
    with listener() as server:
        port = server.getsockname()[1]
        with pytest.raises(OSError, match=f"127.0.0.1:{port}") as caught:
            tcp_listen("127.0.0.1", port)
        assert caught.value.errno == errno.EADDRINUSE


def test_T50_reuse_port_and_backlog() -> None:
    with tcp_listen("127.0.0.1", 0, reuse_port=True, backlog=7) as first:
        with tcp_listen(*first.getsockname(), reuse_port=True) as second:
            assert second.getsockname() == first.getsockname()
        # tcpi_sacked of a listener is its backlog.
        info = first.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        assert int.from_bytes(info[28:32], "little") == 7


def test_source_address_and_options() -> None:
    def main() -> None:
        with listener() as server:
            address = server.getsockname()
            with tcp_connect(*address, source_address=("127.0.0.2", 0)) as client:
                accepted, peer = server.accept()
                with accepted:
                    assert peer[0] == "127.0.0.2"
                    for sock in (client, accepted):
                        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
            with tcp_connect(*address, no_delay=False) as client:
                assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 0
                assert client.gettimeout() is None

    run(main)


@pytest.mark.parametrize("function", [tcp_connect, tcp_listen])
def test_wrong_arguments(function: Any) -> None:
    with pytest.raises(TypeError):
        function("127.0.0.1")
    with pytest.raises(TypeError):
        function("127.0.0.1", 0, 5)
    with pytest.raises(TypeError):
        function("127.0.0.1", 0, nonsense=1)
    with pytest.raises(TypeError):
        function("127.0.0.1", "80")
    with pytest.raises(TypeError):
        function(5, 80)
    with pytest.raises(OverflowError):
        function("127.0.0.1", 65536)
    with pytest.raises(ValueError):
        function("a\0b", 80)


def test_T01_accept_out_of_descriptors() -> None:
    """The error is the caller's, the connection stays in the queue, and the listener lives."""

    def main() -> None:
        with listener() as server, socket.create_connection(server.getsockname()) as client:
            limits = resource.getrlimit(resource.RLIMIT_NOFILE)
            server.settimeout(LIMIT)
            fillers: list[int] = []
            resource.setrlimit(
                resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, limits[1])
            )
            try:
                while failure(lambda: fillers.append(os.dup(0))) is None:
                    pass
                with pytest.raises(OSError) as caught:
                    server.accept()
                assert caught.value.errno == errno.EMFILE
            finally:
                for fd in fillers:
                    os.close(fd)
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            accepted, _ = server.accept()
            with accepted:
                accepted.sendall(b"late")
                assert client.recv(4) == b"late"

    in_and_out_of_fibers(main)


def test_T48_one_of_many_acceptors_wakes_for_a_connection() -> None:
    def main() -> None:
        with listener() as server:
            served: list[int] = []

            def accept(name: int) -> None:
                server.accept()[0].close()
                served.append(name)

            fibers = []
            for name in range(8):
                fibers.append(go(accept, name))
                runloom_c.sched_yield()
            for i in range(8):
                socket.create_connection(server.getsockname()).close()
                join(fibers[i])
                assert served == list(range(i + 1))  # who came first, and nobody else

    run(main)


# ---- the type ----


def test_new_without_init_is_a_closed_socket() -> None:
    sock = Socket.__new__(Socket)
    assert sock.fileno() == -1
    assert "[closed]" in repr(sock)
    for call in (lambda: sock.recv(1), lambda: sock.send(b"x"), sock.accept, sock.listen):
        error = failure(call)
        assert isinstance(error, OSError) and error.errno == errno.EBADF
    sock.close()
    sock.__init__()  # type: ignore[misc]
    assert sock.fileno() >= 0
    with pytest.raises(RuntimeError, match="already"):
        sock.__init__()  # type: ignore[misc]
    sock.close()


def test_it_may_be_subclassed() -> None:
    class Connection(Socket):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.lines = 0

        def send_line(self, text: str) -> None:
            self.sendall(text.encode() + b"\n")
            self.lines += 1

    def main() -> None:
        with listener() as server, Connection() as sock:
            sock.connect(server.getsockname())
            sock.send_line("hello")
            assert sock.lines == 1
            accepted, _ = server.accept()
            with accepted:
                assert accepted.recv(10) == b"hello\n"
                assert type(accepted) is Socket

    in_and_out_of_fibers(main)
    lost = Connection()
    reference = weakref.ref(lost)
    cycle = [lost]
    cycle.append(cycle)  # type: ignore[arg-type]
    lost.close()
    del lost, cycle
    import gc

    gc.collect()
    assert reference() is None


def test_attributes() -> None:
    with Socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as sock:
        assert sock.family is socket.AF_INET
        assert sock.type is socket.SOCK_STREAM
        assert sock.proto == socket.IPPROTO_TCP
        assert not sock.get_inheritable()
        sock.set_inheritable(True)
        assert os.get_inheritable(sock.fileno())
        assert not os.get_blocking(sock.fileno())
        assert f"fd={sock.fileno()}" in repr(sock)
        assert weakref.ref(sock)() is sock
        with pytest.raises(TypeError):
            pickle.dumps(sock)
        with pytest.raises(TypeError):
            copy.copy(sock)
        with pytest.raises(AttributeError):
            sock.nonsense = 1  # type: ignore[attr-defined]
    with Socket(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as sock:
        assert sock.gettimeout() == 0
        assert sock.type is socket.SOCK_STREAM


def test_making_it_from_what_is_no_socket() -> None:
    with open(__file__) as file:
        error = failure(lambda: Socket(fileno=file.fileno()))
        assert isinstance(error, OSError) and error.errno == errno.ENOTSOCK
        os.fstat(file.fileno())
    with pytest.raises(ValueError, match="negative"):
        Socket(fileno=-1)
    for wrong in (1.5, "3"):
        with pytest.raises(TypeError):
            Socket(fileno=wrong)  # type: ignore[arg-type]
    error = failure(lambda: Socket(fileno=1 << 20))
    assert isinstance(error, OSError) and error.errno == errno.EBADF
    error = failure(lambda: Socket(socket.AF_INET, 99))
    assert isinstance(error, OSError) and error.errno == errno.EINVAL


def test_options_read_back() -> None:
    with Socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        linger = b"\1\0\0\0\5\0\0\0"
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8) == linger
        error = failure(sock.getsockopt, socket.SOL_SOCKET, 9999)
        assert isinstance(error, OSError) and error.errno == errno.ENOPROTOOPT


def test_dup_is_a_second_owner() -> None:
    def main() -> None:
        with pair() as (ours, peer), ours.dup() as second:
            assert second.fileno() != ours.fileno()
            second.sendall(b"one")
            ours.close()
            second.sendall(b"two")
            assert read_exactly(peer, 6) == b"onetwo"
            reader = go(second.recv, 10)
            parked_on(second)
            peer.send(b"back")
            assert join(reader) == [b"back"]

    run(main)


# ---- OS threads ----


def test_a_thread_waits_without_the_gil() -> None:
    with own_pair() as (left, right):
        got: list[bytes] = []
        reader = threading.Thread(target=lambda: got.append(right.recv(10)))
        reader.start()
        time.sleep(0.02)
        left.sendall(b"x")
        reader.join(LIMIT)
        assert got == [b"x"]
        right.settimeout(0.02)
        with pytest.raises(TimeoutError):
            right.recv(1)


def test_closing_wakes_a_thread() -> None:
    with own_pair() as (_left, right):
        errors: list[Any] = []
        reader = threading.Thread(target=lambda: errors.append(failure(right.recv, 10)))
        reader.start()
        time.sleep(0.02)
        right.close()
        reader.join(LIMIT)
        assert errors[0].errno == errno.EBADF


def test_a_fiber_and_a_thread_talk() -> None:
    data = os.urandom(5 << 20)

    def client(address: tuple[str, int]) -> None:
        with tcp_connect(*address) as sock:
            sender = threading.Thread(
                target=lambda: (sock.sendall(data), sock.shutdown(socket.SHUT_WR))
            )
            sender.start()
            pieces = []
            while piece := sock.recv(1 << 16):
                pieces.append(piece)
            sender.join()
            assert b"".join(pieces) == data

    def main() -> None:
        with listener() as server:
            errors: list[Any] = []
            thread = threading.Thread(
                target=lambda: errors.append(failure(client, server.getsockname()))
            )
            thread.start()
            accepted, _ = server.accept()
            with accepted:
                while piece := accepted.recv(1 << 15):
                    accepted.sendall(piece)
        thread.join(LIMIT)
        assert errors == [None]

    run(main)


# ---- makefile ----


def test_makefile_reads_and_writes_lines() -> None:
    def main() -> None:
        with own_pair() as (left, right):
            with left.makefile("rw", newline="\n") as ours, right.makefile("rw") as theirs:
                assert ours.mode == "rw"
                ours.write("one\ntwo\n")
                ours.flush()
                assert theirs.readline() == "one\n"
                assert theirs.readline() == "two\n"
                theirs.write("three\n")
                theirs.flush()
                assert ours.readline() == "three\n"
            with left.makefile("wb") as binary, right.makefile("rb", buffering=0) as raw:
                binary.write(b"x" * 20_000)
                binary.flush()
                assert isinstance(raw, io.RawIOBase)
                got = 0
                while got < 20_000:
                    got += len(raw.read(65536))
                assert raw.fileno() == right.fileno()
                assert not raw.writable() and raw.readable() and not raw.seekable()

    in_and_out_of_fibers(main)


def test_a_socket_lives_as_long_as_its_files() -> None:
    def main() -> None:
        with own_pair() as (left, right):
            file = right.makefile("rb")
            right.close()
            assert right.fileno() >= 0
            left.sendall(b"still here\n")
            assert file.readline() == b"still here\n"
            file.close()
            file.close()
            assert right.fileno() == -1
            assert left.recv(1) == b""

    run(main)


def test_a_file_waits_timed_and_not_at_all() -> None:
    def main() -> None:
        with pair() as (ours, peer), ours.makefile("rb") as file:
            ours.settimeout(0.02)
            with pytest.raises(TimeoutError):
                file.read(1)
            with pytest.raises(OSError, match="timed out object"):
                file.read(1)
        with pair() as (ours, peer), ours.makefile("rb", buffering=0) as file:
            ours.setblocking(False)
            assert file.read(1) is None
            peer.close()

    run(main)


def test_makefile_refuses_nonsense() -> None:
    with Socket() as sock:
        for mode in ("x", "a", "r+"):
            with pytest.raises(ValueError, match="invalid mode"):
                sock.makefile(mode)
        with pytest.raises(ValueError, match="unbuffered"):
            sock.makefile("r", 0)
        with pytest.raises(TypeError):
            sock.makefile(nonsense=1)
