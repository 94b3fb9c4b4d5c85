"""runloom.sync.open(): the same as open(), for fibers."""

from __future__ import annotations

import io
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fiber_support import run
from socket_support import failure

import runloom
import runloom.sync as sync
import runloom_c

MEGABYTE = 1 << 20


def both(call: Any) -> None:
    """In a fiber and outside of one."""
    call()
    run(call)


def test_text_and_bytes(tmp_path: Path) -> None:
    path = tmp_path / "file"

    def main() -> None:
        with sync.open(path, "w", encoding="utf-8") as file:
            assert file.write("eins\nzwei\r\nüber") == 15
            assert file.mode == "w"
        assert path.read_bytes() == "eins\nzwei\r\nüber".encode()
        with sync.open(path, encoding="utf-8") as file:
            assert list(file) == ["eins\n", "zwei\n", "über"]
        with sync.open(str(path), "rb") as binary:
            assert binary.read(4) == b"eins"
            assert binary.tell() == 4
            assert binary.seek(-5, os.SEEK_END) == 11
            assert binary.read() == "über".encode()
        with sync.open(bytes(path), "ab") as binary:
            assert binary.tell() == 16
            binary.write(b"!")
        with sync.open(path, "r+b") as binary:
            binary.seek(1)
            binary.write(b"INS")
            binary.seek(0)
            assert binary.readline() == b"eINS\n"
            assert binary.truncate(4) == 4
        assert path.read_bytes() == b"eINS"
        with sync.open(path, "rb", 0) as raw:
            assert isinstance(raw, io.RawIOBase)
            assert raw.read() == b"eINS"
            assert raw.read(1) == b""
            assert raw.mode == "rb"
            assert raw.name == path

    both(main)


def test_large_files_and_other_fibers(tmp_path: Path) -> None:
    path = tmp_path / "large"
    data = os.urandom(5 * MEGABYTE)

    def main() -> None:
        turns: list[int] = []

        def other() -> None:
            for _ in range(20):
                turns.append(1)
                sync.yield_now()

        fiber = runloom_c.go(other)
        with sync.open(path, "wb") as file:
            file.write(data)
        with sync.open(path, "rb") as file:
            assert file.read() == data
        with sync.open(path, "rb", 0) as file:
            buffer = bytearray(len(data))
            assert file.readinto(buffer) == len(data)  # type: ignore[attr-defined]
            assert buffer == data
        fiber.join()
        assert len(turns) == 20

    run(main)


def test_exclusive_and_missing(tmp_path: Path) -> None:
    def main() -> None:
        path = tmp_path / "new"
        with sync.open(path, "x"):
            pass
        with pytest.raises(FileExistsError):
            sync.open(path, "x")
        path.unlink()
        with pytest.raises(FileNotFoundError) as caught:
            sync.open(path)
        assert caught.value.filename == path or caught.value.filename == str(path)
        with pytest.raises(IsADirectoryError):
            sync.open(tmp_path)
        with pytest.raises(PermissionError if os.getuid() else IsADirectoryError):
            sync.open("/", "w")

    both(main)


@pytest.mark.parametrize(
    ("arguments", "keywords"),
    [
        (("f", "rw"), {}), (("f", "r+w"), {}), (("f", ""), {}), (("f", "z"), {}), (("f", "rr"), {}),
        (("f", "rbt"), {}), (("f", "b"), {}), (("f", "rb"), {"encoding": "utf-8"}),
        (("f", "rb"), {"errors": "strict"}), (("f", "rb"), {"newline": ""}),
        (("f",), {"closefd": False}), ((-1,), {}), (("f", 5), {}), ((None,), {}),
        (("a\0b",), {}), (("f", "w"), {"opener": lambda *_: -1}),
    ],
)  # fmt: skip
def test_what_open_refuses(
    arguments: tuple[Any, ...], keywords: dict[str, Any], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    expected = failure(partial(io.open, *arguments, **keywords))
    got = failure(lambda: sync.open(*arguments, **keywords))
    assert type(got) is type(expected), (got, expected)


def test_text_needs_a_buffer(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(ValueError, match="unbuffered text"):
        sync.open(path, "r", 0)


def test_descriptors_and_openers(tmp_path: Path) -> None:
    def main() -> None:
        path = tmp_path / "file"
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        with sync.open(fd, "w", closefd=False) as file:
            file.write("x")
            assert file.fileno() == fd
        os.fstat(fd)
        with sync.open(fd, "r") as file:
            assert file.name == fd
        with pytest.raises(OSError):
            os.fstat(fd)
        seen: list[Any] = []

        def opener(name: Any, flags: int) -> int:
            seen.append((name, flags & os.O_ACCMODE))
            return os.open(name, flags)

        with sync.open(path, opener=opener) as file:
            assert not os.get_inheritable(file.fileno())
        assert seen == [(path, os.O_RDONLY)]
        reader, writer = os.pipe()
        with sync.open(writer, "wb") as sink:
            sink.write(b"through a pipe")
        with sync.open(reader, "rb") as source:
            assert not source.seekable()
            assert source.read() == b"through a pipe"

    both(main)


def test_a_closed_file(tmp_path: Path) -> None:
    def main() -> None:
        path = tmp_path / "file"
        file = sync.open(path, "w+")
        file.close()
        file.close()
        for call in (file.read, lambda: file.write("x"), file.fileno, file.tell):
            assert isinstance(failure(call), ValueError)
        with sync.open(path) as reader, pytest.raises(io.UnsupportedOperation):
            reader.write("x")
        with sync.open(path, "wb", 0) as raw:
            assert isinstance(failure(raw.read), io.UnsupportedOperation)
        assert "closed" in repr(raw)

    both(main)


def test_scopes_end_a_read() -> None:
    def main() -> None:
        reader, writer = os.pipe()
        with sync.open(reader, "rb", 0) as source:
            with pytest.raises(TimeoutError), runloom.timeout(0.005):
                source.read(1)
            os.write(writer, b"x")
            assert source.read(1) == b"x"
        os.close(writer)

    run(main)
