"""Server: accepts connections, and runs a handler for each on a fiber of its own."""

from __future__ import annotations

import math
import signal as _signal
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from runloom._unique import Unique
from runloom_c import Socket, _make_server

from .socket import tcp_listen, unix_listen

if TYPE_CHECKING:
    import os
    import ssl
    from collections.abc import Callable, Iterable
    from types import FrameType, TracebackType
    from typing import Self

    from runloom.tls import Context
    from runloom_c import _Address

    _Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]

__all__ = ["Server", "ServerReport", "ServerTimeouts"]


class ServerTimeouts(NamedTuple):
    """How long a client may take, in seconds. None: for ever.

    All but `handshake` count from ServerConnection.await_request() on.
    """

    handshake: float | None = 10.0
    """From accept until a PROXY header was read and the TLS handshake made."""
    first_byte: float | None = 30.0
    """Until the first byte of the first request."""
    idle: float | None = 60.0
    """Until the first byte of each further one."""
    head: float | None = 20.0
    """From that byte until head_done()."""
    body: float | None = 60.0
    """Of waiting in reads after it."""
    write: float | None = 60.0
    """Of waiting in writes, in each request."""
    least_rate: int = 1024
    """Bytes a second that are fast enough: each byte of a body or of an answer adds its share to
    the time. 0: none does."""


class ServerReport(NamedTuple):
    """A fault of a server, told at most once a second for each kind."""

    fault: str
    """What went wrong: "accept" (no descriptor or memory; tried again), "no_fiber", "handler" (it
    raised), "listener" (the server ends), "proxy_header", "handshake" or "notify". But for
    "accept", "listener" and "notify" the connection was closed."""
    error: BaseException | None
    """The exception, where there is one."""
    text: str
    """What it says."""
    peer: _Address | None
    """The client, where there is one."""
    left_out: int
    """Reports of this fault that were not made since the last one."""


