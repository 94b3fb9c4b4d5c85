"""Bytes through sockets: order, bounds, flags, buffers, cancellation."""

from __future__ import annotations

import array
import errno
import hashlib
import io
import os
import resource
import select
import socket
import tempfile
import threading
import time
from typing import Any

import pytest
from socket_support import (
    LIMIT,
    failure,
    go,
    idle_cpu,
    join,
    own_pair,
    pair,
    parked_on,
    read_all,
    read_exactly,
    run,
)

import runloom_c
from runloom.sync.socket import Socket

MEGABYTE = 1 << 20


def test_T14_all_is_read_before_the_end() -> None:
    data = os.urandom(MEGABYTE)

    def main() -> None:
        with pair() as (ours, peer):
            sender = threading.Thread(target=lambda: (peer.sendall(data), peer.close()))
            sender.start()
            assert read_all(ours, 4096) == data
            sender.join()

    run(main)


@pytest.mark.parametrize("size", [1, 100, 2048, 2049, 16384, 65536, 65537, MEGABYTE])
def test_recv_returns_what_was_sent_whatever_the_buffer(size: int) -> None:
    data = os.urandom(3 * size + 17)

    def main() -> None:
        with own_pair() as (left, right):
            sender = go(lambda: (left.sendall(data), left.shutdown(socket.SHUT_WR)))
            pieces = []
            while piece := right.recv(size):
                assert type(piece) is bytes
                assert len(piece) <= size
                pieces.append(piece)
            assert b"".join(pieces) == data
            join(sender)

    run(main)


def test_fibers_that_read_at_once_do_not_mix_their_bytes() -> None:
    """Small reads go through memory that all share."""

    def echo(sock: Socket) -> None:
        while data := sock.recv(1000):
            sock.sendall(data)

    def ask(sock: Socket, who: int) -> None:
        for round_ in range(50):
            message = bytes([who]) * (1 + (who * 7 + round_ * 13) % 900)
            sock.sendall(message)
            assert read_exactly(sock, len(message)) == message

    def main() -> None:
        from contextlib import ExitStack

        with ExitStack() as stack:
            pairs = [stack.enter_context(own_pair()) for _ in range(40)]
            servers = [go(echo, right) for _, right in pairs]
            join(*(go(ask, left, i) for i, (left, _) in enumerate(pairs)))
            for left, _ in pairs:
                left.close()
            join(*servers)

    run(main)


def test_an_idle_recv_holds_no_buffer() -> None:
    def main() -> None:
        def resident() -> int:
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * resource.getpagesize()

        from contextlib import ExitStack

        with ExitStack() as stack:
            pairs = [stack.enter_context(own_pair()) for _ in range(100)]
            before = resident()
            readers = [go(right.recv, MEGABYTE) for _, right in pairs]
            for _, right in pairs:
                parked_on(right)
            # A fiber's stack and a bit; a hundred buffers of 1 MiB would be 100 MiB.
            assert resident() - before < 20 * MEGABYTE
            for left, _ in pairs:
                left.send(b"x")
            assert join(*readers) == [b"x"] * 100

    run(main)


def test_T21_no_arm_stays_after_backpressure_or_connect() -> None:
    def main() -> None:
        with pair() as (ours, peer):
            data = bytes(20 * MEGABYTE)
            sender = go(ours.sendall, data)
            parked_on(ours)
            reader = threading.Thread(target=read_exactly_thread, args=(peer, len(data)))
            reader.start()
            join(sender)
            reader.join()
            assert idle_cpu(1.0) < 0.2
        with own_pair():
            assert idle_cpu(0.5) < 0.2

    def read_exactly_thread(peer: socket.socket, count: int) -> None:
        while count > 0:
            count -= len(peer.recv(MEGABYTE))

    run(main)


def test_T22_unread_bytes_without_a_reader_cost_nothing() -> None:
    def main() -> None:
        with pair() as (ours, peer):
            reader = go(ours.recv, 3)
            parked_on(ours)
            peer.send(b"abcdef")
            assert join(reader) == [b"abc"]
            assert idle_cpu(1.0) < 0.2
            assert ours.recv(10) == b"def"

    run(main)


def test_T24_two_readers_are_served_in_order() -> None:
    def main() -> None:
        with pair() as (ours, peer):
            served: list[str] = []

            def read(name: str) -> bytes:
                data = ours.recv(100)
                served.append(name)
                return data

            first = go(read, "first")
            parked_on(ours)
            second = go(read, "second")
            runloom_c.sched_sleep(0.01)
            peer.send(b"a" * 100)
            join(first)
            assert not second.done
            peer.send(b"b" * 100)
            assert join(first, second) == [b"a" * 100, b"b" * 100]
            assert served == ["first", "second"]
            # A writer besides a reader is always allowed.
            reader = go(ours.recv, 1)
            parked_on(ours)
            ours.sendall(b"to you")
            assert peer.recv(10) == b"to you"
            peer.send(b"!")
            assert join(reader) == [b"!"]

    run(main)


