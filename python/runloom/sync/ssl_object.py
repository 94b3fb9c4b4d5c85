"""Connections with an ssl.SSLContext: the TLS of the standard library, the waiting of runloom.

The standard library's TLS reads and writes memory (ssl.MemoryBIO); what it wants to send and to
receive passes through the socket here. Nothing of it waits, so no fiber is ever switched inside of
it, and a callback of the context must not park.
"""

from __future__ import annotations

import errno
import os
import socket as _socket
import ssl
import sys
import time
from functools import partial
from typing import IO, TYPE_CHECKING, Any, TypeVar

from runloom._unique import Unique
from runloom.tls import DEFAULT_HANDSHAKE_TIMEOUT
from runloom_c import Lock, Socket, TLSSocket, _take_over, _without_parking

from .socket import makefile as _makefile
from .socket import sendfile as _sendfile

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import Buffer

    from runloom_c import ServerConnection

_T = TypeVar("_T")
_Deadline = float | None

_NOW = float("-inf")  # the deadline of what must not wait
_RECORD = 16 * 1024
_CHUNK = 64 * 1024


class SSLObjectSocket(Unique):
    """A connection with TLS by an ssl.SSLContext; tls_connect(), tls_listen() and start_tls() make
    it when they are given one.

    It is used as TLSSocket is: one fiber may read while another writes, and further ones queue.
    """

    def __init__(
        self,
        sock: Socket | TLSSocket,
        context: ssl.SSLContext,
        *,
        server_side: bool = False,
        server_hostname: str | None = None,
        handshake_timeout: float | None = None,
        suppress_ragged_eofs: bool = False,
        received: bytes = b"",
    ) -> None:
        if server_side and handshake_timeout is None:
            handshake_timeout = DEFAULT_HANDSHAKE_TIMEOUT
        if handshake_timeout is not None and not handshake_timeout > 0:
            raise ValueError("handshake_timeout must be positive")
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_hostname
        )
        self._sock: Any = _take_over(sock)
        self._incoming.write(received)
        self._timeout = self._sock.gettimeout()
        self._ragged_eof_is_end = suppress_ragged_eofs
        self._handshake_timeout = handshake_timeout
        self._handshake_end: float | None = None
        self._established = False
        self._unsent: memoryview = memoryview(b"")
        self._reading = Lock()
        self._writing = Lock()
        self._sending = Lock()
        self._filling = Lock()
        self._broken = False
        self._closing = False
        self._io_refs = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} fd={self.fileno()}, version={self.version()!r}>"

    def __enter__(self) -> SSLObjectSocket:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # ---- what TLS wants ----

    def _end(self) -> _Deadline:
        """When an operation that begins now times out; None: never."""
        return None if self._timeout is None else time.monotonic() + self._timeout

    def _bound(self, end: _Deadline) -> None:
        """The next call on the socket ends at `end`."""
        if self._timeout == 0 or end == _NOW:
            self._sock.settimeout(0)
        elif end is None:
            self._sock.settimeout(None)
        else:
            # Zero would be a socket that doesn't wait; what is past still gets a try.
            self._sock.settimeout(max(end - time.monotonic(), 1e-6))

    def _run(self, call: Callable[[], _T], end: _Deadline, reads: bool = False) -> _T:
        """The result of a call of TLS, with all that it wants to send and to receive before.

        Who only reads does not wait until the peer takes what is to be sent: the peer may be
        waiting in the same way.
        """
        while True:
            try:
                result = _without_parking(call)
            except ssl.SSLWantReadError:
                if reads:
                    self._flush_some()
                else:
                    self._flush(end)
                self._fill(end)
            except ssl.SSLError:
                self._flush_some()  # the alert
                raise
            else:
                return result

    def _flush(self, end: _Deadline) -> None:
        """Send what TLS has to send. Who finds somebody at it leaves it to him."""
        while self._unsent or self._outgoing.pending:
            if not self._sending.acquire(False):
                return
            try:
                self._send(end)
            finally:
                self._sending.release()

    def _send(self, end: _Deadline) -> None:
        while True:
            if not self._unsent:
                self._unsent = memoryview(self._outgoing.read())
            if not self._unsent:
                return
            self._bound(end)
            try:
                sent = self._sock.send(self._unsent)
            except BlockingIOError:
                raise ssl.SSLWantWriteError(
                    ssl.SSL_ERROR_WANT_WRITE, "The operation did not complete (write)"
                ) from None
            self._unsent = self._unsent[sent:]

    def _flush_some(self) -> None:
        """Send what can be sent without waiting."""
        try:
            self._flush(_NOW)
        except OSError:
            pass  # who writes, or reads on, will see it

    def _fill(self, end: _Deadline) -> None:
        if not self._filling.acquire(False):
            # Somebody reads: what he gets may be what is wanted.
            with self._turn(self._filling, end):
                return
        try:
            self._fill_now(end)
        finally:
            self._filling.release()

    def _fill_now(self, end: _Deadline) -> None:
        self._bound(end)
        try:
            data = self._sock.recv(_CHUNK)
        except BlockingIOError:
            raise ssl.SSLWantReadError(
                ssl.SSL_ERROR_WANT_READ, "The operation did not complete (read)"
            ) from None
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    # ---- the handshake ----

    def do_handshake(self) -> None:
        """Make the handshake now; else the first read or write does."""
        self._establish(self._end())

    def _establish(self, end: _Deadline) -> None:
        if self._established:
            return
        self._check_open()
        with self._turn(self._reading, end):
            if self._established:  # by whoever had the turn
                return  # type: ignore[unreachable]
            if self._handshake_end is None and self._handshake_timeout is not None:
                self._handshake_end = time.monotonic() + self._handshake_timeout
            own = self._handshake_end
            first = own is not None and (end is None or own <= end)
            try:
                self._run(self._object.do_handshake, own if first else end)
                self._flush(own if first else end)
            except TimeoutError:
                if not first:
                    raise
                self._sock.close()
                raise TimeoutError("the TLS handshake timed out") from None
            self._established = True

    # ---- transfers ----

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        """Receive up to bufsize bytes; b'' is the end that the peer has said."""
        self._no_flags("recv", flags)
        if bufsize < 0:
            raise ValueError("negative buffersize in recv")
        data = self._read(lambda: self._object.read(bufsize) if bufsize else b"")
        return data or b""

    def recv_into(self, buffer: Buffer, nbytes: int = 0, flags: int = 0) -> int:
        """Receive into a buffer, up to nbytes (0: its size); return how many bytes."""
        self._no_flags("recv_into", flags)
        with memoryview(buffer) as view, view.cast("B") as octets:
            if octets.readonly:
                raise TypeError("a read-write bytes-like object is required")
            if not 0 <= nbytes <= len(octets):
                raise ValueError("buffer too small for requested bytes")
            count = nbytes or len(octets)
            if count == 0:
                return 0
            # Into memory of its own: a view may not be resized while others wait.
            data = self._read(lambda: self._object.read(count)) or b""
            octets[: len(data)] = data
            return len(data)

    def read(self, len: int = 1024, buffer: Buffer | None = None) -> bytes | int:
        """As recv(len), or as recv_into(buffer, len) when there is a buffer."""
        return self.recv(len) if buffer is None else self.recv_into(buffer, len)

    def _read(self, call: Callable[[], bytes]) -> bytes | None:
        end = self._end()
        self._establish(end)
        with self._turn(self._reading, end):
            self._check_open()
            try:
                data = self._run(call, end, reads=True)
                if data and (served := self._sock.served) is not None:
                    served._bytes_came()
                return data
            except ssl.SSLZeroReturnError:
                return None
            except ssl.SSLEOFError:
                if self._ragged_eof_is_end:
                    return None
                raise

    def send(self, data: Buffer, flags: int = 0, /) -> int:
        """Send up to a record of 16 KiB; return how many bytes were taken."""
        self._no_flags("send", flags)
        with memoryview(data) as view, view.cast("B") as octets:
            if not octets:
                return 0
            end = self._end()
            self._establish(end)
            with self._turn(self._writing, end):
                self._check_open()
                self._flush(end)
                sent = self._run(lambda: self._object.write(octets[:_RECORD]), end)
                try:
                    self._flush(end)
                except (TimeoutError, ssl.SSLWantWriteError):
                    pass  # they are part of the stream, whoever sends them
                return sent

    def write(self, data: Buffer, /) -> int:
        """As send(data)."""
        return self.send(data)

    def sendall(self, data: Buffer, flags: int = 0, /) -> None:
        """Send all of the data. The timeout bounds the whole call."""
        self._no_flags("sendall", flags)
        with memoryview(data) as view, view.cast("B") as octets:
            end = self._end()
            self._establish(end)
            with self._turn(self._writing, end):
                self._check_open()
                if self._broken:
                    raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
                done = 0
                try:
                    while done < len(octets):
                        piece = octets[done : done + _CHUNK]
                        done += self._run(partial(self._object.write, piece), end)
                        self._flush(end)
                except BaseException:
                    self._broken = self._broken or done > 0
                    raise

    def _turn(self, lock: Lock, end: _Deadline) -> Any:
        return _Turn(lock, self._timeout, end)

    def _no_flags(self, function: str, flags: int) -> None:
        if flags != 0:
            raise ValueError(f"non-zero flags not allowed in calls to {function}() on TLS")

    def _check_open(self) -> None:
        if self._sock is None or self._sock.fileno() < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    # ---- ends ----

    def shutdown(self, how: int, /) -> None:
        """SHUT_WR tells the peer that all was said, and reading goes on. The other ways end the
        connection's reading side, too."""
        if how not in (_socket.SHUT_RD, _socket.SHUT_WR, _socket.SHUT_RDWR):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._check_open()
        if how != _socket.SHUT_RD:
            end = self._end()
            with self._turn(self._writing, end):
                self._say_goodbye()
                self._flush(end)
        if how != _socket.SHUT_WR:
            self._sock.shutdown(how)

    def _say_goodbye(self) -> None:
        if self._broken:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        try:
            _without_parking(self._object.unwrap)
        except ssl.SSLWantReadError:
            pass  # ours is written; the peer's has not come
        except ssl.SSLError as error:
            # Ours is written; what the peer still says is for who reads.
            if error.reason != "APPLICATION_DATA_AFTER_CLOSE_NOTIFY":
                raise

    def unwrap(self) -> Socket | TLSSocket:
        """End TLS on both sides; return the socket, on which plain data may follow."""
        self._check_open()
        end = self._end()
        with self._turn(self._writing, end), self._turn(self._reading, end):
            self._run(self._object.unwrap, end)
            self._flush(end)
            sock = self._sock
            rest = self._incoming.read()
            if rest and not isinstance(sock, Socket):
                raise ssl.SSLError(
                    f"the peer sent {len(rest)} bytes of something else after its end"
                )
            if rest:
                sock._give_back(rest)
            self._sock = None
            sock.settimeout(self._timeout)
            return sock  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close. Tells the peer that all was said (close_notify), without waiting, unless an
        exception is being handled: then the peer sees that it was cut off. Idempotent."""
        self._closing = True
        if self._io_refs <= 0:
            self._close_now()

    def _close_now(self) -> None:
        sock = self._sock
        if sock is None or sock.fileno() < 0:
            return
        if sys.exc_info()[1] is None and self._established and not self._broken:
            try:
                self._say_goodbye()
                self._flush_some()
            except (OSError, ValueError):
                pass
        sock.close()

    def _decref_socketios(self) -> None:
        if self._io_refs > 0:
            self._io_refs -= 1
        if self._io_refs == 0 and self._closing:
            self._close_now()

    def makefile(
        self,
        mode: str = "r",
        buffering: int | None = None,
        *,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> IO[Any]:
        """A file over the connection, as open() makes them."""
        return _makefile(self, mode, buffering, encoding=encoding, errors=errors, newline=newline)

    def sendfile(self, file: IO[bytes], offset: int = 0, count: int | None = None) -> int:
        """Send a file, through the program; return how many bytes that were."""
        return _sendfile(self, file, offset, count)

    # ---- what was agreed upon, and the socket below ----

    @property
    def context(self) -> ssl.SSLContext:
        """The context."""
        return self._object.context

    @property
    def served(self) -> ServerConnection | None:
        """What the Server that accepted the connection knows of it; else None."""
        return self._sock.served  # type: ignore[no-any-return]

    @property
    def server_side(self) -> bool:
        """Whether this is the server's end."""
        return self._object.server_side

    @property
    def server_hostname(self) -> str | None:
        """The host that a client's certificate check is for."""
        return self._object.server_hostname

    @property
    def session(self) -> ssl.SSLSession | None:
        """The session, of the standard library."""
        return self._object.session

    @property
    def session_reused(self) -> bool:
        """Whether a session was resumed."""
        return bool(self._object.session_reused)

    def version(self) -> str | None:
        """'TLSv1.3' and the like; None before the handshake."""
        return self._object.version()

    def cipher(self) -> tuple[str, str, int] | None:
        """(name, version, bits of its key); None before the handshake."""
        return self._object.cipher()

    def selected_alpn_protocol(self) -> str | None:
        """The protocol above TLS; None: none."""
        return self._object.selected_alpn_protocol()

    def compression(self) -> str | None:
        """None: TLS is not compressed."""
        return self._object.compression()

    def getpeercert(self, binary_form: bool = False) -> dict[str, Any] | bytes | None:
        """As ssl.SSLSocket.getpeercert()."""
        return self._object.getpeercert(binary_form)

    def get_channel_binding(self, cb_type: str = "tls-unique") -> bytes | None:
        """As ssl.SSLSocket.get_channel_binding()."""
        return self._object.get_channel_binding(cb_type)

    def pending(self) -> int:
        """How many bytes recv() has ready of which fileno() tells nothing any more."""
        return self._object.pending()

    def settimeout(self, timeout: float | None, /) -> None:
        """Bound each operation by so many seconds, as TLSSocket.settimeout() does."""
        self._sock.settimeout(timeout)
        self._timeout = self._sock.gettimeout()

    def gettimeout(self) -> float | None:
        """The timeout in seconds; None: there is none."""
        return self._timeout

    @property
    def timeout(self) -> float | None:
        """As gettimeout()."""
        return self._timeout

    def setblocking(self, flag: bool, /) -> None:
        """As settimeout(None) or settimeout(0)."""
        self.settimeout(None if flag else 0)

    def getblocking(self) -> bool:
        """False when operations never wait."""
        return self._timeout != 0

    def fileno(self) -> int:
        """The descriptor's number; -1 once closed."""
        return -1 if self._sock is None else self._sock.fileno()

    def getsockname(self) -> Any:
        """The local address."""
        self._check_open()
        return self._sock.getsockname()

    def getpeername(self) -> Any:
        """The address of the peer."""
        self._check_open()
        return self._sock.getpeername()

    def getsockopt(self, *args: Any) -> Any:
        """As Socket.getsockopt()."""
        self._check_open()
        return self._sock.getsockopt(*args)

    def setsockopt(self, *args: Any) -> None:
        """As Socket.setsockopt()."""
        self._check_open()
        self._sock.setsockopt(*args)

    @property
    def family(self) -> int:
        """The family of the socket below."""
        self._check_open()
        return self._sock.family  # type: ignore[no-any-return]

    @property
    def type(self) -> int:
        """socket.SOCK_STREAM"""
        return _socket.SOCK_STREAM

    @property
    def proto(self) -> int:
        """The protocol's number."""
        self._check_open()
        return self._sock.proto  # type: ignore[no-any-return]


class _Turn(Unique):
    """A lock for the time of a block, waited for no longer than the operation may take."""

    __slots__ = ("_end", "_lock", "_timeout")

    def __init__(self, lock: Lock, timeout: float | None, end: _Deadline) -> None:
        self._lock = lock
        self._timeout = timeout
        self._end = end

    def __enter__(self) -> None:
        if self._lock.acquire(False):
            return
        if self._timeout == 0:
            raise ssl.SSLWantReadError(
                ssl.SSL_ERROR_WANT_READ, "The operation did not complete (read)"
            )
        if self._end is None:
            self._lock.acquire()
        elif not self._lock.acquire(True, max(self._end - time.monotonic(), 0)):
            raise TimeoutError("timed out")

    def __exit__(self, *_: object) -> None:
        self._lock.release()
