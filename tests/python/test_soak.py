"""The example servers under real clients (wrk, curl, openssl, redis-cli), round after round: what
they hold must not grow. RUNLOOM_SOAK_SECONDS is how long; scripts/test --full takes half an hour.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import pytest
from example_support import Authority, authority, command, environment, until
from socket_support import LIMIT

__all__ = ["authority"]

SECONDS = float(os.environ.get("RUNLOOM_SOAK_SECONDS", "5"))
WARM_UP = 3  # rounds: pools fill, caches grow to their size
GROWTH = 0.02  # of the memory, between the beginning and the end
SLACK = 512 * 1024  # bytes: what one round more or less of an allocator's arena is
SUMMARY = re.compile(r"^fibers: (.*)$", re.M)


@dataclass
class Sample:
    memory: int
    descriptors: int
    fibers: int


@dataclass
class Server:
    name: str
    process: subprocess.Popen[str]
    errors: IO[str]
    port: str
    idle: int = 0  # fibers, without clients
    samples: list[Sample] = field(default_factory=list)

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def memory(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.findall(r"^(?:VmRSS|VmPTE):\s*(\d+) kB", status, re.M)
        return sum(map(int, found)) * 1024

    def fibers(self) -> int:
        """As it says itself, when it is asked by SIGQUIT."""
        before = self.errors.seek(0, os.SEEK_END)

        def said() -> re.Match[str] | None:
            self.errors.seek(before)
            return SUMMARY.search(self.errors.read())

        self.process.send_signal(signal.SIGQUIT)
        until(lambda: said() is not None, "an answer to SIGQUIT")
        match = said()
        assert match is not None
        return sum(int(number) for number in re.findall(r"(\d+) ", match[1]))

    def sample(self) -> None:
        """Once it has seen that its clients are gone."""
        until(lambda: self.fibers() == self.idle, f"{self.name}: an end of its connections")
        self.samples.append(Sample(self.memory(), self.descriptors(), self.fibers()))


@contextmanager
def serving(name: str, folder: Path, *arguments: str) -> Iterator[Server]:
    with open(folder / f"{name}{len(arguments)}.err", "w+", encoding="utf-8") as errors:
        process = subprocess.Popen(
            command(name, "--port", "0", *arguments),
            env={**environment(), "RUNLOOM_TRACEBACK": "1"},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            match = re.match(r"listening on 127\.0\.0\.1:(\d+)", line)
            assert match, line
            yield Server(name, process, errors, match[1])
            process.send_signal(signal.SIGTERM)
            assert process.wait(LIMIT) == 0
            errors.seek(0)
            assert "Traceback" not in errors.read()
        finally:
            process.kill()
            process.communicate()


def call(*arguments: str, data: bytes = b"") -> bytes:
    """What a client prints; it must end well."""
    done = subprocess.run(arguments, input=data, capture_output=True, timeout=30, check=False)
    assert done.returncode == 0, (arguments, done.stdout[-500:], done.stderr[-500:])
    return done.stdout


# ---- the clients of a round ----


def hello_over_http(server: Server) -> None:
    url = f"http://127.0.0.1:{server.port}/"
    assert b"Hello" in call("curl", "-sS", url, url, url)
    assert b"Hello" in call("curl", "-sS", "--http1.0", url)
    if shutil.which("wrk"):
        report = call("wrk", "-c50", "-t1", "-d1s", url)
        assert b"Socket errors" not in report, report


def hello_over_tls(server: Server, ca: str) -> None:
    url = f"https://localhost:{server.port}/"
    for version in ("--tlsv1.3", "--tls-max=1.2"):
        option = version.split("=")
        assert b"Hello" in call(
            "curl", "-sS", "--cacert", ca, "--resolve", f"localhost:{server.port}:127.0.0.1",
            *option, url, url,
        )  # fmt: skip
    if shutil.which("openssl"):
        answer = call(
            "openssl", "s_client", "-quiet", "-verify_quiet", "-CAfile", ca, "-servername",
            "localhost", "-connect", f"127.0.0.1:{server.port}",
            data=b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        )  # fmt: skip
        assert b"Hello" in answer


def files_over_tls(server: Server, ca: str, size: int) -> None:
    url = f"https://localhost:{server.port}/file"
    resolve = f"localhost:{server.port}:127.0.0.1"
    assert len(call("curl", "-sS", "--cacert", ca, "--resolve", resolve, url)) == size
    # Cut off in the middle.
    subprocess.run(
        ["curl", "-sS", "--cacert", ca, "--resolve", resolve, "--max-filesize", "1000", url],
        capture_output=True, timeout=30, check=False,
    )  # fmt: skip


def redis(server: Server) -> None:
    cli = ("redis-cli", "-p", server.port)
    if not shutil.which("redis-cli"):
        return
    assert call(*cli, "SET", "key", "value") == b"OK\n"
    assert call(*cli, "GET", "key") == b"value\n"
    assert call(*cli, data=b"INCR n\nDEL n\n").split() == [b"1", b"1"]
    if shutil.which("redis-benchmark"):
        call(
            "redis-benchmark", "-p", server.port, "-q", "-t", "set,get", "-n", "4000", "-c", "20",
            "-P", "4", "-r", "100",
        )  # fmt: skip


def check(server: Server) -> None:
    samples = server.samples[WARM_UP:]
    assert len(samples) >= 2, "too few rounds"
    shape = f"{server.name}: {samples[0]} ... {samples[-1]}"
    print(shape, f"({len(samples)} rounds)")
    assert len({sample.descriptors for sample in samples}) == 1, shape
    assert len({sample.fibers for sample in samples}) == 1, shape
    part = max(1, len(samples) // 5)
    first = statistics.median(sample.memory for sample in samples[:part])
    last = statistics.median(sample.memory for sample in samples[-part:])
    assert last <= first * (1 + GROWTH) + SLACK, shape


@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS + 120)
def test_the_servers_hold_no_more_from_round_to_round(tmp_path: Path, authority: Authority) -> None:
    if not shutil.which("curl"):
        pytest.skip("curl is not installed")
    content = os.urandom(1 << 20)
    folder = tmp_path / "www"
    folder.mkdir()
    (folder / "file").write_bytes(content)
    with ExitStack() as stack:

        def serve(name: str, *arguments: str) -> Server:
            return stack.enter_context(serving(name, tmp_path, *arguments))

        plain = serve("http_hello")
        secure = serve("http_hello", "--certfile", authority.server)
        files = serve("https_files", "--certfile", authority.server, str(folder))
        store = serve("redis_server")
        rounds: list[tuple[Server, Callable[[], None]]] = [
            (plain, lambda: hello_over_http(plain)),
            (secure, lambda: hello_over_tls(secure, authority.ca)),
            (files, lambda: files_over_tls(files, authority.ca, len(content))),
            (store, lambda: redis(store)),
        ]
        for server, _ in rounds:
            server.idle = server.fibers()
        end = time.monotonic() + SECONDS
        while time.monotonic() < end or len(plain.samples) < WARM_UP + 2:
            for server, clients in rounds:
                clients()
                server.sample()
        for server, _ in rounds:
            check(server)
