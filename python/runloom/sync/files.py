"""Files that read like those of open(), and let other fibers run while a device is slow."""

from __future__ import annotations

import errno
import io
import os
import stat
from typing import IO, TYPE_CHECKING, Any, overload

from runloom._unique import Unique
from runloom_c import blocking, file_read, file_write

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import OpenBinaryMode, OpenTextMode
    from typing_extensions import Buffer

    _File = int | str | bytes | os.PathLike[str] | os.PathLike[bytes]
    _Opener = Callable[[Any, int], int]

__all__ = ["open"]

_MODES = {"r": os.O_RDONLY, "w": os.O_CREAT | os.O_TRUNC, "x": os.O_CREAT | os.O_EXCL,
          "a": os.O_CREAT | os.O_APPEND}  # fmt: skip


class _RawFile(Unique, io.RawIOBase):
    """The raw file under open(): io.FileIO, whose reads and writes park."""

    # What close() finds in an object that was never initialised.
    _fd = -1
    _closefd = False

    def __init__(self, fd: int, name: Any, kind: str, updating: bool, closefd: bool) -> None:
        super().__init__()
        self._fd = fd
        self.name = name
        self._kind = kind
        self._updating = updating
        self._closefd = closefd

    def __repr__(self) -> str:
        state = "[closed]" if self.closed else f"name={self.name!r} mode={self.mode!r}"
        return f"<runloom.sync file {state}>"

    @property
    def mode(self) -> str:
        return self._kind + "b" + ("+" if self._updating else "")

    @property
    def closefd(self) -> bool:
        return self._closefd

    def _number(self) -> int:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        return self._fd

    def readable(self) -> bool:
        self._number()
        return self._kind == "r" or self._updating

    def writable(self) -> bool:
        self._number()
        return self._kind != "r" or self._updating

    def seekable(self) -> bool:
        try:
            os.lseek(self._number(), 0, os.SEEK_CUR)
        except OSError:
            return False
        return True

    def fileno(self) -> int:
        return self._number()

    def isatty(self) -> bool:
        return os.isatty(self._number())

    def readinto(self, buffer: Buffer, /) -> int:
        fd = self._number()
        if not self.readable():
            raise io.UnsupportedOperation("File not open for reading")
        with memoryview(buffer) as view, view.cast("B") as octets:
            return file_read(fd, octets, len(octets))

    def readall(self) -> bytes:
        fd = self._number()
        if not self.readable():
            raise io.UnsupportedOperation("File not open for reading")
        size = 0
        if self.seekable():
            size = max(os.fstat(fd).st_size - os.lseek(fd, 0, os.SEEK_CUR), 0)
        pieces = []
        while piece := file_read(fd, max(size + 1, 65536)):
            pieces.append(piece)
            size -= len(piece)
            size = max(size, 0)
        return b"".join(pieces)

    def write(self, data: Buffer, /) -> int:
        fd = self._number()
        if not self.writable():
            raise io.UnsupportedOperation("File not open for writing")
        return file_write(fd, data)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        return os.lseek(self._number(), offset, whence)

    def tell(self) -> int:
        return os.lseek(self._number(), 0, os.SEEK_CUR)

    def truncate(self, size: int | None = None, /) -> int:
        fd = self._number()
        if not self.writable():
            raise io.UnsupportedOperation("File not open for writing")
        if size is None:
            size = self.tell()
        blocking(os.ftruncate, fd, size)
        return size

    def close(self) -> None:
        if self.closed:
            return
        try:
            super().close()
        finally:
            fd, self._fd = self._fd, -1
            if self._closefd and fd >= 0:
                os.close(fd)


