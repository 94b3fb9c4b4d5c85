"""file_read, file_write, iouring_available: files by number."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fiber_support import parked, run, run_all, script, until

import runloom_c
from runloom_c import file_read, file_write, iouring_available

MEGABYTE = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 400)
    return path


@pytest.fixture
def fd(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR)
    yield fd
    os.close(fd)


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """Both ends in blocking mode."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    both = os.open(path, os.O_RDWR)
    ends = os.open(path, os.O_RDONLY), os.open(path, os.O_WRONLY)
    os.close(both)
    yield ends
    for end in ends:
        os.close(end)


def cold(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def both(body: Callable[[], Any]) -> None:
    """In a fiber, and outside of fibers."""
    run(body)
    body()


def test_reads_at_offsets(fd: int, path: Path) -> None:
    content = path.read_bytes()

    def main() -> None:
        assert file_read(fd, 10, 5) == content[5:15]
        assert file_read(fd, n=10, offset=0) == content[:10]
        buffer = bytearray(20)
        assert file_read(fd, buffer, 10, 7) == 10
        assert buffer == content[7:17] + bytes(10)
        assert file_read(fd=fd, buf=memoryview(buffer)[10:], n=5, offset=0) == 5
        assert buffer == content[7:17] + content[:5] + bytes(5)
        assert file_read(fd, 0, 3) == b""

    both(main)


def test_reads_at_the_position(fd: int, path: Path) -> None:
    content = path.read_bytes()

    def main() -> None:
        os.lseek(fd, 3, os.SEEK_SET)
        assert file_read(fd, 4) == content[3:7]
        assert file_read(fd, 4, -1) == content[7:11]
        buffer = bytearray(3)
        assert file_read(fd, buffer, 3) == 3
        assert buffer == content[11:14]
        assert os.lseek(fd, 0, os.SEEK_CUR) == 14

    both(main)


def test_f12_reads_across_the_end(fd: int, path: Path) -> None:
    content = path.read_bytes()

    def main() -> None:
        cold(path)
        assert file_read(fd, 10 * MEGABYTE, 0) == content
        assert file_read(fd, 100, len(content) - 7) == content[-7:]
        assert file_read(fd, 100, len(content)) == b""
        buffer = bytearray(b"x" * 20)
        assert file_read(fd, buffer, 20, len(content) - 7) == 7
        assert buffer[7:] == b"x" * 13  # nothing past the count

    both(main)


def test_f12_reads_files_without_a_size() -> None:
    def main() -> None:
        with open("/proc/self/status", "rb") as file:
            assert file_read(file.fileno(), MEGABYTE).startswith(b"Name:")
            assert file_read(file, 5, 0) == b"Name:"

    both(main)


def test_writes(fd: int, path: Path) -> None:
    def main() -> None:
        os.ftruncate(fd, 0)
        os.lseek(fd, 0, os.SEEK_SET)
        assert file_write(fd, b"hello") == 5
        assert file_write(fd, bytearray(b"J"), 0) == 1
        assert file_write(fd=fd, data=memoryview(b"!"), offset=7) == 1
        assert file_write(fd, b", ") == 2
        assert file_write(fd, b"") == 0
        assert path.read_bytes() == b"Jello, !"

    both(main)


def test_many_at_once(tmp_path: Path) -> None:
    def copy(number: int) -> int:
        data = bytes([number]) * (3 * MEGABYTE)
        fd = os.open(tmp_path / str(number), os.O_RDWR | os.O_CREAT)
        try:
            assert file_write(fd, data, 0) == len(data)
            cold(tmp_path / str(number))
            assert file_read(fd, len(data) + 1, 0) == data
        finally:
            os.close(fd)
        return number

    assert run_all(*[lambda n=n: copy(n) for n in range(20)]) == list(range(20))


def test_fails_as_the_system_calls_do(fd: int, path: Path) -> None:
    reader, writer = os.pipe()

    def main() -> None:
        for call, code in [
            (lambda: file_read(-1, 1), errno.EBADF),
            (lambda: file_write(-1, b"x"), errno.EBADF),
            (lambda: file_read(fd, 1, -2), errno.EINVAL),
            (lambda: file_write(fd, b"x", -2), errno.EINVAL),
            (lambda: file_read(reader, 1, 0), errno.ESPIPE),
            (lambda: file_write(writer, b"x", 0), errno.ESPIPE),
        ]:
            with pytest.raises(OSError) as raised:
                call()
            assert raised.value.errno == code

    try:
        both(main)
    finally:
        os.close(reader)
        os.close(writer)
    for arguments in [(), (fd,), (fd, 1, 2, 3), (fd, "x"), (fd, b"", 0), ("x", 1), (fd, 1, "x")]:
        with pytest.raises(TypeError):
            file_read(*arguments)
    with pytest.raises(ValueError):
        file_read(fd, -1)
    with pytest.raises(ValueError):
        file_read(fd, bytearray(4), 5)
    with pytest.raises(TypeError):
        file_write(fd, "text")


def test_f06_a_buffer_in_flight_keeps_its_size(fifo: tuple[int, int]) -> None:
    reader, writer = fifo

    def main() -> None:
        buffer = bytearray(8)
        fiber = runloom_c.go(lambda: file_read(reader, buffer, 8))
        parked(fiber)
        with pytest.raises(BufferError):
            buffer.extend(b"x")
        os.write(writer, b"abc")
        assert fiber.join() == 3
        buffer.extend(b"x")
        assert bytes(buffer) == b"abc\0\0\0\0\0x"

    run(main)


def test_f06_a_cancelled_read_frees_its_buffer(fifo: tuple[int, int]) -> None:
    reader, writer = fifo

    def main() -> None:
        for _ in range(200):
            buffer = bytearray(8)
            fiber = runloom_c.go(lambda: file_read(reader, buffer, 8))  # noqa: B023
            parked(fiber)
            fiber.cancel()
            with pytest.raises(runloom_c.Cancelled):
                fiber.join()
            buffer.clear()
            os.write(writer, b"x")
            assert file_read(reader, 8) == b"x"

    run(main)


def test_f18_many_fifo_readers_stop_nobody(fifo: tuple[int, int], fd: int) -> None:
    reader, writer = fifo
    seen: list[bytes] = []

    def main() -> None:
        fibers = [runloom_c.go(lambda: seen.append(file_read(reader, 1))) for _ in range(300)]
        parked(*fibers)
        for count in range(1, 11):
            os.write(writer, b"x")
            until(lambda: len(seen) == count)  # noqa: B023
            assert len(file_read(fd, 10, 0)) == 10
        assert threading.active_count() < 100
        for fiber in fibers:
            fiber.cancel()
        for fiber in fibers:
            try:
                fiber.join()
            except runloom_c.Cancelled:
                pass

    run(main)
    assert seen == [b"x"] * 10


def test_f16_handlers_run_while_files_are_read(path: Path, fd: int) -> None:
    content = path.read_bytes()
    calls: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: calls.append(1))
    stop = threading.Event()

    def send() -> None:
        while not stop.wait(0.001):
            os.kill(os.getpid(), signal.SIGUSR1)

    sender = threading.Thread(target=send)
    sender.start()

    def main() -> None:
        while len(calls) < 20:
            cold(path)
            assert file_read(fd, len(content), 0) == content

    try:
        run(lambda: [g.join() for g in [runloom_c.go(main) for _ in range(4)]])
    finally:
        stop.set()
        sender.join()
        signal.signal(signal.SIGUSR1, before)


