"""All types that the package has, and how an object of each is made."""

from __future__ import annotations

import importlib
import os
import pkgutil
import ssl
import tempfile
from collections import deque
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from socket_support import run
from tls_support import NATIVE, client_context, server_context, tls_pair

import runloom
import runloom.compat
import runloom.context
import runloom.dns
import runloom.sync
import runloom.time
import runloom.tls
import runloom_c
from runloom._unique import Unique
from runloom.sync import files, primitives, ssl_object
from runloom.sync import server as server_module
from runloom.sync import socket as socket_module
from runloom.time import _Alarm, _Call
from runloom.tls import _Password_of


def modules() -> list[ModuleType]:
    """runloom_c, and runloom with all that is in it."""
    names = [each.name for each in pkgutil.walk_packages(runloom.__path__, "runloom.")]
    return [runloom_c, runloom, *(importlib.import_module(name) for name in names)]


def all_types() -> list[type]:
    """Each type of ours that a module has, or has an object of; private ones too."""
    found: dict[type, None] = {}
    for module in modules():
        for value in vars(module).values():
            cls = value if isinstance(value, type) else type(value)
            if cls.__module__.split(".")[0] in OUR_NAMES:
                found[cls] = None
    return sorted(found, key=type_name)


OUR_NAMES = ("runloom", "runloom_c")


def type_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


# ---------------------------------------------------------------- one object of each


def _pair() -> Any:
    """One end of a pair; the other is kept with it."""
    left, right = runloom.sync.socketpair()
    _peers.append(right)
    return left


_peers: deque[Any] = deque(maxlen=4)


def _tls_socket(server_side: bool = False) -> Any:
    kind = ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT
    name = None if server_side else "localhost"
    return runloom.tls.Context(kind).wrap_socket(_pair(), server_side, False, False, name)


@cache
def _tls_session() -> Any:
    """Of a connection between two ends of ours."""
    sessions: list[Any] = []

    def main() -> None:
        with tempfile.TemporaryDirectory() as folder:
            server = server_context(NATIVE, Path(folder))
        with tls_pair(client_context(NATIVE), server) as (ours, theirs):
            theirs.sendall(b"x")
            ours.recv(1)
            sessions.append(ours.session)

    run(main)
    return sessions[0]


def _listener() -> Any:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    return runloom.sync.tls_listen("127.0.0.1", 0, context=context)


def _raw_file() -> Any:
    with tempfile.TemporaryFile() as file:
        return files._RawFile(os.dup(file.fileno()), "name", "r", True, True)


def _ssl_object() -> Any:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return ssl_object.SSLObjectSocket(_pair(), context, server_hostname="localhost")


def _server() -> Any:
    return server_module.Server(int)


@cache
def _served() -> Any:
    """Of a connection that was served."""
    seen: list[Any] = []

    def main() -> None:
        server = server_module.Server(lambda conn: seen.append(conn.served))
        address = server.listen("127.0.0.1", 0)
        serving = runloom.sync.fiber(server.serve, signals=None)
        with runloom.sync.tcp_connect(*address) as conn:
            conn.recv(1)
        server.stop()
        serving.join()

    run(main)
    return seen[0]


MAKERS: dict[type, Callable[[], Any]] = {
    runloom_c.CancelScope: runloom_c.CancelScope,
    runloom_c.Cancelled: runloom_c.Cancelled,
    runloom_c.Chan: lambda: runloom_c.Chan(4),
    runloom_c.Condition: runloom_c.Condition,
    runloom_c.Event: runloom_c.Event,
    runloom_c.G: lambda: runloom_c.go(int),
    runloom_c.Lock: runloom_c.Lock,
    runloom_c.Mutex: runloom_c.Mutex,
    runloom_c.RLock: runloom_c.RLock,
    runloom_c.Semaphore: runloom_c.Semaphore,
    runloom_c.ServerConnection: _served,
    runloom_c.Socket: _pair,
    runloom_c.TLSSession: _tls_session,
    runloom_c.TLSSocket: _tls_socket,
    runloom_c._Server: lambda: _server()._server,
    type(runloom.tls.Context()._native(False)): lambda: runloom.tls.Context()._native(False),
    runloom.timeout: lambda: runloom.timeout(60),
    runloom.compat.Coro: lambda: runloom.compat.Coro(int),
    runloom.compat.TCPConn: runloom.compat.TCPConn,
    runloom.context.Context: lambda: runloom.context.Context(runloom.context.Background()),
    runloom.dns.Record: lambda: runloom.dns.Record("example.test.", "A", 60, "127.0.0.1"),
    runloom.sync.Future: runloom.sync.Future,
    runloom.sync.Group: runloom.sync.Group,
    runloom.sync.JoinSet: lambda: runloom.sync.JoinSet(keep_results=True),
    runloom.sync.Once: runloom.sync.Once,
    runloom.sync.RWMutex: runloom.sync.RWMutex,
    runloom.sync.WaitGroup: runloom.sync.WaitGroup,
    runloom.sync.Watch: lambda: runloom.sync.Watch(0),
    runloom.sync.Server: _server,
    runloom.sync.ServerReport: lambda: runloom.sync.ServerReport("accept", None, "", None, 0),
    runloom.sync.ServerTimeouts: runloom.sync.ServerTimeouts,
    runloom.sync.TLSListener: _listener,
    files._RawFile: _raw_file,
    primitives._Flight: primitives._Flight,
    socket_module._SocketIO: lambda: socket_module._SocketIO(_pair(), "rw"),
    ssl_object.SSLObjectSocket: _ssl_object,
    ssl_object._Turn: lambda: ssl_object._Turn(runloom_c.Lock(), None, None),
    runloom.tls.Context: runloom.tls.Context,
    runloom.time.Timer: lambda: runloom.time.Timer(60),
    runloom.time.Ticker: lambda: runloom.time.Ticker(60),
    _Alarm: _Alarm,
    _Call: lambda: _Call(60, int),
    Unique: Unique,
    type(runloom_c.sched_yield): lambda: runloom_c.sched_yield,  # type: ignore[dict-item]
    _Password_of: lambda: _Password_of("secret"),
}