def _parse(mode: str) -> tuple[str, bool, bool]:
    """The kind (one of r, w, x, a), whether it is updating, whether it is binary."""
    if not isinstance(mode, str):
        raise TypeError(f"open() argument 'mode' must be str, not {type(mode).__name__}")
    kinds = [each for each in mode if each in _MODES]
    if set(mode) - set("rwxabt+") or len(set(mode)) != len(mode):
        raise ValueError(f"invalid mode: {mode!r}")
    if "b" in mode and "t" in mode:
        raise ValueError("can't have text and binary mode at once")
    if len(kinds) != 1:
        raise ValueError("must have exactly one of create/read/write/append mode")
    return kinds[0], "+" in mode, "b" in mode


def _open_raw(
    file: Any, kind: str, updating: bool, closefd: bool, opener: _Opener | None
) -> _RawFile:
    flags = _MODES[kind] | os.O_CLOEXEC
    flags |= os.O_RDWR if updating else (os.O_RDONLY if kind == "r" else os.O_WRONLY)
    if isinstance(file, int):
        if isinstance(file, bool) or file < 0:
            raise ValueError("negative file descriptor")
        fd = file
        os.fstat(fd)
    else:
        if not closefd:
            raise ValueError("Cannot use closefd=False with file name")
        path = os.fspath(file)
        if opener is None:
            fd = blocking(os.open, path, flags, 0o666)
        else:
            fd = blocking(opener, file, flags)
            if not isinstance(fd, int):
                raise TypeError("expected integer from opener")
            if fd < 0:
                raise ValueError(f"opener returned {fd}")
            os.set_inheritable(fd, False)
    try:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), file)
        raw = _RawFile(fd, file, kind, updating, closefd)
        if kind == "a":
            try:
                os.lseek(fd, 0, os.SEEK_END)
            except OSError:
                pass  # a pipe
    except BaseException:
        if not isinstance(file, int):
            os.close(fd)
        raise
    return raw


@overload
def open(
    file: _File,
    mode: OpenTextMode = "r",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    closefd: bool = True,
    opener: _Opener | None = None,
) -> IO[str]: ...
@overload
def open(
    file: _File,
    mode: OpenBinaryMode,
    buffering: int = -1,
    encoding: None = None,
    errors: None = None,
    newline: None = None,
    closefd: bool = True,
    opener: _Opener | None = None,
) -> IO[bytes]: ...
@overload
def open(
    file: _File,
    mode: str,
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    closefd: bool = True,
    opener: _Opener | None = None,
) -> IO[Any]: ...
def open(
    file: _File,
    mode: str = "r",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    closefd: bool = True,
    opener: _Opener | None = None,
) -> IO[Any]:
    """As the open() of Python, for a file whose reads and writes let other fibers run.

    What is in memory is read at once. The file is for one fiber at a time: RuntimeError when a
    second one comes in the middle of a call.
    """
    kind, updating, binary = _parse(mode)
    if binary and encoding is not None:
        raise ValueError("binary mode doesn't take an encoding argument")
    if binary and errors is not None:
        raise ValueError("binary mode doesn't take an errors argument")
    if binary and newline is not None:
        raise ValueError("binary mode doesn't take a newline argument")
    if buffering == 0 and not binary:
        raise ValueError("can't have unbuffered text I/O")
    raw = _open_raw(file, kind, updating, closefd, opener)
    try:
        line = buffering == 1 and not binary
        if buffering == 0:
            return raw  # type: ignore[return-value]
        size = buffering
        if buffering < 0 or buffering == 1:
            line = line or (buffering < 0 and raw.isatty())
            size = max(getattr(os.fstat(raw.fileno()), "st_blksize", 0), io.DEFAULT_BUFFER_SIZE)
        buffer: Any
        if updating:
            buffer = io.BufferedRandom(raw, size)
        elif kind == "r":
            buffer = io.BufferedReader(raw, size)
        else:
            buffer = io.BufferedWriter(raw, size)
        if binary:
            return buffer  # type: ignore[no-any-return]
        text: Any = io.TextIOWrapper(buffer, encoding, errors, newline, line)
        text.mode = mode
        return text  # type: ignore[no-any-return]
    except BaseException:
        raw.close()
        raise
