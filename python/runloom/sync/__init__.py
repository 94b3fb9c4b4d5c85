"""Fibers without async and await: sockets, channels, and the locks of threading.

    import runloom.sync as sync

    def ask(host):
        with sync.tcp_connect(host, 80, timeout=5) as conn:
            conn.settimeout(5)
            conn.sendall(b"HEAD / HTTP/1.0\\r\\n\\r\\n")
            return conn.recv(4096)

    def main():
        fibers = [sync.fiber(ask, host) for host in ("example.org", "example.net")]
        print([fiber.join() for fiber in fibers])

    sync.run(main)

What waits parks its fiber and lets the others run. Nothing has a timeout unless it was given one;
what runs out of time raises TimeoutError, but for acquire() and wait() of the locks, which return
False. A cancelled fiber gets runloom.Cancelled from whatever it waits in. Lock, RLock, Event,
Condition and Semaphore may be used by fibers, by OS threads, and between both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import runloom_c
from runloom_c import (
    Chan,
    Condition,
    Event,
    G,
    Lock,
    Mutex,
    RLock,
    Semaphore,
    ServerConnection,
    park,
    park_self,
    select,
    sleep,
    unpark_many,
)
from runloom_c import _sync_fiber as fiber
from runloom_c import current_g as current
from runloom_c import sched_yield as yield_now

from .files import open
from .primitives import Group, Once, RWMutex, WaitGroup, Watch, once_func, once_value
from .socket import (
    Socket,
    getaddrinfo,
    getnameinfo,
    socketpair,
    tcp_connect,
    tcp_listen,
    udp_endpoint,
    unix_connect,
    unix_listen,
)
from .tasks import Future, JoinSet, gather

if TYPE_CHECKING:
    from collections.abc import Callable

    from runloom.compat import serve

    from .server import Server, ServerReport, ServerTimeouts
    from .tls import TLSListener, tls_connect, tls_listen

__all__ = [
    "Chan",
    "Condition",
    "Event",
    "Future",
    "Group",
    "JoinSet",
    "Lock",
    "Mutex",
    "Once",
    "RLock",
    "RWMutex",
    "Semaphore",
    "Server",
    "ServerConnection",
    "ServerReport",
    "ServerTimeouts",
    "Socket",
    "TLSListener",
    "WaitGroup",
    "Watch",
    "current",
    "fiber",
    "gather",
    "getaddrinfo",
    "getnameinfo",
    "once_func",
    "once_value",
    "open",
    "park",
    "park_self",
    "run",
    "select",
    "serve",
    "sleep",
    "socketpair",
    "tcp_connect",
    "tcp_listen",
    "tls_connect",
    "tls_listen",
    "udp_endpoint",
    "unix_connect",
    "unix_listen",
    "unpark_many",
    "wake",
    "yield_now",
]


def __getattr__(name: str) -> Any:
    # The ssl module costs a program megabytes, so it is loaded with the first use of TLS.
    if name in ("TLSListener", "tls_connect", "tls_listen"):
        from . import tls

        return getattr(tls, name)
    if name in ("Server", "ServerReport", "ServerTimeouts"):
        from . import server

        return getattr(server, name)
    if name == "serve":
        from runloom.compat import serve

        return serve
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def run(main_fn: Callable[[], object] | None = None) -> int:
    """Run fibers until all have ended; return how many did. As runloom.run(1, main_fn).

    What main_fn, which is run on a fiber first, raises is raised here, after the other fibers were
    cancelled and have unwound.
    """
    return runloom_c.run() if main_fn is None else runloom_c._run_main(main_fn)


def wake(g: G[Any] | None) -> None:
    """Wake a fiber by its handle, as its wake() does; None is passed over."""
    if g is not None:
        g.wake()
