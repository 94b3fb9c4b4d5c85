"""Memory, resident and page tables: a parked fiber, a live connection, a parked Python fiber"""

import contextlib
import functools
import re
import socket
import struct
from pathlib import Path

from harness import lines
from harness.build import BENCH
from harness.echo import Server, ServerSpec
from harness.model import BenchError, Group, Metric, Plan, Reading, Subject, Values, missing
from harness.registry import Context

BYTES = Metric("bytes")
CASE = "live connection"
GOALS: Values = {("parked fiber", "bytes"): 4608}
# Plain threads are far fewer than fibers can be; what one costs does not depend on the count.
THREADS = 1000


def plan(context: Context) -> Plan:
    fibers = 20_000 if context.quick else 100_000
    return Plan(
        [
            _parked(context, fibers),
            _connections(context, 2_000 if context.quick else 8_000),
            _parked_python(context, 10_000 if context.quick else 30_000),
        ],
        [context.builder.versions, f"{fibers} parked fibers"],
    )


def _parked(context: Context, count: int) -> Group:
    def subject(name: str, program: str, count: int, ours: bool = False) -> Subject:
        path = context.builder.program(program)
        if path is None:
            return missing(name, f"{program} is not built: see what CMake says of it", ours)
        argv: list[str | Path] = [path, "parked", str(count)]
        return Subject(name, functools.partial(lines.measure, argv, (context.cores.server,)), ours)

    return Group(
        "parked fiber",
        [
            subject("Go", "micro_go", count),
            subject("runloom", "parked_runloom", count, ours=True),
            # 64 KiB of heap each: many are a matter of address space, not of memory.
            subject("Boost.Fiber", "micro_boost_fiber", min(count, 20_000)),
            subject("std::thread", "micro_std_thread", THREADS),
        ],
        [BYTES],
        GOALS,
        reference_every=0,
        seconds=1.0,
    )


def _parked_python(context: Context, count: int) -> Group:
    environment = context.builder.environment("venv", ["gevent", "greenlet", "uvloop"])
    why_not_ours = context.builder.install_runloom(environment)

    def subject(name: str, kind: str, why_not: str, ours: bool = False) -> Subject:
        script = BENCH / "peers" / "micro_py.py"
        argv: list[str | Path] = [environment.python, script, kind, "parked", str(count)]
        measure = functools.partial(lines.measure, argv, (context.cores.server,))
        return Subject(name, measure, ours, missing=why_not)

    return Group(
        "parked Python fiber",
        [
            subject("gevent", "gevent", environment.why_not("gevent")),
            subject("runloom", "runloom", why_not_ours, ours=True),
            subject("asyncio", "asyncio", ""),
        ],
        [BYTES],
        reference_every=0,
        seconds=1.0,
    )


def _connections(context: Context, count: int) -> Group:
    def subject(name: str, program: str, *words: str, ours: bool = False, **env: str) -> Subject:
        path = context.builder.program(program)
        if path is None:
            return missing(name, f"{program} is not built: see what CMake says of it", ours)
        spec = ServerSpec.of(path, *words, env=env)
        return Subject(name, lambda: _hold_connections(spec, context, count), ours)

    return Group(
        f"{CASE}, of {count}",
        [
            subject("raw epoll", "echo_epoll", "-p", "{port}"),
            subject("runloom", "echo_runloom", "{port}", ours=True),
            subject("Boost.Asio", "echo_asio", "{port}"),
            subject("Boost.Fiber", "echo_boost_fiber", "{port}"),
            subject("Go", "echo_go", "{port}", GOMAXPROCS="1"),
        ],
        [BYTES],
        reference_every=0,
        seconds=0.2 + count / 8000,
    )


def _hold_connections(spec: ServerSpec, context: Context, count: int) -> Reading:
    """Opens connections, has one message echoed on each, and reads what the server grew by. The
    kernel's own memory for a socket is not in it: that is the same for every server."""
    server = Server(spec, context.cores)
    cpu = server.cpu()
    with contextlib.ExitStack() as stack:
        stack.callback(server.stop)
        _echo_on(server, stack)  # what the first connection sets up is no cost of a connection
        before = _memory(server.child.pid)
        try:
            for _ in range(count):
                _echo_on(server, stack)
        except OSError as error:
            server.check_alive()
            raise BenchError(f"a connection failed: {error}") from error
        grown = _memory(server.child.pid) - before
        return Reading({(CASE, "bytes"): grown / count}, server.cpu() - cpu)


def _echo_on(server: Server, stack: contextlib.ExitStack) -> None:
    conn = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=5))
    # A reset on close leaves no TIME_WAIT behind.
    conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    message = b"x" * 64
    conn.sendall(message)
    if conn.recv(len(message), socket.MSG_WAITALL) != message:
        raise BenchError("the server echoed something else")


def _memory(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * sum(map(int, re.findall(r"^(?:VmRSS|VmPTE):\s*(\d+) kB", status, re.MULTILINE)))
