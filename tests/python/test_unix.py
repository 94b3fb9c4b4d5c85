"""Unix sockets: paths and names, modes, descriptors that travel, credentials."""

from __future__ import annotations

import array
import errno
import os
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from socket_support import LIMIT, failure, go, join, parked_on, read_all, run

import runloom
import runloom_c
from runloom.sync import Socket, socketpair, unix_connect, unix_listen

CMSG_ROOM = socket.CMSG_SPACE(16 * array.array("i").itemsize)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory with a short name: a socket's path has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="rl-", dir="/tmp") as name:
        yield Path(name)


def errno_of(function: Callable[..., Any], *arguments: Any, **named: Any) -> int | None:
    error = failure(lambda: function(*arguments, **named))
    assert isinstance(error, OSError), error
    return error.errno


def rights(*fds: int) -> list[tuple[int, int, array.array[int]]]:
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]


def descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, data in ancillary:
        assert (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
        fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return fds.tolist()


def open_now() -> int:
    return len(os.listdir("/proc/self/fd"))


# ---- connections ----


@pytest.mark.parametrize("kind", [str, os.fsencode, Path, lambda p: bytearray(os.fsencode(p))])
def test_paths_of_every_kind(folder: Path, kind: Callable[[Path], Any]) -> None:
    path = folder / "sock\u00e9t"

    def main() -> None:
        with unix_listen(kind(path)) as server:
            assert server.family == socket.AF_UNIX and server.type == socket.SOCK_STREAM
            assert server.getsockname() == str(path)
            with unix_connect(kind(path)) as client:
                conn, address = server.accept()
                with conn:
                    assert address == ""
                    assert client.getpeername() == str(path)
                    assert client.getsockname() == ""
                    client.sendall(b"x" * 100_000)
                    client.shutdown(socket.SHUT_WR)
                    assert read_all(conn) == b"x" * 100_000
        assert not path.exists()

    run(main)


def test_a_plain_peer_on_either_side(folder: Path) -> None:
    path = str(folder / "s")

    def main() -> None:
        with unix_listen(path) as server, socket.socket(socket.AF_UNIX) as peer:
            peer.connect(path)
            conn, _ = server.accept()
            with conn:
                peer.sendall(b"in")
                assert conn.recv(10) == b"in"
        with socket.socket(socket.AF_UNIX) as plain:
            plain.bind(path)
            plain.listen()
            with unix_connect(path) as client:
                conn2, _ = plain.accept()
                with conn2:
                    client.sendall(b"out")
                    assert conn2.recv(10) == b"out"
        assert os.path.exists(path)  # the standard library's socket leaves its file

    run(main)


def test_outside_of_fibers(folder: Path) -> None:
    with unix_listen(folder / "s") as server, unix_connect(folder / "s") as client:
        conn, _ = server.accept()
        with conn:
            client.sendall(b"x")
            assert conn.recv(1) == b"x"


def test_errors_name_the_path(folder: Path) -> None:
    def main() -> None:
        path = folder / "none"
        error = failure(unix_connect, path)
        assert isinstance(error, FileNotFoundError) and str(path) in str(error)
        error = failure(unix_listen, folder / "no" / "such")
        assert isinstance(error, FileNotFoundError) and "no/such" in str(error)
        long = str(folder) + "/" + "x" * 107
        for function in (unix_connect, unix_listen):
            error = failure(function, long)
            assert isinstance(error, OSError)
            assert error.errno == errno.ENAMETOOLONG and long in str(error)
            assert isinstance(failure(function, "a\0b"), ValueError)
            assert isinstance(failure(function, 7), TypeError)
        assert isinstance(failure(lambda: unix_listen(folder / "s", mode=-1)), ValueError)
        assert isinstance(failure(lambda: unix_listen(folder / "s", mode=0o10000)), ValueError)
        assert os.listdir(folder) == []

    run(main)


def test_the_longest_path(folder: Path) -> None:
    path = str(folder) + "/" + "x" * (106 - len(str(folder)))
    assert len(path) == 107

    def main() -> None:
        with unix_listen(path), unix_connect(path) as client:
            assert client.getpeername() == path

    run(main)


def test_x06_abstract_names_are_kept_whole() -> None:
    unique = f"runloom-{os.getpid()}-{time.monotonic_ns()}"

    def main() -> None:
        for name in (f"\0{unique}", f"\0{unique}\0in\0side\0".encode()):
            whole = os.fsencode(name)
            with unix_listen(name) as server:
                assert server.getsockname() == whole
                with unix_connect(name) as client, socket.socket(socket.AF_UNIX) as plain:
                    assert client.getpeername() == whole
                    plain.connect(name)
                    for _ in range(2):
                        server.accept()[0].close()
                assert errno_of(unix_listen, name) == errno.EADDRINUSE
            assert errno_of(unix_connect, name) == errno.ECONNREFUSED
        with unix_listen("") as server:
            name = server.getsockname()
            assert isinstance(name, bytes) and name[0] == 0 and len(name) == 6
            unix_connect(name).close()

    run(main)


def test_x06_abstract_datagrams() -> None:
    name = f"\0runloom-dgram-{os.getpid()}\0x".encode()
    with Socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(name)
        with Socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
            client.bind("")
            client.sendto(b"hello", name)
            data, address = server.recvfrom(100)
            assert (data, address) == (b"hello", client.getsockname())
            server.sendto(b"", address)
            assert client.recvfrom(100) == (b"", name)


# ---- the file ----


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o777])
def test_the_mode_of_the_file(folder: Path, mode: int) -> None:
    with unix_listen(folder / "s", mode=mode):
        assert stat.S_IMODE(os.stat(folder / "s").st_mode) == mode