def test_T27_the_timeout_bounds_the_whole_sendall() -> None:
    def main() -> None:
        with pair() as (ours, _peer):
            data = bytes(64 * MEGABYTE)
            ours.settimeout(0.5)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            begin = time.monotonic()
            with pytest.raises(TimeoutError):
                ours.sendall(data)
            assert time.monotonic() - begin >= 0.5
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            assert grown < 16 * 1024  # KiB

    run(main)


def test_T27_the_timeout_bounds_a_sendall_that_makes_progress() -> None:
    """Each transfer succeeds in time; together they take too long."""

    def main() -> None:
        with own_pair() as (left, right):
            left.settimeout(0.3)

            def drip() -> None:
                while right.recv(20_000):
                    runloom_c.sched_sleep(0.02)

            reader = go(drip)
            with pytest.raises(TimeoutError):
                left.sendall(bytes(64 * MEGABYTE))
            left.close()
            right.close()
            failure(join, reader)

    run(main)


def test_T28_a_slow_reader_loses_nothing() -> None:
    count, size = 400, 16 * 1024
    sent, read = hashlib.sha256(), hashlib.sha256()

    def main() -> None:
        with own_pair() as (left, right):

            def send() -> None:
                for i in range(count):
                    block = i.to_bytes(4, "big") * (size // 4)
                    sent.update(block)
                    left.sendall(block)
                left.shutdown(socket.SHUT_WR)

            sender = go(send)
            total = 0
            while data := right.recv(8192):
                read.update(data)
                total += len(data)
                if total % 5 == 0:
                    runloom_c.sched_sleep(0.0005)
            join(sender)
            assert total == count * size

    run(main)
    assert sent.digest() == read.digest()


def test_T29_a_sendall_that_was_cancelled_breaks_the_connection() -> None:
    def main() -> None:
        with pair() as (ours, _peer):
            sender = go(failure, ours.sendall, bytes(10 * MEGABYTE))
            parked_on(ours)
            sender.cancel()
            (error,) = join(sender)
            assert isinstance(error, runloom_c.Cancelled)
            for call in (ours.sendall, ours.send):
                with pytest.raises(BrokenPipeError):
                    call(b"the next request")

    run(main)


def test_a_sendall_that_sent_nothing_breaks_nothing() -> None:
    def main() -> None:
        with pair() as (ours, peer):
            while failure(fill, ours) is None:
                pass
            ours.settimeout(0.01)
            with pytest.raises(TimeoutError):
                ours.sendall(b"no room")
            reader = threading.Thread(target=drain, args=(peer,))
            reader.start()
            ours.settimeout(LIMIT)
            ours.sendall(b"room again")
            ours.shutdown(socket.SHUT_WR)
            runloom_c.sched_sleep(0.01)
            reader.join()

    def fill(sock: Socket) -> None:
        sock.setblocking(False)
        sock.send(bytes(MEGABYTE))

    def drain(peer: socket.socket) -> None:
        while peer.recv(MEGABYTE):
            pass

    run(main)


def test_a_cancel_ends_recv_and_accept() -> None:
    def main() -> None:
        with pair() as (ours, peer):
            reader = go(failure, ours.recv, 1)
            parked_on(ours)
            reader.cancel()
            (error,) = join(reader)
            assert isinstance(error, runloom_c.Cancelled)
            # The socket is as good as before.
            peer.send(b"x")
            assert ours.recv(1) == b"x"

    run(main)


def test_T42_waitall_fills_the_buffer() -> None:
    def main() -> None:
        with pair() as (ours, peer):
            for read in (
                lambda: ours.recv(8, socket.MSG_WAITALL),
                lambda: runloom_c.tcp_recv_alloc(ours.fileno(), 8, socket.MSG_WAITALL),
            ):
                reader = go(read)
                runloom_c.sched_yield()
                peer.send(b"1234")
                runloom_c.sched_sleep(0.02)
                assert not reader.done
                peer.send(b"5678")
                assert join(reader) == [b"12345678"]
            # What came before the timeout is returned, and the next call goes on after it.
            ours.settimeout(0.05)
            peer.send(b"abcd")
            assert ours.recv(8, socket.MSG_WAITALL) == b"abcd"
            peer.send(b"ef")
            peer.close()
            assert ours.recv(8, socket.MSG_WAITALL) == b"ef"
            assert ours.recv(8, socket.MSG_WAITALL) == b""

    run(main)


def test_T43_a_non_blocking_socket_never_waits() -> None:
    def main() -> None:
        with pair() as (ours, peer):
            ours.setblocking(False)
            assert ours.gettimeout() == 0.0
            assert not ours.getblocking()
            for call in (
                lambda: ours.recv(1),
                lambda: ours.recv_into(bytearray(1)),
                lambda: ours.recvfrom(1),
                lambda: ours.recv(8, socket.MSG_WAITALL),
            ):
                with pytest.raises(BlockingIOError) as caught:
                    call()
                assert caught.value.errno == errno.EAGAIN
            with pytest.raises(BlockingIOError):
                while True:
                    ours.send(bytes(MEGABYTE))
            with pytest.raises(BlockingIOError):
                ours.sendall(bytes(100))
            peer.send(b"x")
            while failure(ours.recv, 1) is not None:
                pass  # until it has come

    def accepts() -> None:
        with Socket() as server:
            server.bind(("127.0.0.1", 0))
            server.listen()
            server.settimeout(0)
            with pytest.raises(BlockingIOError):
                server.accept()

    for body in (main, accepts):
        run(body)
        body()  # outside of fibers


def test_T44_peek_never_consumes() -> None:
    def main() -> None:
        with pair() as (ours, peer):
            reader = go(ours.recv, 100, socket.MSG_PEEK)
            parked_on(ours)
            peer.send(b"peeked")
            assert join(reader) == [b"peeked"]
            assert ours.recv(3, socket.MSG_PEEK) == b"pee"
            assert ours.recv(100) == b"peeked"

    run(main)


def test_P06_the_buffer_can_not_be_resized_under_a_recv() -> None:
    def main() -> None:
        with pair() as (ours, peer):
            buffer = bytearray(10)
            reader = go(ours.recv_into, buffer)
            parked_on(ours)
            with pytest.raises(BufferError):
                buffer.append(1)
            with pytest.raises(BufferError):
                del buffer[:]
            view = memoryview(buffer)
            view.release()  # another view of it may go
            peer.send(b"hello")
            assert join(reader) == [5]
            assert buffer == b"hello\0\0\0\0\0"
            buffer.append(1)

    run(main)


def test_P06_the_buffer_can_not_be_resized_under_a_sendall() -> None:
    def main() -> None:
        with pair() as (ours, peer):
            data = bytearray(os.urandom(8 * MEGABYTE))
            copy = bytes(data)
            sender = go(ours.sendall, data)
            parked_on(ours)
            with pytest.raises(BufferError):
                data.extend(b"x")
            got: list[bytes] = []
            reader = threading.Thread(target=lambda: got.append(read_exactly(peer, len(copy))))
            reader.start()
            join(sender)
            reader.join()
            assert got == [copy]

    run(main)


def test_recv_into_bounds_and_buffers() -> None:
    def main() -> None:
        with pair() as (ours, peer):
            peer.send(b"0123456789")
            buffer = bytearray(4)
            assert ours.recv_into(buffer) == 4
            assert buffer == b"0123"
            assert ours.recv_into(buffer, 2) == 2
            assert buffer == b"4523"
            numbers = array.array("B", bytes(8))
            assert ours.recv_into(memoryview(numbers)[2:], nbytes=4, flags=0) == 4
            assert numbers.tobytes() == b"\0\x006789\0\0"
            assert ours.recv_into(bytearray()) == 0
            with pytest.raises(ValueError, match="buffer too small"):
                ours.recv_into(buffer, 5)
            with pytest.raises(ValueError, match="negative"):
                ours.recv_into(buffer, -1)
            for wrong in (b"read only", "text", 5):
                with pytest.raises(TypeError):
                    ours.recv_into(wrong)

    run(main)


def test_send_takes_any_bytes_like_object() -> None:
    def main() -> None:
        with pair() as (ours, peer):
            for data in (b"abc", bytearray(b"def"), memoryview(b"ghi"), array.array("b", b"jkl")):
                assert ours.send(data) == 3
                assert ours.sendall(data) is None
            ours.sendall(b"")
            assert ours.send(b"") == 0
            assert read_exactly(peer, 24) == b"abcabcdefdefghighijkljkl"
            for wrong in ("text", 5, None, [1]):
                for call in (ours.send, ours.sendall):
                    with pytest.raises(TypeError):
                        call(wrong)

    run(main)


def test_send_flags_reach_the_kernel() -> None:
    def main() -> None:
        with pair() as (ours, peer):
            ours.send(b"a", socket.MSG_OOB)
            assert select.select([], [], [peer], LIMIT)[2]
            peer.settimeout(None)  # with a timeout it would wait for normal data
            assert peer.recv(1, socket.MSG_OOB) == b"a"
            peer.settimeout(LIMIT)
            ours.sendall(b"b" * 100, socket.MSG_MORE)
            ours.sendall(b"c")
            assert read_exactly(peer, 101) == b"b" * 100 + b"c"

    run(main)


def test_recvfrom_and_sendto_on_a_connection() -> None:
    def main() -> None:
        with pair() as (ours, peer):
            peer.send(b"abc")
            assert ours.recvfrom(10) == (b"abc", None)
            assert ours.sendto(b"xyz", peer.getsockname()) == 3
            assert ours.sendto(b"!", 0, peer.getsockname()) == 1
            assert read_exactly(peer, 4) == b"xyz!"

    run(main)


def test_recv_of_nothing() -> None:
    def main() -> None:
        with pair() as (ours, _peer):
            assert ours.recv(0) == b""

    run(main)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("recv", ()),
        ("recv", (1, 2, 3)),
        ("recv", ("1",)),
        ("recv", (1.5,)),
        ("recv", (None,)),
        ("recv_into", ()),
        ("send", ()),
        ("send", (b"", 0, 0)),
        ("sendall", (b"", "0")),
        ("sendto", (b"",)),
        ("settimeout", ("1",)),
        ("setsockopt", (1, 2)),
        ("getsockopt", (1,)),
        ("shutdown", ("x",)),
        ("connect", ("127.0.0.1",)),
        ("connect", (("127.0.0.1",),)),
        ("connect", (("127.0.0.1", "80"),)),
        ("bind", (5,)),
    ],
)
def test_wrong_arguments_are_type_errors(name: str, arguments: Any) -> None:
    with Socket() as sock, pytest.raises(TypeError):
        getattr(sock, name)(*arguments)


