"""TLS echo: bulk, small messages, handshakes, memory, against blocking OpenSSL (the reference)"""

import contextlib
import shutil
import socket
import ssl
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harness import process
from harness.echo import ServerSet, ServerSpec
from harness.model import BenchError, Group, Metric, Plan, Reading, Subject, missing
from harness.registry import Context

CPU = Metric("server CPU ns/request")
METRICS = [
    CPU,
    Metric("best server CPU ns/request", best_of=CPU.unit),
    Metric("requests/s", higher_is_better=True),
    Metric("p50 us"),
    Metric("p99 us"),
]
BYTES = Metric("bytes")


@dataclass(frozen=True)
class TlsLoad:
    case: str
    mode: str
    words: tuple[str, ...] = ()


LOADS = [
    TlsLoad("1 MiB there and back", "echo", ("-s", str(1 << 20))),
    TlsLoad("64 B x 64 connections", "echo", ("-s", "64", "-c", "64")),
    TlsLoad("handshake", "handshake"),
    TlsLoad("resumed handshake", "resume"),
    TlsLoad("handshake, TLS 1.2", "handshake", ("-2",)),
]


def certificate() -> tuple[Path, Path]:
    """A certificate and its key, made once; P-256, as most servers have."""
    folder = Path(tempfile.mkdtemp(prefix="runloom-bench-"))
    key, pem = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
         "subjectAltName=DNS:localhost", "-keyout", key, "-out", pem],
        check=True, capture_output=True,
    )  # fmt: skip
    return pem, key


class Loads:
    def __init__(self, context: Context, program: Path):
        self.program = program
        self.context = context
        self.seconds, self.warm_up = (0.4, 0.1) if context.quick else (1.0, 0.2)
        self.servers = ServerSet(context.cores)

    def drive(self, spec: ServerSpec, load: TlsLoad) -> Reading:
        server = self.servers.get(spec)
        try:
            server.check_alive()
            before = server.cpu()
            done = process.run(
                [self.program, "-p", str(server.port), "-m", load.mode, *load.words,
                 "-t", str(self.seconds), "-w", str(self.warm_up), "-P", str(server.child.pid)],
                timeout=self.seconds + self.warm_up + 15,
                cpus=(self.context.cores.client,),
            )  # fmt: skip
        except BenchError:
            with contextlib.suppress(BenchError):
                self.servers.discard(spec)
            raise
        figures = {k: float(v) for k, _, v in (w.partition("=") for w in done.stdout.split())}
        if not figures.get("requests"):
            raise BenchError("the server answered no request")
        values = {
            CPU.unit: figures["srv_cpu_ns"],
            "requests/s": figures["req_s"],
            "p50 us": figures["p50_us"],
            "p99 us": figures["p99_us"],
        }
        return Reading(
            {(load.case, unit): value for unit, value in values.items()},
            own_cpu=done.cpu + server.cpu() - before,
        )

    def idle_memory(self, spec: ServerSpec, count: int) -> Reading:
        """Resident bytes of the server for each connection that has said one word and is idle."""
        # A fresh process: another load has left memory in the heap that would be used again.
        self.servers.discard(spec)
        server = self.servers.get(spec)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        with contextlib.ExitStack() as stack:

            def connect() -> None:
                plain = socket.create_connection(("127.0.0.1", server.port), timeout=10)
                client = stack.enter_context(context.wrap_socket(plain))
                client.sendall(b"x")
                client.recv(1)

            for _ in range(50):  # what the process needs once
                connect()
            server.settle()
            before = resident(server.child.pid)
            for _ in range(count):
                connect()
            server.settle()
            each = (resident(server.child.pid) - before) / count
        return Reading({("idle connection", BYTES.unit): each})


def resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise BenchError("the server is gone")


def plan(context: Context) -> Plan:
    load_program = context.builder.program("tls_load")
    if load_program is None or shutil.which("openssl") is None:
        raise BenchError("tls_load or openssl is missing: run without --no-build")
    loads = Loads(context, load_program)
    pem, key = certificate()

    def spec(program: str, **env: str) -> ServerSpec | None:
        path = context.builder.program(program)
        return path and ServerSpec.of(path, "{port}", pem, key, env=env)

    servers = [
        ("blocking OpenSSL", spec("tls_openssl"), False),
        ("runloom", spec("tls_runloom"), True),
        ("runloom on io_uring", spec("tls_runloom", RUNLOOM_NETPOLL="io_uring"), True),
    ]
    # One connection after the other, and each line reversed: for handshakes only.
    s_server = ServerSpec.of(
        "openssl", "s_server", "-quiet", "-rev", "-accept", "127.0.0.1:{port}", "-cert", pem,
        "-key", key,
    )  # fmt: skip

    def subject(name: str, server: ServerSpec | None, ours: bool, load: TlsLoad) -> Subject:
        if server is None:
            return missing(name, f"{name} is not built: see what CMake says of it", ours)
        return Subject(name, lambda: loads.drive(server, load), ours)

    def memory(name: str, server: ServerSpec | None, ours: bool) -> Subject:
        if server is None:
            return missing(name, f"{name} is not built: see what CMake says of it", ours)
        return Subject(name, lambda: loads.idle_memory(server, 200), ours)

    groups = []
    for load in LOADS:
        subjects = [subject(*each, load) for each in servers]
        if load.mode != "echo":
            subjects.append(subject("openssl s_server", s_server, False, load))
        groups.append(
            Group(
                load.case,
                subjects,
                METRICS,
                reference_every=2,
                seconds=loads.seconds + loads.warm_up + 0.2,
            )
        )
    groups.append(
        Group(
            "idle connection",
            [memory(*each) for each in servers],
            [BYTES],
            {("idle connection", BYTES.unit): 40 * 1024},
            reference_every=0,
            seconds=3.0,
        )
    )
    return Plan(groups, [context.builder.versions], end_round=loads.servers.stop_all)
