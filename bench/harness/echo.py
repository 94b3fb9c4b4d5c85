"""Echo servers as subjects: started pinned, driven by a load generator, watched in /proc."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from harness import process
from harness.machine import Cores
from harness.model import BenchError, Metric, Reading

CPU = Metric("server CPU ns/request")
METRICS = [
    CPU,
    Metric("best server CPU ns/request", best_of=CPU.unit),
    Metric("requests/s", higher_is_better=True),
    Metric("p50 us"),
    Metric("p99 us"),
    Metric("p999 us"),
    # Fairness: a closed loop hides starved connections from the mean.
    Metric("p999/p50"),
]

# Of datagrams only.
DELIVERED = Metric("delivered %", higher_is_better=True)

START_SECONDS = 15.0


@dataclass(frozen=True)
class ServerSpec:
    """How to start a server: "{port}" in a word is replaced by the port. Hashable, so that cases
    that need the same server share the process."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    udp: bool = False

    @staticmethod
    def of(
        *argv: str | Path, env: Mapping[str, str] | None = None, udp: bool = False
    ) -> ServerSpec:
        return ServerSpec(tuple(map(str, argv)), tuple((env or {}).items()), udp)


class Server:
    """One running server."""

    def __init__(self, spec: ServerSpec, cores: Cores):
        kind = socket.SOCK_DGRAM if spec.udp else socket.SOCK_STREAM
        self.port = free_port(kind)
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (stop() closes it)
        argv = [word.replace("{port}", str(self.port)) for word in spec.argv]
        self.child = process.start(
            argv,
            cpus=(cores.server,),
            env=dict(spec.env),
            stdout=subprocess.DEVNULL,
            stderr=self._log,
        )
        try:
            self._wait_until_it_serves(_answers if spec.udp else _accepts)
        except BaseException:
            self.stop()
            raise

    def _wait_until_it_serves(self, serves: Callable[[int], None]) -> None:
        end = time.monotonic() + START_SECONDS
        while True:
            self.check_alive()
            try:
                serves(self.port)
                return
            except OSError as error:
                if time.monotonic() > end:
                    raise BenchError(
                        f"does not listen after {START_SECONDS:.0f} s: {error}"
                    ) from None
                time.sleep(0.01)

    def check_alive(self) -> None:
        returncode = self.child.poll()
        if returncode is not None:
            self._log.seek(0)
            words = process.last_words(self._log.read().decode(errors="replace"))
            raise BenchError(f"the server {process.how_it_ended(returncode)}{words}")

    def cpu(self) -> float:
        return process.cpu_seconds(self.child.pid)

    def settle(self) -> None:
        """Waits until the server has nothing left to do, such as connections to tear down."""
        end = time.monotonic() + 0.5
        last = -1.0
        while (now := self.cpu()) != last and time.monotonic() < end:
            last = now
            time.sleep(0.004)

    def stop(self) -> None:
        process.stop(self.child)
        self._log.close()


def _accepts(port: int) -> None:
    socket.create_connection(("127.0.0.1", port), timeout=1).close()


def _answers(port: int) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        probe.settimeout(0.1)
        probe.connect(("127.0.0.1", port))
        probe.send(b"probe")
        probe.recv(16)


class ServerSet:
    """The servers of one round. Each is started when first needed, and stopped at the end of the
    round: every round sees a fresh process, so that no lucky address layout decides a
    comparison."""

    def __init__(self, cores: Cores):
        self._cores = cores
        self._running: dict[ServerSpec, Server] = {}

    def get(self, spec: ServerSpec) -> Server:
        server = self._running.get(spec)
        if server is None:
            server = self._running[spec] = Server(spec, self._cores)
        return server

    def discard(self, spec: ServerSpec) -> None:
        server = self._running.pop(spec, None)
        if server:
            server.stop()

    def stop_all(self) -> None:
        for spec in list(self._running):
            self.discard(spec)


@dataclass(frozen=True)
class Load:
    """One case: what the load generator does to a server."""

    case: str
    conns: int
    size: int = 64
    depth: int = 1
    # Poll instead of sleeping, which takes the client's own wake-up out of the latency.
    busy: bool = False


@dataclass
class LoadGenerator:
    program: Path
    cores: Cores
    seconds: float
    warm_up: float
    engines: bool = True  # it has two and can be told which to take
    servers: ServerSet = field(init=False)

    def __post_init__(self) -> None:
        self.servers = ServerSet(self.cores)

    def measure(self, spec: ServerSpec, load: Load) -> Reading:
        server = self.servers.get(spec)
        try:
            server.check_alive()
            return self._drive(server, load)
        except BenchError:
            # The cause may be the server's: the next case gets a fresh one.
            with contextlib.suppress(BenchError):
                self.servers.discard(spec)
            raise

    def _drive(self, server: Server, load: Load) -> Reading:
        before = server.cpu()
        # The io_uring engine is the cheaper one, so that the server saturates first; with few
        # connections there is nothing to batch and the epoll engine's latencies are the truer
        # ones.
        engine = "uring" if load.conns >= 16 else "epoll"
        argv = [
            *(str(self.program), "-p", str(server.port), "-c", str(load.conns)),
            *("-s", str(load.size), "-D", str(load.depth)),
            *(["-e", engine] if self.engines else []),
            *("-t", str(self.seconds), "-w", str(self.warm_up), "-P", str(server.child.pid)),
            *(["-b"] if load.busy and not self.cores.shared else []),
        ]
        try:
            done = process.run(
                argv, timeout=self.seconds + self.warm_up + 15, cpus=(self.cores.client,)
            )
        except BenchError:
            server.check_alive()  # a server that died is the better explanation
            raise
        server.settle()
        figures = {key: float(value) for key, _, value in _pairs(done.stdout)}
        if not figures.get("requests"):
            raise BenchError("the server answered no request")
        named = {
            CPU.unit: figures["srv_cpu_ns"],
            "requests/s": figures["req_s"],
            "p50 us": figures["p50_us"],
            "p99 us": figures["p99_us"],
            "p999 us": figures["p999_us"],
            "p999/p50": figures["p999_us"] / figures["p50_us"],
        }
        if "lost" in figures:
            sent = figures["requests"] + figures["lost"]
            named[DELIVERED.unit] = 100 * figures["requests"] / sent
        values = {(load.case, unit): value for unit, value in named.items()}
        return Reading(values, own_cpu=done.cpu + server.cpu() - before)


def _pairs(line: str) -> list[tuple[str, str, str]]:
    return [word.partition("=") for word in line.split()]


def free_port(kind: int = socket.SOCK_STREAM) -> int:
    with socket.socket(type=kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
