"""What the tests of TLS share: an authority, contexts, connected ends, and plain peers."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import trustme
from socket_support import LIMIT, go, join, own_pair

import runloom.sync as sync
from runloom.tls import Context, create_default_context

NATIVE, STOCK = "native", "stock"
BOTH = (NATIVE, STOCK)


class World:
    """An authority with its certificates, made once."""

    def __init__(self) -> None:
        self.ca = trustme.CA()
        self.stranger = trustme.CA()
        self.server = self.ca.issue_cert("localhost", "127.0.0.1", "example.test")
        self.other = self.ca.issue_cert("other.test")
        self.client = self.ca.issue_cert("client@example.test")
        self.ca_pem = self.ca.cert_pem.bytes().decode()


@cache
def world() -> World:
    return World()


def write(cert: trustme.LeafCert, path: Path) -> str:
    """The certificate with its chain and key as a file."""
    cert.private_key_and_cert_chain_pem.write_to_path(str(path))
    return str(path)


def server_context(kind: str, folder: Path, cert: trustme.LeafCert | None = None) -> Any:
    context: Any
    if kind == NATIVE:
        context = Context(ssl.PROTOCOL_TLS_SERVER)
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(write(cert or world().server, folder / "server.pem"))
    return context


def client_context(kind: str) -> Any:
    make: Any = create_default_context if kind == NATIVE else ssl.create_default_context
    return make(cadata=world().ca_pem)


@contextmanager
def tls_pair(
    client: Any, server: Any, *, server_hostname: str | None = "localhost", **options: Any
) -> Iterator[tuple[Any, Any]]:
    """Two ends, whose handshake is made."""
    with own_pair() as (left, right):
        accepted = go(lambda: right.start_tls(server, server_side=True, **options))
        ours = left.start_tls(client, server_hostname=server_hostname, **options)
        theirs = join(accepted)[0]
    with ours, theirs:
        yield ours, theirs


def bare_pair(client: Any, server: Any, **options: Any) -> tuple[Any, Any]:
    """Two ends before their handshake, of sockets that nobody else closes."""
    with own_pair() as (left, right):
        return (
            left.start_tls(client, server_hostname="localhost", do_handshake=False, **options),
            right.start_tls(server, server_side=True, do_handshake=False),
        )


@contextmanager
def plain_server(serve: Callable[[socket.socket], object]) -> Iterator[int]:
    """A thread that accepts one connection and serves it with the standard library; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(LIMIT)
        errors: list[BaseException] = []

        def main() -> None:
            try:
                conn, _ = listener.accept()
                conn.settimeout(LIMIT)
                with conn:
                    serve(conn)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=main)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            thread.join(LIMIT)
        if errors:
            raise errors[0]


@contextmanager
def tls_listener(context: Any, **options: Any) -> Iterator[sync.TLSListener]:
    with sync.tls_listen("127.0.0.1", 0, context=context, **options) as listener:
        yield listener


def port_of(listener: Any) -> int:
    return int(listener.getsockname()[1])
