"""Sockets that read like blocking code: Socket, and how to get one.

The type is native; here is what is built on its methods.
"""

from __future__ import annotations

import errno
import io
import socket as _socket
import time
import weakref
from typing import IO, TYPE_CHECKING, Any, TypeAlias, TypeVar

from runloom._unique import Unique as _Unique
from runloom.cancel import timeout as _timeout
from runloom_c import (
    Socket,
    _dial,
    _getaddrinfo,
    _getnameinfo,
    _resolve,
    _socketpair,
    _unix_listen,
    current_g,
)

if TYPE_CHECKING:
    from runloom_c import TLSSocket, _Address, _Path

    from .ssl_object import SSLObjectSocket

    _AnySocket: TypeAlias = Socket | TLSSocket | SSLObjectSocket

__all__ = [
    "Socket",
    "getaddrinfo",
    "getnameinfo",
    "socketpair",
    "tcp_connect",
    "tcp_listen",
    "udp_endpoint",
    "unix_connect",
    "unix_listen",
]

_CHUNK = 256 * 1024


def tcp_connect(
    host: str | bytes | None,
    port: int,
    *,
    timeout: float | None = None,
    source_address: _Address | None = None,
    no_delay: bool = True,
) -> Socket:
    """Connect to a host, by name or address.

    Its addresses are tried as RFC 8305 has it (happy eyeballs): IPv6 and IPv4 take turns, and the
    next one is tried when one has failed, or a quarter of a second later. With a source_address
    they are tried one after the other. The timeout, in seconds, bounds all of it (TimeoutError),
    the lookup of the name included; the socket that comes out has none. Raises OSError, whose text
    names every address that failed and why, and socket.gaierror when the name has none.
    """
    if source_address is None:
        return _dial(host, port, timeout, no_delay)
    if timeout is None or current_g() is None:
        return _connect_from(source_address, host, port, no_delay, timeout)
    with _timeout(timeout):
        return _connect_from(source_address, host, port, no_delay, None)


def _connect_from(
    source: _Address, host: str | bytes | None, port: int, no_delay: bool, timeout: float | None
) -> Socket:
    end = None if timeout is None else time.monotonic() + timeout
    error: OSError | None = None
    try:
        for family, address in _resolve(host, port, 0, _socket.SOCK_STREAM, False):
            sock = Socket(family, _socket.SOCK_STREAM, _socket.IPPROTO_TCP)
            try:
                if no_delay:
                    sock.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
                sock.bind(source)
                if end is not None:
                    # Zero would be a socket that doesn't wait; what is past still gets a try.
                    sock.settimeout(max(end - time.monotonic(), 1e-6))
                sock.connect(address)
                sock.settimeout(None)
            except OSError as failure:
                sock.close()
                error = failure
                if end is not None and time.monotonic() >= end:
                    break
            except BaseException:
                sock.close()
                raise
            else:
                return sock
        if error is None:
            raise OSError(f"no address for {host!r}")
        raise error
    finally:
        error = None  # its traceback refers to this frame


def getaddrinfo(
    host: str | bytes | None,
    port: int | str | bytes | None,
    family: int = 0,
    type: int = 0,
    proto: int = 0,
    flags: int = 0,
) -> list[tuple[_socket.AddressFamily, _socket.SocketKind, int, str, Any]]:
    """As socket.getaddrinfo(): (family, type, proto, canonical name, address) of each address, in
    the order in which they should be tried.

    Without a thread; the results and their order, and the errors (socket.gaierror), are glibc's.
    """
    return [
        (_socket.AddressFamily(each[0]), _socket.SocketKind(each[1]), *each[2:])
        for each in _getaddrinfo(host, port, family, type, proto, flags)
    ]


def getnameinfo(
    sockaddr: tuple[str, int] | tuple[str, int, int] | tuple[str, int, int, int], flags: int
) -> tuple[str, str]:
    """As socket.getnameinfo(): (host, service) of an address."""
    if not isinstance(sockaddr, tuple):
        raise TypeError("getnameinfo() argument 1 must be a tuple")
    if not 2 <= len(sockaddr) <= 4:
        raise TypeError("getnameinfo(): illegal sockaddr argument")
    host, port, flowinfo, scope_id = (*sockaddr, 0, 0)[:4]
    if not isinstance(host, str):
        raise TypeError(f"getnameinfo(): host must be a str, not {host!r}")
    if not 0 <= flowinfo <= 0xFFFFF:
        raise OverflowError("getnameinfo(): flowinfo must be 0-1048575.")
    return _getnameinfo(host, port, flowinfo, scope_id, flags)


