#!/usr/bin/env python3
"""Runs the example servers, drives them on this machine, and prints what they do.

    scripts/demo -- --seconds 5 --connections 200

Requests a second and latencies depend on what else the machine does. Memory is what the server's
resident size grows by for each connection that is open and waits.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import resource
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = Path(os.environ.get("RUNLOOM_EXAMPLES", ROOT / "build" / "release" / "examples"))
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
ECHO = b"x" * 64
START_LIMIT = 10.0  # seconds
INTRODUCTION = """\
The example servers, one after the other, each driven for {seconds:g} s by the client in the last
column over {connections} connections on this machine. p50, p99: how long half, and all but 1 %, of
the answers took. Memory: what each of {idle} connections that wait adds to the server.
"""
HOW_TO_GO_ON = """
Start one yourself and talk to it; the sources are in examples/:
    PYTHONPATH={path} {python} examples/python/echo.py --port 7000
    build/release/examples/example_echo_server --port 7000
    nc 127.0.0.1 7000
Against other frameworks: bench/compare --quick cpp-echo, and docs/performance.md."""


class DemoError(Exception):
    """Says what is wrong, and what to do."""


@dataclass(frozen=True)
class Server:
    name: str
    command: list[str]
    kind: str  # "echo" or "http"


@dataclass(frozen=True)
class Load:
    requests_a_second: float
    p50_ms: float
    p99_ms: float
    client: str


def servers(web_root: Path) -> list[Server]:
    python = [sys.executable]
    examples = ROOT / "examples" / "python"
    (web_root / "index.html").write_text("Hello from runloom!\n")
    return [
        Server("echo, Python", [*python, str(examples / "echo.py")], "echo"),
        Server("echo, C++", [str(EXAMPLES / "example_echo_server")], "echo"),
        Server("HTTP hello, Python", [*python, str(examples / "http_hello.py")], "http"),
        Server("HTTP files, C++", [str(EXAMPLES / "example_http_static"), str(web_root)], "http"),
    ]


@contextmanager
def started(server: Server) -> Iterator[tuple[int, int]]:
    """The server's process id and port. It has ended when this is left."""
    # An interrupt is held back while the process is made: it would be left behind otherwise.
    held: list[bool] = []
    interrupt = signal.signal(signal.SIGINT, lambda *_: held.append(True))
    process = subprocess.Popen([*server.command, "--port", "0"], stdout=subprocess.PIPE)
    try:
        signal.signal(signal.SIGINT, interrupt)
        if held:
            raise KeyboardInterrupt
        yield process.pid, read_port(server, process)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(START_LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def read_port(server: Server, process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        line = process.stdout.readline() if selector.select(START_LIMIT) else b""
    match = re.fullmatch(rb"listening on .*:(\d+)\n", line)
    if match is None:
        raise DemoError(
            f"{' '.join(server.command)} did not start: it said {line.decode()!r} and what stands "
            "above. Build it with: scripts/demo"
        )
    return int(match[1])


# ---- memory ----


def resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def memory_a_connection(server: Server, pid: int, port: int, count: int) -> float:
    """Opens so many connections, exchanges one message on each, and lets them wait."""
    message = ECHO if server.kind == "echo" else REQUEST
    with ExitStack() as stack:
        before = resident(pid)
        for _ in range(count):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", port), START_LIMIT))
            sock.sendall(message)
            if not sock.recv(4096):
                raise DemoError(f"{server.name} closed a connection")
        return (resident(pid) - before) / count


# ---- load ----


def drive(server: Server, port: int, seconds: float, connections: int) -> Load:
    if server.kind == "http":
        wrk = shutil.which("wrk")
        if wrk:
            return drive_with_wrk(wrk, port, seconds, connections)
        return drive_with_asyncio(port, REQUEST, seconds, connections)
    echo_load = EXAMPLES.parent / "bench" / "bin" / "echo_load"
    if echo_load.exists():
        return drive_with_echo_load(echo_load, port, seconds, connections)
    return drive_with_asyncio(port, ECHO, seconds, connections)


def output_of(command: list[str], seconds: float) -> str:
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds + 30
    )
    if done.returncode != 0:
        raise DemoError(f"{' '.join(command)} failed: {done.stdout.strip()}")
    return done.stdout


def drive_with_wrk(wrk: str, port: int, seconds: float, connections: int) -> Load:
    # Not less than wrk's unit, whole seconds.
    whole = max(1, round(seconds))
    text = output_of(
        [
            wrk,
            "-t1",
            f"-c{connections}",
            f"-d{whole}s",
            "--latency",
            f"http://127.0.0.1:{port}/",
        ],
        whole,
    )
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    p50 = re.search(r"50%\s+([\d.]+)(us|ms|s)", text)
    p99 = re.search(r"99%\s+([\d.]+)(us|ms|s)", text)
    if not (rate and p50 and p99):
        raise DemoError(f"wrk said something else than it used to:\n{text}")
    to_ms = {"us": 1e-3, "ms": 1.0, "s": 1e3}
    return Load(float(rate[1]), float(p50[1]) * to_ms[p50[2]], float(p99[1]) * to_ms[p99[2]], "wrk")


def drive_with_echo_load(program: Path, port: int, seconds: float, connections: int) -> Load:
    command = [str(program), "-p", str(port), "-c", str(connections), "-s", str(len(ECHO))]
    text = output_of([*command, "-t", str(seconds), "-w", "0.5"], seconds)
    values = dict(word.split("=", 1) for word in text.split() if "=" in word)
    return Load(
        float(values["req_s"]),
        float(values["p50_us"]) / 1e3,
        float(values["p99_us"]) / 1e3,
        "echo_load",
    )


def drive_with_asyncio(port: int, request: bytes, seconds: float, connections: int) -> Load:
    """Where no better client is there: it is slower than the servers, so it measures itself."""
    latencies: list[float] = []

    async def client(end: float) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (begin := time.monotonic()) < end:
            writer.write(request)
            if request is ECHO:
                await reader.readexactly(len(request))
            else:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"(?i)content-length: (\d+)", head)
                await reader.readexactly(int(length[1]) if length else 0)
            latencies.append(time.monotonic() - begin)
        writer.close()

    async def main() -> None:
        end = time.monotonic() + seconds
        await asyncio.gather(*(client(end) for _ in range(connections)))

    asyncio.run(asyncio.wait_for(main(), seconds + 30))
    latencies.sort()
    count = len(latencies)
    if not count:
        raise DemoError("the server answered nothing")
    return Load(
        count / seconds,
        latencies[count // 2] * 1e3,
        latencies[count * 99 // 100] * 1e3,
        "asyncio",
    )


# ---- the whole ----


def show(server: Server, options: argparse.Namespace) -> bool:
    """One line of the table. False: the server could not be shown."""
    print(f"{server.name:<20} ", end="", flush=True)  # shows what is being driven now
    if not Path(server.command[0]).exists():
        print(f"not built: {server.command[0]}", flush=True)
        return False
    with started(server) as (pid, port):
        memory = memory_a_connection(server, pid, port, options.idle)
        load = drive(server, port, options.seconds, options.connections)
    print(
        f"{load.requests_a_second:>12,.0f} {load.p50_ms:>9.3f} ms"
        f" {load.p99_ms:>9.3f} ms {memory / 1024:>9.1f} KiB  {load.client}",
        flush=True,
    )
    return True


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=4, help="of load a server (%(default)s)")
    parser.add_argument("--connections", type=int, default=64, help="of the load (%(default)s)")
    parser.add_argument(
        "--idle", type=int, default=1000, help="connections for the memory (%(default)s)"
    )
    options = parser.parse_args()
    if not 0 < options.seconds <= 60 or options.connections < 1 or options.idle < 1:
        parser.error("--seconds is within 60, the others are at least 1")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # servers inherit it

    print(INTRODUCTION.format(**vars(options)))
    print(f"{'server':<20} {'requests/s':>12} {'p50':>12} {'p99':>12} {'memory':>13}  client")
    with tempfile.TemporaryDirectory(prefix="runloom-demo-") as folder:
        shown = [show(server, options) for server in servers(Path(folder))]
    print(HOW_TO_GO_ON.format(path=os.environ.get("PYTHONPATH", ""), python=sys.executable))
    return 0 if all(shown) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except DemoError as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