def test_x04_the_second_server_is_refused(folder: Path) -> None:
    path = folder / "s"

    def main() -> None:
        with unix_listen(path) as first:
            error = failure(unix_listen, path)
            assert isinstance(error, OSError)
            assert error.errno == errno.EADDRINUSE and str(path) in str(error)
            # The first one still answers, and nobody has knocked.
            first.settimeout(0)
            assert isinstance(failure(first.accept), BlockingIOError)
            first.settimeout(None)
            with unix_connect(path):
                first.accept()[0].close()
        with unix_listen(path):
            pass
        (folder / "file").touch()
        assert errno_of(unix_listen, folder / "file") == errno.EADDRINUSE
        assert os.listdir(folder) == ["file"]

    run(main)


def test_x04_only_a_stale_file_is_replaced(folder: Path) -> None:
    path = folder / "s"
    code = f"""
import os, runloom.sync
server = runloom.sync.unix_listen({str(path)!r})
print("up", flush=True)
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, timeout=LIMIT)
    assert errno_of(unix_connect, path) == errno.ECONNREFUSED
    with unix_listen(path), unix_connect(path):
        assert os.listdir(folder) == ["s"]
    assert os.listdir(folder) == []


def test_x04_of_many_that_start_at_once_one_gets_the_name(folder: Path) -> None:
    path = folder / "s"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    code = f"""
import sys, errno, runloom.sync
sys.stdin.read(1)
try:
    server = runloom.sync.unix_listen({str(path)!r})
except OSError as error:
    print(errno.errorcode[error.errno], flush=True)
else:
    print("up", flush=True)
    sys.stdin.read()