def test_f14_a_limit_gives_the_bytes_and_then_the_error() -> None:
    done = script(
        """
        import errno, os, resource, signal, tempfile, runloom_c
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
        def main():
            with tempfile.TemporaryFile() as file:
                assert runloom_c.file_write(file, b"x" * 20_000) == 10_000
                try:
                    runloom_c.file_write(file, b"x")
                except OSError as error:
                    assert error.errno == errno.EFBIG
                    print("EFBIG")
                assert runloom_c.file_write(file, b"y", 0) == 1
                assert runloom_c.file_read(file, 3, 0) == b"yxx"
        runloom_c._run_main(main)
        """
    )
    assert (done.stdout, done.stderr) == ("EFBIG\n", "")


@pytest.mark.skipif(os.getuid() != 0, reason="mounts a file system")
def test_f14_a_full_file_system(tmp_path: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", tmp_path], check=False
    )
    if mounted.returncode != 0:
        pytest.skip("no tmpfs of 1 MiB can be mounted")

    def main() -> None:
        fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
        data = os.urandom(3 * MEGABYTE)
        written = file_write(fd, data)
        assert 0 < written <= MEGABYTE
        with pytest.raises(OSError) as raised:
            file_write(fd, data)
        assert raised.value.errno == errno.ENOSPC
        assert file_read(fd, 2 * MEGABYTE, 0) == data[:written]
        os.close(fd)

    try:
        both(main)
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_iouring_available_asks_the_kernel() -> None:
    disabled = Path("/proc/sys/kernel/io_uring_disabled")
    if disabled.exists() and int(disabled.read_text()) == 2:
        assert iouring_available() is False
    assert iouring_available() in (True, False)
    assert iouring_available() is iouring_available()
    # Where no descriptor is left there is none for a ring.
    done = script(
        """
        import resource, runloom_c
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
        print(runloom_c.iouring_available())
        """
    )
    assert (done.stdout, done.stderr) == ("False\n", "")