def tcp_listen(
    host: str | bytes | None,
    port: int,
    *,
    backlog: int = 128,
    reuse_port: bool = False,
    reuse_address: bool = True,
    no_delay: bool = True,
) -> Socket:
    """Listen on a local address; port 0 lets the kernel choose.

    An empty host or None is every IPv4 address, "::" every IPv6 and IPv4 address. With reuse_port
    several listeners share the port. Connections inherit no_delay.
    """
    return _open_listener(
        Socket,
        host,
        port,
        backlog=backlog,
        reuse_port=reuse_port,
        reuse_address=reuse_address,
        no_delay=no_delay,
    )


_Listener = TypeVar("_Listener", bound=Socket)


def _open_listener(
    kind: type[_Listener],
    host: str | bytes | None,
    port: int,
    *,
    backlog: int,
    reuse_port: bool,
    reuse_address: bool,
    no_delay: bool,
) -> _Listener:
    family, address = _resolve(
        host or "0.0.0.0", port, _socket.AF_UNSPEC, _socket.SOCK_STREAM, True
    )[0]
    sock = kind(family, _socket.SOCK_STREAM, _socket.IPPROTO_TCP)
    try:
        if reuse_address:
            sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        if reuse_port:
            sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEPORT, 1)
        if no_delay:
            sock.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
        sock.bind(address)
        sock.listen(backlog)
    except BaseException:
        sock.close()
        raise
    return sock


def udp_endpoint(
    local_addr: _Address | None = None,
    remote_addr: _Address | None = None,
    *,
    family: int = _socket.AF_UNSPEC,
    reuse_address: bool = False,
    reuse_port: bool = False,
    allow_broadcast: bool = False,
) -> Socket:
    """A socket for datagrams, bound to local_addr and connected to remote_addr, where given.

    Addresses are (host, port), for IPv6 also (host, port, flowinfo, scope_id). A local host of
    None or "" is every IPv4 address, "::" every IPv6 and IPv4 address; port 0 lets the kernel
    choose. Of names the first pair of addresses that fits together is taken; without any address
    the socket is an unbound IPv4 one. A connected socket sends to its peer and hears from it alone,
    also that nobody is there (ConnectionRefusedError), which others don't hear. With reuse_port
    several sockets share the port; with allow_broadcast it may send to broadcast addresses.

    An empty datagram is received as b"", and is no end.
    """
    if family not in (_socket.AF_UNSPEC, _socket.AF_INET, _socket.AF_INET6):
        raise ValueError(f"family must be AF_INET or AF_INET6, not {family!r}")
    locals_ = _udp_addresses("local_addr", local_addr, family, True)
    remotes = _udp_addresses("remote_addr", remote_addr, family, False)
    error: OSError | None = None
    try:
        for chosen, local, remote in _udp_pairs(locals_, remotes, family):
            sock = Socket(chosen, _socket.SOCK_DGRAM)
            try:
                if reuse_address:
                    sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
                if reuse_port:
                    sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEPORT, 1)
                if allow_broadcast:
                    sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_BROADCAST, 1)
                if local is not None:
                    sock.bind(local)
                if remote is not None:
                    sock.connect(remote)
            except OSError as failure:
                sock.close()
                error = failure
            except BaseException:
                sock.close()
                raise
            else:
                return sock
        if error is None:
            raise OSError(
                errno.EAFNOSUPPORT,
                f"{local_addr!r} and {remote_addr!r} have no address family in common",
            )
        raise error
    finally:
        error = None  # its traceback refers to this frame


def _udp_addresses(
    name: str, address: _Address | None, family: int, passive: bool
) -> list[tuple[int, Any]]:
    """The addresses that local_addr or remote_addr stands for; none where it is None."""
    if address is None:
        return []
    if not isinstance(address, tuple) or not 2 <= len(address) <= 4:
        raise TypeError(f"{name} must be a tuple (host, port), not {address!r}")
    host, port, *rest = address
    if passive and not host:
        host = "0.0.0.0" if family != _socket.AF_INET6 else "::"
    found = _resolve(host, port, family, _socket.SOCK_DGRAM, passive)
    if not rest:
        return found
    # What the tuple says besides overrides what the text of the host says.
    full = [(each, (*resolved[:2], *rest)) for each, resolved in found if each == _socket.AF_INET6]
    if not full:
        raise ValueError(f"{name} has a flow label or a scope, which only IPv6 has: {address!r}")
    return full