"""
    servers = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    try:
        for server in servers:
            assert server.stdin is not None
            server.stdin.write("xx")
            server.stdin.flush()
        said = sorted(server.stdout.readline() for server in servers if server.stdout is not None)
        assert said == ["EADDRINUSE\n"] * 3 + ["up\n"]
        unix_connect(path).close()
    finally:
        for server in servers:
            server.communicate(timeout=LIMIT)
    assert os.listdir(folder) == []


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_close_removes_only_its_own_file(folder: Path) -> None:
    path = folder / "s"
    server = unix_listen(path)
    path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        server.close()
        assert path.exists()
    path.unlink()
    server = unix_listen(path)
    fd = server.detach()
    server.close()
    assert path.exists()  # it goes with the descriptor
    os.close(fd)
    path.unlink()
    server = unix_listen(path)
    child = os.fork()
    if child == 0:
        server.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert path.exists()
    with pytest.warns(ResourceWarning):
        del server
    assert not path.exists()


# ---- waits ----


def test_connect_waits_for_room_in_the_queue(folder: Path) -> None:
    path = folder / "s"

    def main() -> None:
        with unix_listen(path, backlog=0) as server, unix_connect(path):
            assert isinstance(failure(lambda: unix_connect(path, timeout=0.01)), TimeoutError)
            assert isinstance(failure(lambda: unix_connect(path, timeout=0)), TimeoutError)
            with Socket(socket.AF_UNIX) as sock:
                sock.setblocking(False)
                assert isinstance(failure(sock.connect, path), BlockingIOError)
            waiting = go(unix_connect, path)
            cancelled = go(unix_connect, path)
            runloom_c.sched_sleep(0.01)
            assert not waiting.done
            cancelled.cancel()
            server.accept()[0].close()
            (client,) = join(waiting)
            client.close()
            assert isinstance(failure(join, cancelled), runloom.Cancelled)

    run(main)


def test_t08_close_and_shutdown_end_an_accept(folder: Path) -> None:
    def main() -> None:
        with unix_listen(folder / "s") as server:
            accepting = go(failure, server.accept)
            parked_on(server)
            server.close()
            (error,) = join(accepting)
            assert isinstance(error, OSError) and error.errno == errno.EBADF
        with unix_listen(folder / "s") as server:
            accepting = go(failure, server.accept)
            parked_on(server)
            server.shutdown(socket.SHUT_RD)
            (error,) = join(accepting)
            assert isinstance(error, OSError) and error.errno == errno.EINVAL

    run(main)


def test_a_full_receiver_parks_its_senders(folder: Path) -> None:
    path = str(folder / "s")

    def main() -> None:
        with (
            Socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server,
            Socket(socket.AF_UNIX, socket.SOCK_DGRAM) as filler,
            Socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
        ):
            server.bind(path)
            filler.setblocking(False)
            filled = 0
            while not isinstance(failure(filler.sendto, b"f", path), BlockingIOError):
                filled += 1
            sender.settimeout(0.01)
            assert isinstance(failure(sender.sendto, b"x", path), TimeoutError)
            assert isinstance(failure(sender.sendmsg, [b"x"], [], 0, path), TimeoutError)
            sender.settimeout(None)
            cancelled = go(failure, sender.sendto, b"x", path)
            sending = go(sender.sendmsg, [b"la", b"te"], [], 0, path)
            runloom_c.sched_sleep(0.02)
            assert not sending.done
            cancelled.cancel()
            (error,) = join(cancelled)
            assert isinstance(error, runloom.Cancelled)
            for _ in range(filled):
                assert server.recv(10) == b"f"
            assert server.recv(10) == b"late"
            assert join(sending) == [4]
            while not isinstance(failure(filler.sendto, b"f", path), BlockingIOError):
                pass
            closed = go(failure, sender.sendto, b"x", path)
            runloom_c.sched_sleep(0.01)
            sender.close()
            (error,) = join(closed)
            assert isinstance(error, OSError) and error.errno == errno.EBADF

    run(main)


# ---- descriptors and credentials ----


def test_descriptors_travel(folder: Path) -> None:
    def main() -> None:
        one, two = socketpair()
        read, write = os.pipe()
        with one, two:
            assert one.sendmsg([b"he", bytearray(b"llo")], rights(write)) == 5
            data, ancillary, flags, address = two.recvmsg(100, CMSG_ROOM)
            assert (data, flags, address) == (b"hello", 0, None)
            (fd,) = descriptors(ancillary)
            assert not os.get_inheritable(fd)
            os.write(fd, b"x")
            assert os.read(read, 1) == b"x"
            # The helpers of the standard library take our sockets.
            socket.send_fds(one, [b"two"], [read, write])
            data, fds, flags, _ = socket.recv_fds(two, 100, 2)
            assert data == b"two" and len(fds) == 2 and flags == 0
            for each in (*fds, fd, read, write):
                os.close(each)

    run(main)


def test_x02_received_descriptors_are_close_on_exec_and_none_is_lost_sight_of() -> None:
    one, two = socketpair()
    read, write = os.pipe()
    with one, two:
        before = open_now()
        many = rights(*[read] * 16)
        # Room for one descriptor: what the kernel hands out is what is shown.
        one.sendmsg([b"x"], many)
        data, ancillary, flags, _ = two.recvmsg(10, socket.CMSG_LEN(4))
        fds = descriptors(ancillary)
        assert data == b"x" and len(fds) == 1 and flags & socket.MSG_CTRUNC
        assert open_now() == before + len(fds)
        one.sendmsg([b"x"], many)
        _, ancillary, flags, _ = two.recvmsg(10, CMSG_ROOM)
        fds += descriptors(ancillary)
        assert len(fds) == 17 and not flags & socket.MSG_CTRUNC
        assert not any(os.get_inheritable(fd) for fd in fds)
        for fd in fds:
            os.close(fd)
        # Who asks for none gets none.
        for receive in (two.recv, two.recvmsg, two.recvfrom, lambda n: two.recv_into(bytearray(n))):
            one.sendmsg([b"x"], many)
            receive(10)
            assert open_now() == before
    os.close(read)
    os.close(write)


def test_recvmsg_into_several_buffers() -> None:
    one, two = socketpair()
    with one, two:
        one.sendall(b"hello world")
        first, second = bytearray(5), bytearray(100)
        count, ancillary, flags, address = two.recvmsg_into([first, memoryview(second)[:3]])
        assert (count, ancillary, flags, address) == (8, [], 0, None)
        assert first == b"hello" and second[:3] == b" wo"
        assert two.recvmsg(100)[0] == b"rld"
        two.settimeout(0)
        assert isinstance(failure(two.recvmsg, 1), BlockingIOError)
        two.settimeout(0.001)
        assert isinstance(failure(two.recvmsg, 1), TimeoutError)


def test_recvmsg_parks_and_ends() -> None:
    def main() -> None:
        one, two = socketpair()
        with one, two:
            receiving = go(two.recvmsg, 10)
            parked_on(two)
            one.sendmsg([b"x"])
            assert join(receiving)[0][0] == b"x"
            receiving = go(failure, two.recvmsg, 10)
            parked_on(two)
            two.close()
            (error,) = join(receiving)
            assert isinstance(error, OSError) and error.errno == errno.EBADF

    run(main)


def test_peer_credentials(folder: Path) -> None:
    def credentials(sock: Any) -> tuple[int, ...]:
        size = struct.calcsize("3i")
        return struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))

    with unix_listen(folder / "s") as server:
        code = f"import runloom.sync as s; c = s.unix_connect({str(folder / 's')!r}); c.recv(1)"
        with subprocess.Popen([sys.executable, "-c", code]) as process:
            conn, _ = server.accept()
            with conn:
                assert credentials(conn) == (process.pid, os.geteuid(), os.getegid())


# ---- the standard library's sockets as the oracle ----


class Stock:
    make = socket.socket
    pair = socket.socketpair


class Ours:
    make = Socket
    pair = staticmethod(socketpair)


def told(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except OSError as error:
        return type(error).__name__, error.errno
    except Exception as error:
        return type(error).__name__


def wrong_messages(kit: Any) -> list[Any]:
    one, two = kit.pair()
    with one, two:
        two.settimeout(0.01)
        return [
            told(one.sendmsg),
            told(one.sendmsg, 5),
            told(one.sendmsg, [5]),
            told(one.sendmsg, ["x"]),
            told(one.sendmsg, b"x"),
            told(one.sendmsg, [b"x"], 5),
            told(one.sendmsg, [b"x"], [5]),
            told(one.sendmsg, [b"x"], [(1, 2)]),
            told(one.sendmsg, [b"x"], [(1, "2", b"")]),
            told(one.sendmsg, [b"x"], [(1, 1, b"\0\0\0")]),
            told(one.sendmsg, [b"x"], [(1, 1, struct.pack("i", -1))]),
            told(one.sendmsg, [b"x"], [(1, 1, struct.pack("254i", *[0] * 254))]),
            told(one.sendmsg, [b"x"] * 1025),
            told(one.sendmsg, [b"x"], [], 0, None),
            told(one.sendmsg, [b"x"], [], 0, "/somewhere"),
            told(one.sendmsg, []),
            told(two.recvmsg, -1),
            told(two.recvmsg, 1, -1),
            told(two.recvmsg, "1"),
            told(two.recvmsg),
            told(two.recvmsg_into, 5),
            told(two.recvmsg_into, [b"x"]),
            told(two.recvmsg_into, [bytearray(1)] * 1025),
            told(two.recvmsg, 10),
            told(two.recvmsg_into, [bytearray(0), bytearray(3)]),
        ]


def messages(kit: Any) -> list[Any]:
    one, two = kit.pair(socket.AF_UNIX, socket.SOCK_DGRAM)
    results: list[Any] = []
    with one, two:
        two.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        room = socket.CMSG_SPACE(struct.calcsize("3i")) + CMSG_ROOM
        for size in (0, 3, 100):
            one.sendmsg([b"ab", b"", b"cd"])
            results.append(two.recvmsg(size, room))
        one.sendmsg([])
        results.append(two.recvmsg(10, room))
        one.sendmsg([b"peek"])
        results.append(two.recvmsg(10, 0, socket.MSG_PEEK))
        results.append(two.recvmsg(10, 0, socket.MSG_TRUNC))
        two.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
        one.sendmsg([b"x"], rights(0))
        data, ancillary, flags, address = two.recvmsg(10, room, socket.MSG_CMSG_CLOEXEC)
        for fd in descriptors(ancillary):
            os.close(fd)
        results += [data, flags, address]
        two.close()
        results.append(told(one.sendmsg, [b"x"]))
    results.append(told(one.sendmsg, [b"x"]))
    results.append(told(one.recvmsg, 1))
    return results


def names(kit: Any) -> list[Any]:
    with tempfile.TemporaryDirectory(prefix="rl-", dir="/tmp") as folder:
        results: list[Any] = []
        os.chdir(folder)
        with kit.make(socket.AF_UNIX) as server, kit.make(socket.AF_UNIX) as client:
            results.append(server.getsockname())
            results.append(told(client.getpeername))
            results.append(told(client.connect, "none"))
            server.bind("server")
            results.append(told(client.connect, "server"))
            server.listen()
            client.bind(b"client")
            results.append(told(client.connect, "server"))
            conn, address = server.accept()
            with conn:
                results += [
                    address,
                    conn.getsockname(),
                    conn.getpeername(),
                    client.getsockname(),
                    client.getpeername(),
                    told(client.connect, "server"),
                    told(client.connect, 5),
                    told(client.connect, ("a", 1)),
                    told(server.bind, "again"),
                ]
            results.append(sorted(os.listdir()))
        results.append(sorted(os.listdir()))
        return results


@pytest.mark.parametrize("program", [wrong_messages, messages, names])
def test_as_the_standard_library(program: Callable[[Any], Any]) -> None:
    here = os.getcwd()
    try:
        assert program(Ours) == program(Stock)
        assert run(lambda: program(Ours)) == program(Stock)
    finally:
        os.chdir(here)


@pytest.mark.parametrize("type_", [socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET])
def test_pairs_of_every_type(type_: int) -> None:
    def main() -> None:
        one, two = socketpair(type=type_)
        with one, two:
            assert one.type == type_ and one.family == socket.AF_UNIX and one.proto == 0
            assert not one.get_inheritable()
            receiving = go(two.recv, 100)
            parked_on(two)
            one.send(b"x")
            assert join(receiving) == [b"x"]
        assert errno_of(lambda: socketpair(socket.AF_INET)) == errno.EOPNOTSUPP

    run(main)


def test_threads_and_fibers_at_both_ends(folder: Path) -> None:
    path = folder / "s"
    results: list[bytes] = []

    def thread() -> None:
        with unix_connect(path, timeout=LIMIT) as client:
            client.settimeout(LIMIT)
            client.sendall(b"hello")
            results.append(client.recv(10))

    def main() -> None:
        with unix_listen(path) as server:
            other = threading.Thread(target=thread)
            other.start()
            conn, _ = server.accept()
            with conn:
                conn.sendall(conn.recv(10)[::-1])
                conn.recv(1)
            other.join()

    run(main)
    assert results == [b"olleh"]
