"""TLS for runloom.sync: connections, listeners, and the start of TLS on a connection."""

from __future__ import annotations

import ssl
import time
from typing import TYPE_CHECKING, Any, overload

from runloom.tls import Context, TLSSocket, create_default_context
from runloom_c import Socket

from .socket import _open_listener, files_of, tcp_connect

if TYPE_CHECKING:
    from runloom.tls import TLSSession
    from runloom_c import _Address

    from .ssl_object import SSLObjectSocket

__all__ = ["TLSListener", "tls_connect", "tls_listen"]


@overload
def tls_connect(
    host: str,
    port: int,
    *,
    context: Context | None = None,
    server_hostname: str | None = None,
    timeout: float | None = None,
    source_address: _Address | None = None,
    no_delay: bool = True,
    suppress_ragged_eofs: bool = False,
    session: TLSSession | None = None,
) -> TLSSocket: ...
@overload
def tls_connect(
    host: str,
    port: int,
    *,
    context: Context | ssl.SSLContext | None = None,
    server_hostname: str | None = None,
    timeout: float | None = None,
    source_address: _Address | None = None,
    no_delay: bool = True,
    suppress_ragged_eofs: bool = False,
    session: TLSSession | None = None,
) -> TLSSocket | SSLObjectSocket: ...
def tls_connect(
    host: str,
    port: int,
    *,
    context: Context | ssl.SSLContext | None = None,
    server_hostname: str | None = None,
    timeout: float | None = None,
    source_address: _Address | None = None,
    no_delay: bool = True,
    suppress_ragged_eofs: bool = False,
    session: TLSSession | None = None,
) -> TLSSocket | SSLObjectSocket:
    """Connect to a host and make the TLS handshake.

    Without a context the server must have a certificate for the host from an authority that the
    system trusts. server_hostname is who the server must be, when that is not the host's name. The
    timeout, in seconds, bounds the connect and the handshake together (TimeoutError); the
    connection that comes out has none. An ssl.SSLContext works too, more slowly.
    """
    end = None if timeout is None else time.monotonic() + timeout
    name = host if server_hostname is None else server_hostname
    if context is None:
        context = create_default_context()
    sock = tcp_connect(
        host, port, timeout=timeout, source_address=source_address, no_delay=no_delay
    )
    try:
        if end is not None:
            # Zero would be a socket that doesn't wait; what is past still gets a try.
            sock.settimeout(max(end - time.monotonic(), 1e-6))
        conn = _wrap(
            sock,
            context,
            server_side=False,
            server_hostname=name,
            suppress_ragged_eofs=suppress_ragged_eofs,
            session=session,
        )
    except BaseException:
        sock.close()
        raise
    conn.settimeout(None)
    return conn


class TLSListener(Socket):
    """A listener whose connections speak TLS; tls_listen() makes it."""

    __slots__ = ("_handshake_timeout", "_suppress_ragged_eofs", "context")

    context: Context | ssl.SSLContext
    _handshake_timeout: float | None
    _suppress_ragged_eofs: bool

    def accept(self) -> tuple[TLSSocket | SSLObjectSocket, Any]:  # type: ignore[override]
        """Wait for a connection; return (connection, address).

        Its handshake is made by its first read or write, or by do_handshake(): not here, where a
        slow client would hold up the others. It is bounded from then on by the listener's
        handshake_timeout.
        """
        sock, address = super().accept()
        try:
            conn = _wrap(
                sock,
                self.context,
                server_side=True,
                do_handshake=False,
                handshake_timeout=self._handshake_timeout,
                suppress_ragged_eofs=self._suppress_ragged_eofs,
            )
        except BaseException:
            sock.close()
            raise
        return conn, address