def _udp_pairs(
    locals_: list[tuple[int, Any]], remotes: list[tuple[int, Any]], family: int
) -> list[tuple[int, Any, Any]]:
    """(family, local, remote) that fit together, in the resolver's order."""
    if locals_ and remotes:
        return [
            (one, local, remote)
            for one, remote in remotes
            for other, local in locals_
            if one == other
        ]
    if locals_:
        return [(each, local, None) for each, local in locals_]
    if remotes:
        return [(each, None, remote) for each, remote in remotes]
    return [(family or _socket.AF_INET, None, None)]


def unix_connect(path: _Path, *, timeout: float | None = None) -> Socket:
    """Connect to a Unix socket; a path that begins with a zero byte is an abstract name.

    Waits while the listener's queue is full, at most for the timeout in seconds (TimeoutError); the
    socket that comes out has none.
    """
    sock = Socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        if timeout is not None:
            # Zero would be a socket that doesn't wait; it still gets a try.
            sock.settimeout(max(timeout, 1e-6))
        sock.connect(path)
        sock.settimeout(None)
    except BaseException:
        sock.close()
        raise
    return sock


def unix_listen(path: _Path, *, backlog: int = 128, mode: int | None = None) -> Socket:
    """Listen on a Unix socket; a path that begins with a zero byte is an abstract name, and an
    empty one lets the kernel choose such a name.

    The mode is that of the socket's file from its first moment; None leaves it to the umask. A
    file that a server left behind which is gone is replaced; while one still has it, and when it
    is not the file of a socket, OSError(EADDRINUSE). close() removes the file if it is still the
    one that was made here, in the process that made it.
    """
    return _unix_listen(path, backlog, mode)


def socketpair(
    family: int = _socket.AF_UNIX, type: int = _socket.SOCK_STREAM, proto: int = 0
) -> tuple[Socket, Socket]:
    """Two sockets that are connected to each other."""
    return _socketpair(family, type, proto)


# ---- methods of Socket ----

# The files over a socket that are open.
_files: weakref.WeakKeyDictionary[Any, weakref.WeakSet[_SocketIO]] = weakref.WeakKeyDictionary()


def files_of(sock: _AnySocket) -> list[_SocketIO]:
    return [file for file in _files.get(sock, ()) if not file.closed]


class _SocketIO(_Unique, io.RawIOBase):
    """The raw file under makefile(). Closing the last one lets a closed socket go."""

    _sock: _AnySocket | None = None

    def __init__(self, sock: _AnySocket, mode: str) -> None:
        super().__init__()
        self._mode = mode
        self._timed_out = False
        self._plain_ended = False
        self._above: weakref.ref[Any] | None = None
        sock._io_refs += 1
        self._sock = sock  # which close() gives back
        _files.setdefault(sock, weakref.WeakSet()).add(self)

    def _open_socket(self) -> _AnySocket:
        if self._sock is None:
            raise ValueError("I/O operation on closed socket.")
        return self._sock

    def readinto(self, buffer: Any) -> int | None:
        sock = self._open_socket()
        if not self.readable():
            raise io.UnsupportedOperation("File or stream is not readable.")
        if self._plain_ended:
            return None
        if self._timed_out:
            # What was read before the timeout may be lost in a buffer above.
            raise OSError("cannot read from timed out object")
        try:
            return sock.recv_into(buffer)
        except BlockingIOError:
            return None
        except TimeoutError:
            self._timed_out = True
            raise

    def write(self, data: Any) -> int | None:
        sock = self._open_socket()
        if not self.writable():
            raise io.UnsupportedOperation("File or stream is not writable.")
        try:
            return sock.send(data)
        except BlockingIOError:
            return None

    def end_plain(self) -> bytes:
        """The file is not used any more: sends what it has to send, and returns what it has read
        from the socket and not given out."""
        above = None if self._above is None else self._above()
        if above is None:
            return b""
        if isinstance(above, io.TextIOWrapper):
            if self.readable():
                raise ValueError(
                    "a text file over the socket may have read ahead; read lines from "
                    "makefile('rb') before start_tls()"
                )
            above.flush()
            return b""
        if self.writable():
            above.flush()
        if not self.readable():
            return b""
        self._plain_ended = True
        try:
            return above.read1() or b""
        finally:
            self._plain_ended = False

    def readable(self) -> bool:
        self._open_socket()
        return "r" in self._mode

    def writable(self) -> bool:
        self._open_socket()
        return "w" in self._mode

    def seekable(self) -> bool:
        self._open_socket()
        return False

    def fileno(self) -> int:
        return self._open_socket().fileno()

    @property
    def name(self) -> int:
        return -1 if self._sock is None else self._sock.fileno()

    @property
    def mode(self) -> str:
        return self._mode

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        sock, self._sock = self._sock, None
        if sock is not None:
            sock._decref_socketios()


