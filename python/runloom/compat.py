"""Names of runloom 0.2 that are kept: each with one line of meaning.

runloom_c has TCPConn, serve and Coro, too, from here.
"""

from __future__ import annotations

import errno
import socket as _socket
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from runloom_c import Cancelled, G, Socket, current_g, go, park_self, sched_sleep
from runloom_c import _sync_fiber as fiber

from ._unique import Unique
from .sync.socket import tcp_connect, tcp_listen

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from typing_extensions import Buffer

__all__ = ["Coro", "TCPConn", "serve"]

_T = TypeVar("_T")
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class TCPConn(Socket):
    """A TCP socket, connected or listening, with the short calls of runloom 0.2."""

    @classmethod
    def _from(cls, sock: Socket) -> Self:
        family, proto = sock.family, sock.proto
        return cls(family, _socket.SOCK_STREAM, proto, fileno=sock.detach())

    @classmethod
    def connect(cls, host: str, port: int) -> Self:  # type: ignore[override]
        """Connect to a host."""
        return cls._from(tcp_connect(host, port))

    @classmethod
    def listen(  # type: ignore[override]
        cls, host: str, port: int, backlog: int = 1024, reuseport: bool = False
    ) -> Self:
        """Listen on a local address."""
        return cls._from(tcp_listen(host, port, backlog=backlog, reuse_port=reuseport))

    def accept(self) -> Self:  # type: ignore[override]
        """Wait for a connection, without its address: getpeername() has it."""
        sock, _ = super().accept()
        return self._from(sock)

    def send_all(self, data: Buffer, /) -> None:
        """As sendall(data)."""
        self.sendall(data)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self.fileno() < 0


def serve(
    host: str,
    port: int,
    handler: Callable[[TCPConn], object],
    *,
    acceptors: int = 1,
    backlog: int = 1024,
    reuse_port: bool = False,
) -> tuple[int, list[TCPConn]]:
    """Listen, and call handler(conn) on a fiber of its own for each connection, which is closed
    when the handler ends. Returns (port, listeners) at once; closing the listeners ends it.

    With several acceptors each has a listener of its own on the port.
    """
    if not callable(handler):
        raise TypeError(f"handler must be callable, not {handler!r}")
    if not isinstance(acceptors, int) or acceptors < 1:
        raise ValueError(f"acceptors must be at least 1, not {acceptors!r}")
    listeners: list[TCPConn] = []
    try:
        for _ in range(acceptors):
            shared = reuse_port or acceptors > 1
            listeners.append(TCPConn.listen(host, port, backlog, shared))
            port = listeners[0].getsockname()[1]
        for each in listeners:
            fiber(_accept_all, each, handler)
    except BaseException:
        for each in listeners:
            each.close()
        raise
    return port, listeners


def _accept_all(listener: TCPConn, handler: Callable[[TCPConn], object]) -> None:
    while not listener.closed:
        try:
            conn = listener.accept()
        except OSError as error:
            if listener.fileno() < 0:
                return
            if error.errno not in _SHORTAGES:
                raise
            # Those that are connected go on; the waiting ones are accepted a little later.
            sched_sleep(0.05)
            continue
        fiber(_handle, conn, handler)


def _handle(conn: TCPConn, handler: Callable[[TCPConn], object]) -> None:
    with conn:
        handler(conn)


class Coro(Unique, Generic[_T]):
    """A function that is run in steps: resume() runs it until it calls suspend() or returns.

        def count(coro):
            for each in range(3):
                coro.suspend(each)

        coro = Coro(count)
        coro.resume()  # 0

    On a fiber.
    """

    def __init__(self, fn: Callable[[Coro[_T]], _T], *, stack_size: int | None = None) -> None:
        if not callable(fn):
            raise TypeError(f"fn must be callable, not {fn!r}")
        self._fn = fn
        self._stack_size = stack_size
        self._fiber: G[_T] | None = None
        self._resumer: G[Any] | None = None
        self._in: Any = None
        self._out: Any = None

    @property
    def done(self) -> bool:
        """Whether the function has returned or raised."""
        return self._fiber is not None and self._fiber.done

    def resume(self, value: Any = None) -> Any:
        """Run it on: what it suspends with, or what it returns. What it raises is raised.

        `value` is what its suspend() returns. RuntimeError when it is done, or runs already.
        """
        own = current_g()
        if own is None:
            raise RuntimeError("resume() outside of a fiber")
        if self._resumer is not None:
            raise RuntimeError("the Coro is running")
        if self.done:
            raise RuntimeError("the Coro is done")
        self._resumer = own
        self._in = value
        if self._fiber is None:
            self._fiber = go(self._run, stack_size=self._stack_size)
        else:
            self._fiber.wake()
        try:
            while self._resumer is own:
                park_self()
        except BaseException:
            self._resumer = None
            self._fiber.cancel()
            raise
        if self._fiber.error is not None:
            raise self._fiber.error
        out, self._out = self._out, None
        return out

    def suspend(self, value: Any = None) -> Any:
        """Inside of it: let resume() return the value, and wait for the next one."""
        if current_g() is not self._fiber:
            raise RuntimeError("suspend() outside of the Coro's function")
        self._out = value
        resumer, self._resumer = self._resumer, None
        if resumer is not None:
            resumer.wake()
        while not self._is_resumed():
            park_self()
        return self._in

    def _is_resumed(self) -> bool:
        return self._resumer is not None

    def close(self) -> None:
        """End it: its suspend() raises Cancelled."""
        if self._fiber is not None and not self._fiber.done:
            self._fiber.cancel()
            try:
                self._fiber.join()
            except Cancelled:
                pass

    def _run(self) -> _T:
        try:
            result = self._out = self._fn(self)
            return result
        finally:
            resumer, self._resumer = self._resumer, None
            # The error is there when the resumer looks: this fiber ends before the next one runs.
            if resumer is not None:
                resumer.wake()