def test_wrong_values() -> None:
    with Socket() as sock:
        for wrong in (-1, -0.001, float("nan")):
            with pytest.raises(ValueError):
                sock.settimeout(wrong)
        with pytest.raises(OverflowError):
            sock.settimeout(1e300)
        with pytest.raises(ValueError, match="negative buffersize"):
            sock.recv(-1)
        with pytest.raises(OverflowError, match="port must be 0-65535"):
            sock.connect(("127.0.0.1", 65536))
        with pytest.raises(OverflowError, match="port must be 0-65535"):
            sock.connect(("127.0.0.1", -1))
        with pytest.raises(MemoryError):
            sock.recv(1 << 62, socket.MSG_PEEK)
        with pytest.raises(OverflowError):
            sock.recv(1 << 70)
        with pytest.raises(OSError):
            sock.shutdown(17)


@pytest.mark.parametrize("timeout", [0.05, 0.0501, 1e-9])
def test_a_timeout_is_never_early(timeout: float) -> None:
    def main() -> None:
        with pair() as (ours, _peer):
            ours.settimeout(timeout)
            begin = time.monotonic()
            with pytest.raises(TimeoutError, match="timed out"):
                ours.recv(1)
            assert time.monotonic() - begin >= timeout

    run(main)
    main()


def test_timeouts_read_back() -> None:
    with Socket() as sock:
        assert sock.gettimeout() is None
        assert sock.timeout is None
        assert sock.getblocking()
        for seconds in (0.5, 3, 0, None, 1e6):
            sock.settimeout(seconds)
            assert sock.gettimeout() == seconds
        sock.setblocking(True)
        assert sock.gettimeout() is None


