"""The load generator: it finds what a server does wrong, and its figures add up."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

NET = Path(__file__).resolve().parents[2] / "bench" / "net"
HANG_LIMIT = 10.0


@pytest.fixture(scope="module")
def echo_load(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built without liburing: both kinds of machine have the epoll engine."""
    compiler = shutil.which("cc")
    assert compiler, "a C compiler is needed"
    program = tmp_path_factory.mktemp("bin") / "echo_load"
    sources = [
        NET / name for name in ("echo_load.c", "load_epoll.c", "load_stats.c", "load_uring.c")
    ]
    subprocess.run(
        [compiler, "-std=gnu11", "-D_GNU_SOURCE", "-O1", "-o", program, *sources], check=True
    )
    return program


@contextlib.contextmanager
def server(answer: Callable[[bytes], bytes]) -> Iterator[int]:
    """Answers each received block with `answer` of it; an empty answer closes the connection."""

    def serve(conn: socket.socket) -> None:
        with conn, contextlib.suppress(OSError):
            while (data := conn.recv(65536)) and (reply := answer(data)):
                conn.sendall(reply)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                conn, _ = listener.accept()
                threading.Thread(target=serve, args=(conn,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join(HANG_LIMIT)


def load(program: Path, port: int, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [str(program), "-p", str(port), "-t", "0.2", "-w", "0.05", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=HANG_LIMIT)


@pytest.mark.parametrize(
    "words",
    [
        ["-c", "1"],
        ["-c", "1", "-b"],
        ["-c", "20"],
        ["-c", "3", "-D", "16"],
        ["-c", "2", "-s", "300000"],
        ["-c", "2", "-s", "7", "-D", "3"],
    ],
)
def test_a_correct_server_passes(echo_load: Path, words: list[str]) -> None:
    with server(lambda data: data) as port:
        done = load(echo_load, port, *words, "-P", str(os.getpid()))
    assert done.returncode == 0, done.stderr
    figures = {key: float(value) for key, value in (w.split("=") for w in done.stdout.split())}
    assert figures["requests"] > 0
    assert figures["req_s"] > 0
    assert 0 < figures["p50_us"] <= figures["p99_us"] <= figures["p999_us"]
    assert figures["srv_cpu_ns"] > 0
    # The figures are of one window: CPU a request, times requests, is the share of a core.
    share = figures["srv_cpu_ns"] * figures["req_s"] / 1e9
    assert share == pytest.approx(figures["srv_util"], rel=0.05, abs=0.005)


def test_a_wrong_byte_is_found(echo_load: Path) -> None:
    with server(lambda data: data[:-1] + bytes([data[-1] ^ 1])) as port:
        done = load(echo_load, port, "-c", "2")
    assert done.returncode == 2
    assert "wrong bytes" in done.stderr


def test_a_lost_byte_is_found(echo_load: Path) -> None:
    with server(lambda data: data[1:]) as port:
        done = load(echo_load, port, "-c", "2")
    assert done.returncode == 2
    assert "wrong bytes" in done.stderr


def test_a_connection_that_the_server_closes_is_found(echo_load: Path) -> None:
    with server(lambda data: b"") as port:
        done = load(echo_load, port, "-c", "2")
    assert done.returncode == 2
    assert "closed the connection" in done.stderr


def test_a_mute_server_ends_the_run_with_no_request(echo_load: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = load(echo_load, listener.getsockname()[1], "-c", "2")
    assert done.returncode == 0
    assert done.stdout.startswith("requests=0 ")


def test_bad_usage(echo_load: Path) -> None:
    assert load(echo_load, 1, "-c", "0").returncode == 64
    assert load(echo_load, 1, "-e", "carrier-pigeon").returncode == 64