def makefile(
    sock: _AnySocket,
    mode: str = "r",
    buffering: int | None = None,
    *,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
) -> IO[Any]:
    """A file over the socket, as socket.socket.makefile() makes it."""
    if not set(mode) <= {"r", "w", "b"}:
        raise ValueError(f"invalid mode {mode!r} (only r, w, b allowed)")
    writing = "w" in mode
    reading = "r" in mode or not writing
    binary = "b" in mode
    if buffering is None or buffering < 0:
        buffering = io.DEFAULT_BUFFER_SIZE
    if buffering == 0 and not binary:
        raise ValueError("unbuffered streams must be binary")
    raw = _SocketIO(sock, ("r" if reading else "") + ("w" if writing else "") + "b")
    if buffering == 0:
        return raw  # type: ignore[return-value]
    buffer: Any
    if reading and writing:
        buffer = io.BufferedRWPair(raw, raw, buffering)
    elif reading:
        buffer = io.BufferedReader(raw, buffering)
    else:
        buffer = io.BufferedWriter(raw, buffering)
    if binary:
        raw._above = weakref.ref(buffer)
        return buffer  # type: ignore[no-any-return]
    text: Any = io.TextIOWrapper(buffer, encoding, errors, newline)
    text.mode = mode
    raw._above = weakref.ref(text)
    return text  # type: ignore[no-any-return]


def sendfile(sock: _AnySocket, file: IO[bytes], offset: int = 0, count: int | None = None) -> int:
    """Send a file without copying it through the program, where the kernel can do that.

    The file's position is where sending ended, also after an error.
    """
    if "b" not in getattr(file, "mode", "b"):
        raise ValueError("file should be opened in binary mode")
    if sock.type != _socket.SOCK_STREAM:
        raise ValueError("only SOCK_STREAM type sockets are supported")
    if count is not None:
        if not isinstance(count, int):
            raise TypeError(f"count must be a positive integer (got {count!r})")
        if count <= 0:
            raise ValueError(f"count must be a positive integer (got {count!r})")
    if sock.gettimeout() == 0:
        raise ValueError("non-blocking sockets are not supported")
    if not isinstance(sock, Socket):
        return _send_by_reading(sock, file, offset, count)  # TLS: it is sent as ciphertext
    try:
        fd = file.fileno()
    except (AttributeError, io.UnsupportedOperation):
        return _send_by_reading(sock, file, offset, count)
    sent, error = sock._sendfile(fd, offset, (1 << 62) if count is None else count)
    if error is not None and sent == 0 and isinstance(error, OSError) and _cannot_send(error):
        return _send_by_reading(sock, file, offset, count)
    if sent > 0 and hasattr(file, "seek"):
        file.seek(offset + sent)
    if error is not None:
        raise error
    return sent


def _cannot_send(error: OSError) -> bool:
    return error.errno in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ESPIPE)


def _send_by_reading(sock: _AnySocket, file: IO[bytes], offset: int, count: int | None) -> int:
    if offset:
        file.seek(offset)
    total = 0
    try:
        while count is None or total < count:
            data = file.read(_CHUNK if count is None else min(_CHUNK, count - total))
            if not data:
                break
            view = memoryview(data)
            while view:
                sent = sock.send(view)
                total += sent
                view = view[sent:]
        return total
    finally:
        if total > 0 and hasattr(file, "seek"):
            file.seek(offset + total)
