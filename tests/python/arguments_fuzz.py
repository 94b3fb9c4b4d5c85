"""Calls everything that runloom has with nonsense, in fibers: python arguments_fuzz.py SEED CALLS.

Whatever is raised is fine, but for SystemError, which says that a call broke CPython's rules.
"""

from __future__ import annotations

import array
import copy
import os
import pickle
import random
import socket
import ssl
import sys
import warnings
from collections.abc import Callable
from typing import Any

import runloom
import runloom.sync
import runloom.tls
import runloom_c

# What ends or changes the process by design, or does as much work as it is told to.
EXCLUDED = {
    "dump", "dump_fibers", "fiber_n", "open", "prewarm", "reset_after_fork", "set_deadlock_mode",
    "set_max_fibers", "set_stack_size", "warmup",
}  # fmt: skip
PER_FIBER = 10


class Raises:
    """Fails at whatever it is asked."""

    def fail(self, *_: object, **__: object) -> Any:
        raise ZeroDivisionError

    __index__ = __bool__ = __len__ = __iter__ = __call__ = __repr__ = fail
    __eq__ = __hash__ = __float__ = fileno = fail  # type: ignore[assignment]


class Number:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __index__(self) -> Any:
        return self.value

    def fileno(self) -> Any:
        return self.value


class OwnSocket(runloom_c.Socket):
    pass


class OwnChan(runloom_c.Chan[Any]):
    pass


def closed_socket() -> runloom_c.Socket:
    sock = runloom_c.Socket()
    sock.close()
    return sock


def tls_socket(server_side: bool = False) -> Any:
    """One whose peer says nothing, or nonsense."""
    left, right = runloom.sync.socketpair()
    right.send(os.urandom(random.choice((1, 5, 500))))
    KEPT.append(right)
    del KEPT[:-50]
    if server_side:
        context = runloom.tls.Context(ssl.PROTOCOL_TLS_SERVER)
        context.sni_callback = lambda *_: 1 / 0  # type: ignore[assignment, return-value]
        return context.wrap_socket(left, True, False)
    return runloom.tls.Context().wrap_socket(left, False, False, False, "localhost")


def stock_socket() -> Any:
    left, right = runloom.sync.socketpair()
    KEPT.append(right)
    context = ssl.create_default_context()
    return left.start_tls(context, server_hostname="localhost", do_handshake=False)


KEPT: list[Any] = []
DEVICE = os.open("/dev/null", os.O_RDWR)
NUMBERS: list[Any] = [
    0, 1, -1, 2, 3, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**40,
    0.0, -0.5, 0.001, 1e308, float("nan"), float("inf"), float("-inf"), True, None, 1j, DEVICE,
]  # fmt: skip
CHOICES: list[Callable[[], Any]] = [
    *[lambda value=value: value for value in NUMBERS],
    *[lambda value=value: Number(value) for value in (3, -1, 10**30, "x", None, 1.5, DEVICE)],
    *[lambda value=value: value for value in ("", "recv", "a\0b", "\ud800", "é" * 10, b"", b"abc")],
    lambda: bytes(100_000),
    lambda: bytearray(b"abc"),
    lambda: memoryview(bytearray(100))[::2],
    lambda: array.array("i", [1, 2, 3]),
    lambda: [("recv", runloom_c.Chan(1))],
    lambda: [("send", OwnChan(1), 1)],
    lambda: ("recv", OwnChan()),
    lambda: ("127.0.0.1", 1),
    lambda: ("::1", 70_000),
    lambda: (x for x in (1, 2)),
    lambda: lambda *_, **__: 1 / 0,
    lambda: runloom_c.go(int),
    lambda: runloom_c.Socket.__new__(runloom_c.Socket),
    lambda: runloom.tls.Context()._native(False),
    lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
    runloom.tls.Context, tls_socket, closed_socket, list, tuple, dict, object, Raises, OwnSocket,
    runloom_c.Lock, runloom_c.RLock,
]  # fmt: skip
OBJECTS: list[Callable[[], Any]] = [
    lambda: runloom_c.Chan(1),
    OwnChan,
    lambda: runloom_c.Condition(runloom_c.RLock()),
    lambda: runloom_c.Socket(socket.AF_INET6),
    lambda: runloom_c.Socket(socket.AF_UNIX),
    lambda: runloom_c.Socket(socket.AF_INET, socket.SOCK_DGRAM),
    lambda: runloom_c.Socket.__new__(runloom_c.Socket),
    lambda: runloom_c.go(int),
    lambda: tls_socket(True),
    tls_socket, stock_socket, runloom.tls.Context,
    closed_socket, OwnSocket, runloom_c.Lock, runloom_c.RLock, runloom_c.Mutex, runloom_c.Event,
    runloom_c.Condition, runloom_c.Semaphore, runloom_c.Socket,
]  # fmt: skip
KEYWORDS = [
    "timeout", "n", "blocking", "fn", "fd", "events", "timeout_ms", "cases", "default", "capacity",
    "value", "lock", "predicate", "stack_size", "limit", "foreign_wakeable", "backlog", "buffer",
    "nbytes", "flags", "buf", "sock", "data", "mode", "family", "type", "proto", "fileno", "file",
    "offset", "count", "context", "server_side", "server_hostname", "session", "received",
    "handshake_timeout", "do_handshake", "cafile", "cadata", "certfile", "bogus", "\ud800",
]  # fmt: skip


def functions() -> list[Callable[..., Any]]:
    return [
        getattr(module, name)
        for module in (runloom_c, runloom, runloom.sync, runloom.tls)
        for name in dir(module)
        if not name.startswith("__") and name not in EXCLUDED and callable(getattr(module, name))
    ]


class Fuzzer:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.functions = functions()

    def target(self) -> Callable[..., Any]:
        if self.random.random() < 0.5:
            return self.random.choice(self.functions)
        made = self.random.choice(OBJECTS)()
        if self.random.random() < 0.1:
            return lambda *_, **__: [copy.copy(made), copy.deepcopy(made), pickle.dumps(made)]
        names = [name for name in dir(made) if name not in ("__class__", "__setattr__")]
        found = getattr(made, self.random.choice(names))
        return found if callable(found) else lambda *_, **__: found

    def call(self) -> None:
        pick = self.random.choice
        arguments = [pick(CHOICES)() for _ in range(pick((0, 1, 1, 1, 2, 2, 3, 4)))]
        keywords = {pick(KEYWORDS): pick(CHOICES)() for _ in range(pick((0, 0, 0, 1, 2)))}
        target = self.target()
        try:
            target(*arguments, **keywords)
        except SystemError as error:
            print(target, arguments, list(keywords), error)
        except BaseException:
            pass

    def fiber(self) -> None:
        for _ in range(PER_FIBER):
            self.call()

    def round(self) -> None:
        """Some calls; each that waits is cancelled."""
        victim = runloom_c.go(self.fiber)

        def cancel() -> None:
            while not victim.done:
                runloom_c.sched_sleep(0.001)
                victim.cancel()

        runloom_c.go(cancel)
        while runloom_c.fiber_count():
            try:
                runloom_c.run()
                runloom_c.sched_reset()
            except BaseException:
                pass


def main() -> None:
    seed, calls = int(sys.argv[1]), int(sys.argv[2])
    warnings.simplefilter("ignore")
    sys.unraisablehook = lambda _: None
    runloom_c.set_deadlock_mode(0)
    fuzzer = Fuzzer(seed)
    for _ in range(calls // PER_FIBER):
        fuzzer.round()
    print("done")


main()
