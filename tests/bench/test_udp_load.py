"""The datagram load generator and its C peer: losses and wrong bytes are found, figures add up."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
HANG_LIMIT = 10.0


def compiled(program: Path, *sources: str) -> Path:
    compiler = shutil.which("cc")
    assert compiler, "a C compiler is needed"
    argv = [compiler, "-std=gnu11", "-D_GNU_SOURCE", "-O1", "-o", str(program)]
    subprocess.run([*argv, *(str(BENCH / source) for source in sources)], check=True)
    return program


@pytest.fixture(scope="module")
def udp_load(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("bin") / "udp_load"
    return compiled(program, "net/udp_load.c", "net/load_stats.c")


@contextlib.contextmanager
def server(answer: Callable[[bytes, int], list[bytes]]) -> Iterator[int]:
    """Answers each datagram, of which it also knows the number, with those that `answer` gives."""
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(0.05)
        over = threading.Event()

        def serve() -> None:
            count = 0
            while not over.is_set():
                with contextlib.suppress(TimeoutError):
                    data, peer = sock.recvfrom(65536)
                    for reply in answer(data, count):
                        sock.sendto(reply, peer)
                    count += 1

        serving = threading.Thread(target=serve)
        serving.start()
        yield sock.getsockname()[1]
        over.set()
        serving.join(HANG_LIMIT)


def load(
    program: Path, port: int, *words: str, seconds: float = 0.2
) -> subprocess.CompletedProcess[str]:
    argv = [str(program), "-p", str(port), "-t", str(seconds), "-w", "0.05", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=HANG_LIMIT)


def figures(done: subprocess.CompletedProcess[str]) -> dict[str, float]:
    assert done.returncode == 0, done.stderr
    pairs = (word.split("=") for word in done.stdout.split())
    return {key: float(value) for key, value in pairs}


@pytest.mark.parametrize(
    "words",
    [
        ["-c", "1"],
        ["-c", "1", "-b"],
        ["-c", "20"],
        ["-c", "3", "-D", "16"],
        ["-c", "2", "-s", "2048"],
        ["-c", "2", "-s", "16", "-D", "64"],
    ],
)
def test_a_correct_server_passes(udp_load: Path, words: list[str]) -> None:
    with server(lambda data, _: [data]) as port:
        told = figures(load(udp_load, port, *words, "-P", str(os.getpid())))
    assert told["requests"] > 0
    assert told["lost"] == 0
    assert told["p50_us"] <= told["p99_us"] <= told["p999_us"]
    assert told["srv_cpu_ns"] > 0


def test_lost_datagrams_are_counted_and_replaced(udp_load: Path) -> None:
    with server(lambda data, count: [] if count % 10 == 0 else [data]) as port:
        told = figures(load(udp_load, port, "-c", "4", "-D", "4", seconds=1.0))
    assert told["lost"] > 0
    assert told["requests"] > told["lost"]


def test_a_mute_server_loses_all(udp_load: Path) -> None:
    with server(lambda data, _: []) as port:
        told = figures(load(udp_load, port, "-c", "2", "-D", "3", seconds=1.0))
    assert told["requests"] == 0
    assert told["lost"] >= 6


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "wrong bytes"),
        (lambda data: data + b"x", "another size"),
        (lambda data: bytes(4 * [255]) + data[4:], "wrong bytes"),
        (lambda data: data[:8] + (1 << 40).to_bytes(8, "little") + data[16:], "wrong bytes"),
    ],
)
def test_a_spoilt_datagram_is_found(
    udp_load: Path, spoil: Callable[[bytes], bytes], what: str
) -> None:
    with server(lambda data, count: [spoil(data) if count == 20 else data]) as port:
        done = load(udp_load, port, "-c", "2")
    assert done.returncode == 2
    assert what in done.stderr


def test_a_doubled_datagram_counts_once(udp_load: Path) -> None:
    received = 0

    def twice(data: bytes, count: int) -> list[bytes]:
        nonlocal received
        received = count + 1
        return [data, data]

    with server(twice) as port:
        told = figures(load(udp_load, port, "-c", "1"))
    assert 0 < told["requests"] <= received


def test_a_server_that_is_gone_is_found(udp_load: Path) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    done = load(udp_load, port, "-c", "2")
    assert done.returncode == 2
    assert "gone" in done.stderr


def test_bad_usage(udp_load: Path) -> None:
    for words in (["-c", "0"], ["-s", "15"], ["-s", "2049"], ["-D", "65"], ["-x"]):
        assert load(udp_load, 1, *words).returncode == 64


@pytest.mark.parametrize("mode", ["block", "epoll"])
def test_the_c_peer_echoes(udp_load: Path, tmp_path: Path, mode: str) -> None:
    program = compiled(tmp_path / "echo_udp", "peers/echo_udp.c")
    assert subprocess.run([program], stderr=subprocess.DEVNULL).returncode == 64
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with subprocess.Popen([program, "-p", str(port), "-m", mode]) as peer:
        try:
            with socket.socket(type=socket.SOCK_DGRAM) as client:
                client.settimeout(0.1)
                client.connect(("127.0.0.1", port))
                end = time.monotonic() + HANG_LIMIT
                while time.monotonic() < end:
                    try:
                        client.send(b"up?")
                        if client.recv(10) == b"up?":
                            break
                    except OSError:
                        time.sleep(0.01)  # it is not yet there
            told = figures(load(udp_load, port, "-c", "5", "-D", "20"))
            assert told["requests"] > 0
            assert told["lost"] == 0
        finally:
            peer.kill()
