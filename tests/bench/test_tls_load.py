"""The TLS load generator and its C peer: each mode finds what it asks for, and says so when not."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
HANG_LIMIT = 20.0
pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl makes the certificate"
)


def compiled(program: Path, source: str) -> Path:
    compiler = shutil.which("cc")
    assert compiler, "a C compiler is needed"
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-pthread"]
    subprocess.run(
        [compiler, *flags, "-o", program, BENCH / source, "-lssl", "-lcrypto"], check=True
    )
    return program


@pytest.fixture(scope="module")
def tls_load(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("bin") / "tls_load", "net/tls_load.c")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """Its port and its process."""
    folder = tmp_path_factory.mktemp("server")
    program = compiled(folder / "tls_openssl", "peers/tls_openssl.c")
    pem, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-days", "1", "-subj", "/CN=localhost", "-keyout", key, "-out", pem],
        check=True, capture_output=True,
    )  # fmt: skip
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    with subprocess.Popen([program, str(port), pem, key]) as process:
        try:
            end = time.monotonic() + HANG_LIMIT
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=1).close()
                    break
                except OSError:
                    assert process.poll() is None and time.monotonic() < end
                    time.sleep(0.01)
            yield port, process.pid
        finally:
            process.kill()


def run(program: Path, port: int, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [str(program), "-p", str(port), "-t", "0.1", "-w", "0.02", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=HANG_LIMIT)


@pytest.mark.parametrize(
    "words",
    [
        ("-m", "echo", "-s", "100", "-c", "3"),
        ("-m", "echo", "-s", "200000"),
        ("-m", "handshake"),
        ("-m", "handshake", "-2"),
        ("-m", "resume"),
        ("-m", "resume", "-2"),
    ],
)
def test_each_mode_counts(tls_load: Path, server: tuple[int, int], words: tuple[str, ...]) -> None:
    port, pid = server
    done = run(tls_load, port, *words, "-P", str(pid))
    assert done.returncode == 0, done.stderr
    figures = {k: float(v) for k, _, v in (word.partition("=") for word in done.stdout.split())}
    assert figures["requests"] > 0
    assert figures["req_s"] > 0
    assert figures["srv_cpu_ns"] > 0
    assert 0 < figures["p50_us"] <= figures["p99_us"] <= figures["p999_us"]


def test_a_server_without_tls_is_an_error(tls_load: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as stack:
        argv = [str(tls_load), "-p", str(listener.getsockname()[1]), "-m", "handshake"]
        client = stack.enter_context(
            subprocess.Popen(argv, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        listener.settimeout(HANG_LIMIT)
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"no TLS at all\n")
            _, stderr = client.communicate(timeout=HANG_LIMIT)
    assert client.returncode == 1
    assert "handshake" in stderr