# ---- sendfile ----


@pytest.mark.parametrize(("offset", "count"), [(0, None), (100, None), (5, 1000), (0, 1 << 40)])
def test_sendfile(offset: int, count: int | None) -> None:
    data = os.urandom(3 * MEGABYTE)
    wanted = data[offset:] if count is None else data[offset : offset + count]

    def main(file: Any) -> None:
        with own_pair() as (left, right):
            reader = go(read_all, right)
            assert left.sendfile(file, offset, count) == len(wanted)
            assert file.tell() == offset + len(wanted)
            left.close()
            assert join(reader) == [wanted]

    with tempfile.TemporaryFile() as file:
        file.write(data)
        run(lambda: main(file))
    run(lambda: main(io.BytesIO(data)))


def test_sendfile_refuses_what_it_can_not_do() -> None:
    with Socket() as sock, tempfile.TemporaryFile() as binary, open(__file__) as text:
        with pytest.raises(ValueError, match="binary"):
            sock.sendfile(text)
        with pytest.raises(ValueError, match="positive"):
            sock.sendfile(binary, count=0)
        with pytest.raises(TypeError, match="positive integer"):
            sock.sendfile(binary, count=1.5)
        sock.settimeout(0)
        with pytest.raises(ValueError, match="non-blocking"):
            sock.sendfile(binary)


def test_sendfile_tells_where_a_timeout_left_it() -> None:
    def main() -> None:
        with pair() as (ours, _peer), tempfile.TemporaryFile() as file:
            file.truncate(64 * MEGABYTE)
            ours.settimeout(0.1)
            with pytest.raises(TimeoutError):
                ours.sendfile(file)
            assert 0 < file.tell() < 64 * MEGABYTE

    run(main)