def tls_listen(
    host: str | None,
    port: int,
    *,
    certfile: str | None = None,
    keyfile: str | None = None,
    context: Context | ssl.SSLContext | None = None,
    backlog: int = 128,
    reuse_port: bool = False,
    reuse_address: bool = True,
    no_delay: bool = True,
    handshake_timeout: float | None = None,
    suppress_ragged_eofs: bool = False,
) -> TLSListener:
    """Listen on a local address for connections with TLS, as tcp_listen() does.

    The certificate with its chain, and its key, are PEM files; or a context has them, a
    runloom.tls.Context or an ssl.SSLContext. A client has handshake_timeout seconds for its
    handshake, 10 when none are given, after which its connection is closed (TimeoutError).
    """
    if (certfile is None) == (context is None):
        raise TypeError("tls_listen() takes a certfile or a context")
    if certfile is None and keyfile is not None:
        raise TypeError("tls_listen() takes a keyfile only with a certfile")
    if context is None:
        assert certfile is not None
        context = Context(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certfile, keyfile)
    elif isinstance(context, Context):
        if context.protocol != ssl.PROTOCOL_TLS_SERVER:
            raise ValueError("tls_listen() needs a context of ssl.PROTOCOL_TLS_SERVER")
        context._native(True)  # what is wrong with it is told now
    elif not isinstance(context, ssl.SSLContext):
        raise TypeError(
            f"context must be a runloom.tls.Context or an ssl.SSLContext, not {context!r}"
        )
    listener = _open_listener(
        TLSListener,
        host,
        port,
        backlog=backlog,
        reuse_port=reuse_port,
        reuse_address=reuse_address,
        no_delay=no_delay,
    )
    listener.context = context
    listener._handshake_timeout = handshake_timeout
    listener._suppress_ragged_eofs = suppress_ragged_eofs
    return listener


def start_tls(
    sock: Socket | TLSSocket,
    context: Context | ssl.SSLContext | None = None,
    *,
    server_side: bool = False,
    server_hostname: str | None = None,
    handshake_timeout: float | None = None,
    do_handshake: bool = True,
    suppress_ragged_eofs: bool = False,
    session: TLSSession | None = None,
) -> TLSSocket | SSLObjectSocket:
    """The method start_tls of Socket and TLSSocket."""
    if context is None:
        if server_side:
            raise TypeError("start_tls() on the server's side needs a context")
        context = create_default_context()
    return _wrap(
        sock,
        context,
        server_side=server_side,
        server_hostname=server_hostname,
        handshake_timeout=handshake_timeout,
        do_handshake=do_handshake,
        suppress_ragged_eofs=suppress_ragged_eofs,
        session=session,
        received=_read_ahead(sock),
    )


def _wrap(
    sock: Socket | TLSSocket,
    context: Context | ssl.SSLContext,
    *,
    server_side: bool,
    server_hostname: str | None = None,
    handshake_timeout: float | None = None,
    do_handshake: bool = True,
    suppress_ragged_eofs: bool = False,
    session: TLSSession | None = None,
    received: bytes = b"",
) -> TLSSocket | SSLObjectSocket:
    if isinstance(context, ssl.SSLContext):
        from .ssl_object import SSLObjectSocket

        if session is not None:
            raise TypeError("a session of runloom.tls is of no use to an ssl.SSLContext")
        conn = SSLObjectSocket(
            sock,
            context,
            server_side=server_side,
            server_hostname=server_hostname,
            handshake_timeout=handshake_timeout,
            suppress_ragged_eofs=suppress_ragged_eofs,
            received=received,
        )
        if do_handshake:
            try:
                conn.do_handshake()
            except BaseException:
                conn.close()
                raise
        return conn
    if not isinstance(context, Context):
        raise TypeError(
            f"context must be a runloom.tls.Context or an ssl.SSLContext, not {context!r}"
        )
    return context.wrap_socket(
        sock,
        server_side,
        do_handshake,
        suppress_ragged_eofs,
        server_hostname,
        session,
        handshake_timeout=handshake_timeout,
        received=received,
    )


def _read_ahead(sock: Socket | TLSSocket) -> bytes:
    """What the files over a socket have written and not sent is sent; what they have read and not
    given out is returned, for TLS to read."""
    early = b""
    for file in files_of(sock):
        early += file.end_plain()
    return early