class Server(Unique):
    """Accepts connections, and calls handler(conn) for each on a fiber of its own.

        def handle(conn):
            while data := conn.recv(4096):
                conn.sendall(data)

        server = sync.Server(handle, max_connections=10_000)
        server.listen("127.0.0.1", 7007)
        server.serve(drain=10)  # until SIGTERM or SIGINT, or until stop()

    conn is a Socket, or a TLSSocket when there is a context; it is closed when the handler ends,
    and conn.served is what the server knows of it (ServerConnection): who the client is, and the
    deadlines of its requests. A server is a nursery: serve() returns when every handler has ended.
    What a handler raises ends its connection only, and is reported; that the connection failed is
    no fault, and is not.

    max_connections: handlers that may run at the same time, 0 any number. At the limit clients
    wait in the backlog; with reject_over_limit they are closed. max_connections_per_peer: of one
    IPv4 address, or of one IPv6 network of ipv6_peer_prefix bits; more are closed.

    timeouts: a ServerTimeouts. context: the server speaks TLS, by a runloom.tls.Context or an
    ssl.SSLContext; the handshake is made ahead of the handler, within timeouts.handshake.

    trusted_proxies: networks ("10.0.0.0/8", "192.0.2.7", "unix:") of which each connection begins
    with a header of the PROXY protocol, version 1 or 2; others are closed, or served as they come
    with serve_untrusted. linger: seconds for which a connection that is closed still reads what the
    client sends, linger_bytes of it at most, so that the client reads the answer and no reset.

    stack_size: of a handler's fiber. backlog_at_stop: "serve" or "refuse", what becomes of clients
    that are connected and not accepted yet when the server stops. cancel_grace: seconds for which
    handlers that were cancelled may clean up, before their connections are closed. notify_systemd:
    the service manager hears of readiness, of the stop, and by the watchdog.

    report: called with a ServerReport for faults; None writes them to stderr, and what a handler
    raised to sys.unraisablehook.
    """

    def __init__(
        self,
        handler: Callable[[Any], object],
        *,
        backlog: int = 1024,
        max_connections: int = 0,
        reject_over_limit: bool = False,
        max_connections_per_peer: int = 0,
        ipv6_peer_prefix: int = 64,
        timeouts: ServerTimeouts | None = None,
        context: Context | ssl.SSLContext | None = None,
        trusted_proxies: Iterable[str] = (),
        serve_untrusted: bool = False,
        linger: float | None = None,
        linger_bytes: int = 1024 * 1024,
        stack_size: int | None = None,
        backlog_at_stop: str = "serve",
        cancel_grace: float = 1.0,
        notify_systemd: bool = False,
        report: Callable[[ServerReport], object] | None = None,
    ) -> None:
        if timeouts is None:
            timeouts = ServerTimeouts()
        elif not isinstance(timeouts, ServerTimeouts):
            raise TypeError(f"timeouts must be a ServerTimeouts, not {timeouts!r}")
        if backlog_at_stop not in ("serve", "refuse"):
            raise ValueError(
                f"backlog_at_stop must be 'serve' or 'refuse', not {backlog_at_stop!r}"
            )
        if isinstance(trusted_proxies, (str, bytes)):
            raise TypeError("trusted_proxies must be several networks, not one string")
        if report is not None and not callable(report):
            raise TypeError(f"report must be callable, not {report!r}")
        options: dict[str, Any] = {
            "backlog": backlog,
            "max_connections": max_connections,
            "reject_over_limit": bool(reject_over_limit),
            "max_connections_per_peer": max_connections_per_peer,
            "ipv6_peer_prefix": ipv6_peer_prefix,
            "least_rate": timeouts.least_rate,
            "trusted_proxies": tuple(trusted_proxies),
            "serve_untrusted": bool(serve_untrusted),
            "lingers": linger is not None,
            "linger_time": _milliseconds("linger", linger),
            "linger_bytes": linger_bytes,
            "stack_size": 0 if stack_size is None else stack_size,
            "refuse_backlog_at_stop": backlog_at_stop == "refuse",
            "cancel_grace": _milliseconds("cancel_grace", cancel_grace),
            "notify_systemd": bool(notify_systemd),
        }
        for name, seconds in timeouts._asdict().items():
            if name != "least_rate":
                options[name] = _milliseconds(name, seconds)
        self._backlog = backlog
        self._listeners: list[Socket] = []
        self._server = _make_server(
            handler, _starter_of(context), None if report is None else _reporter(report), options
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def listen(
        self,
        host: str | bytes | None,
        port: int,
        *,
        reuse_port: bool = False,
        reuse_address: bool = True,
        no_delay: bool = True,
    ) -> tuple[Any, ...]:
        """Listen on a local address, as tcp_listen() does; return it, with its port.

        Before serve(), any number of times.
        """
        return self.listen_on(  # type: ignore[no-any-return]
            tcp_listen(
                host,
                port,
                backlog=self._backlog,
                reuse_port=reuse_port,
                reuse_address=reuse_address,
                no_delay=no_delay,
            )
        )

    def listen_unix(self, path: _Path, *, mode: int | None = None) -> str | bytes:
        """Listen on a Unix socket, as unix_listen() does; return its path.

        Its file is removed when serve() ends.
        """
        return self.listen_on(  # type: ignore[no-any-return]
            unix_listen(path, backlog=self._backlog, mode=mode)
        )

    def listen_on(self, listener: Socket) -> Any:
        """Take a listening socket over, perhaps the service manager's; return its address."""
        if not isinstance(listener, Socket):
            raise TypeError(f"listener must be a runloom.sync.Socket, not {listener!r}")
        address = listener.getsockname()
        self._listeners.append(listener)
        return address

    @property
    def addresses(self) -> list[Any]:
        """Where it listens; empty once serve() has taken the listeners."""
        return [listener.getsockname() for listener in self._listeners]

    def serve(
        self,
        *,
        drain: float | None = 30.0,
        signals: Iterable[int] | None = (_signal.SIGTERM, _signal.SIGINT),
    ) -> None:
        """Serve until the server is stopped; return when all handlers have ended. Once.

        On the main thread the first of the signals stops it as begin_stop(drain) does, another one
        at once; their handlers are restored afterwards. None, or (): no signals, which is how it is
        on other threads. Without a listener nobody can come, and it waits for the stop. OSError
        when a listener is broken; when the caller is cancelled the server stops at once, and
        Cancelled is raised when its handlers have ended.
        """
        previous: dict[int, Any] = {}
        try:
            for listener in self._listeners:
                self._server.listen_on(listener)
            self._listeners.clear()
            if signals and threading.current_thread() is threading.main_thread():
                previous = self._stop_on(signals, drain)
            self._server.serve()
        finally:
            for number, handler in previous.items():
                _signal.signal(number, _signal.SIG_DFL if handler is None else handler)

    def begin_stop(self, drain: float | None = 0.0) -> None:
        """End serve(): it accepts no more, and handlers may run for `drain` seconds, None for ever;
        then they are cancelled.

        Who waits for a further request (ServerConnection.await_request) waits no more:
        ConnectionAbortedError. Doesn't wait; any thread, and signal handlers. The earliest end of
        all calls counts.
        """
        self._server.begin_stop(drain)

    def stop(self, drain: float | None = 0.0) -> None:
        """begin_stop(drain), and wait until serve() is about to return."""
        self._server.stop(drain)

    def close(self) -> None:
        """Close the listeners of a server that was not served, and stop one that is at once."""
        self._server.begin_stop(0)
        while self._listeners:
            self._listeners.pop().close()

    def stats(self) -> dict[str, Any]:
        """What was counted: accepted, active, rejected, cancelled, rejected_peers, peers,
        untrusted, proxied, handshakes, lingered, taken_at_stop, closed_at_stop; and, by their
        names, the timeouts and faults."""
        return self._server.stats()

    def _stop_on(self, signals: Iterable[int], drain: float | None) -> dict[int, Any]:
        wanted: list[float | None] = [drain, 0.0]

        def stop(_number: int, _frame: FrameType | None) -> None:
            self._server.begin_stop(wanted.pop(0) if len(wanted) > 1 else wanted[0])

        previous: dict[int, Any] = {}
        try:
            for number in signals:
                previous[number] = _signal.signal(number, stop)
        except BaseException:
            for number, handler in previous.items():
                _signal.signal(number, _signal.SIG_DFL if handler is None else handler)
            raise
        return previous


def _milliseconds(name: str, seconds: float | None) -> int:
    """A time as C++ has it, where 0 is for ever; what is shorter than a millisecond is one."""
    if seconds is None:
        return 0
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise TypeError(f"{name} must be a number of seconds or None, not {seconds!r}")
    if math.isnan(seconds) or seconds < 0 or (seconds == 0 and name != "cancel_grace"):
        raise ValueError(f"{name} must be positive, not {seconds!r}")
    return min(math.ceil(seconds * 1000), 1 << 40) if math.isfinite(seconds) else 0


def _reporter(report: Callable[[ServerReport], object]) -> Callable[..., object]:
    def tell(*parts: Any) -> object:
        return report(ServerReport(*parts))

    return tell


def _starter_of(
    context: Context | ssl.SSLContext | None,
) -> Callable[[Socket, float], Any] | None:
    if context is None:
        return None
    import ssl

    from runloom.tls import Context

    from .tls import _wrap

    if isinstance(context, Context):
        if context.protocol != ssl.PROTOCOL_TLS_SERVER:
            raise ValueError("a Server needs a context of ssl.PROTOCOL_TLS_SERVER")
        context._native(True)  # what is wrong with it is told now
    elif not isinstance(context, ssl.SSLContext):
        raise TypeError(
            f"context must be a runloom.tls.Context or an ssl.SSLContext, not {context!r}"
        )

    def start_tls(sock: Socket, seconds: float) -> Any:
        # A time that is over still gets a try; negative: there is no end.
        timeout = None if seconds < 0 else max(seconds, 1e-3)
        sock.settimeout(timeout)
        conn = _wrap(sock, context, server_side=True, handshake_timeout=timeout)
        conn.settimeout(None)
        return conn

    return start_tls
