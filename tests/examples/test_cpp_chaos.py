"""Each C++ server under clients whose connections are stalled, cut, reset, trickled and reordered,
and behind a slow link with loss. What is left alone must be right, and nothing may be wrong; and
afterwards the server is as it was: it serves, it has no descriptor more, and it ends when told."""

from __future__ import annotations

import os
import re
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from certificates import Pki
from chaos_proxy import ChaosProxy
from example_process import (
    LIMIT,
    ROOT,
    Example,
    binary,
    open_files,
    read_all,
    read_exactly,
    until,
)
from test_cpp_unix_examples import Pool, Program

HUBS = pytest.mark.parametrize("hubs", [1, 2])
CLIENTS = 120
Talk = Callable[[socket.socket], None]


def echo(client: socket.socket, size: int = 20_000) -> None:
    """Sends, and reads back: OSError when the connection ends, AssertionError on wrong bytes."""
    data = os.urandom(size)
    client.sendall(data)
    client.shutdown(socket.SHUT_WR)
    back = read_to_end(client)
    assert data.startswith(back)
    if len(back) < size:
        raise ConnectionError("cut")


def read_to_end(client: socket.socket) -> bytes:
    """What comes, also when a reset ends it."""
    pieces = []
    try:
        while piece := client.recv(65536):
            pieces.append(piece)
    except ConnectionError:
        pass
    return b"".join(pieces)


def endure(server: Example | PoolServer, talk: Talk, clients: int = CLIENTS) -> None:
    """Lets many clients talk through the chaos, then one without it."""
    with server.connect() as direct:
        talk(direct)
    before = server.files()
    with ChaosProxy(server.port) as proxy:

        def one_client(_: int) -> str:
            with socket.create_connection(("127.0.0.1", proxy.port), timeout=LIMIT) as client:
                fault = None
                try:
                    talk(client)
                except TimeoutError:
                    raise
                except (OSError, EOFError, AssertionError) as error:
                    fault = proxy.fault_of(client)
                    if fault.kind not in ("cut", "reset") or "wrong" in str(error):
                        raise AssertionError(f"{fault} was more than that") from error
                return "hurt" if fault else "whole"

        with ThreadPoolExecutor(16) as pool:
            outcomes = list(pool.map(one_client, range(clients)))
        assert "whole" in outcomes
        assert "hurt" in outcomes  # or the proxy does nothing
    until(lambda: server.files() <= before, "closing what the chaos left")
    with server.connect() as direct:
        talk(direct)


@HUBS
def test_echo_server(hubs: int) -> None:
    with Example("echo_server", hubs=hubs) as server:
        endure(server, echo)


@HUBS
def test_tcp_proxy(hubs: int) -> None:
    with (
        Example("echo_server") as server,
        Example("tcp_proxy", f"127.0.0.1:{server.port}", hubs=hubs) as proxy,
    ):
        endure(proxy, echo)


@HUBS
def test_http_static(hubs: int, tmp_path: Path) -> None:
    page = os.urandom(50_000)
    (tmp_path / "page").write_bytes(page)

    def get(client: socket.socket) -> None:
        client.sendall(b"GET /page HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        head, _, body = read_to_end(client).partition(b"\r\n\r\n")
        assert page.startswith(body)
        if len(body) < len(page):
            raise ConnectionError("cut")
        assert head.startswith(b"HTTP/1.1 200"), f"wrong: {head!r}"

    with Example("http_static", str(tmp_path), hubs=hubs) as server:
        endure(server, get)


@HUBS
def test_socks5(hubs: int) -> None:
    with Example("echo_server") as server, Example("socks5", hubs=hubs) as proxy:

        def ask(client: socket.socket) -> None:
            client.sendall(b"\x05\x01\x00")
            assert read_exactly(client, 2) == b"\x05\x00"
            address = socket.inet_aton("127.0.0.1") + struct.pack(">H", server.port)
            client.sendall(b"\x05\x01\x00\x01" + address)
            assert read_exactly(client, 10)[:2] == b"\x05\x00"
            echo(client)

        endure(proxy, ask)


@HUBS
def test_chat_server(hubs: int) -> None:
    def join(client: socket.socket) -> None:
        client.sendall(b"somebody\n" + b"x" * 500 + b"\n")
        client.shutdown(socket.SHUT_WR)
        read_to_end(client)  # what the others say depends on who is there
        if client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise ConnectionError("reset")

    with Example("chat_server", hubs=hubs) as server:
        before = server.files()
        with ChaosProxy(server.port) as proxy, ThreadPoolExecutor(16) as pool:

            def one_client(_: int) -> None:
                with socket.create_connection(("127.0.0.1", proxy.port), timeout=LIMIT) as client:
                    try:
                        join(client)
                    except ConnectionError:
                        assert proxy.fault_of(client).kind in ("cut", "reset")

            list(pool.map(one_client, range(CLIENTS)))
        until(lambda: server.files() <= before + 8, "closing what the chaos left")
        with server.connect() as client:
            join(client)


@HUBS
def test_restart(hubs: int, tmp_path: Path) -> None:
    def talk(client: socket.socket) -> None:
        data = os.urandom(20_000)
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        greeting, _, back = read_to_end(client).partition(b"\n")
        assert b"this is process ".startswith(greeting[:16])
        assert data.startswith(back)
        if len(back) < len(data):
            raise ConnectionError("cut")

    with Example("restart", str(tmp_path / "control"), hubs=hubs) as server:
        endure(server, talk)


def secure_echo(roots: str) -> Talk:
    context = ssl.create_default_context(cafile=roots)

    def talk(client: socket.socket) -> None:
        with context.wrap_socket(client.dup(), server_hostname="localhost") as secure:
            data = os.urandom(20_000)
            secure.sendall(data)
            assert read_exactly(secure, len(data)) == data

    return talk


@HUBS
def test_tls_echo(hubs: int, pki: Pki) -> None:
    with Example("tls_echo", *pki.server_arguments(False), hubs=hubs) as server:
        endure(server, secure_echo(pki.roots), clients=CLIENTS // 2)


@HUBS
def test_tls_proxy(hubs: int, pki: Pki) -> None:
    with (
        Example("echo_server") as server,
        Example(
            "tls_proxy", f"127.0.0.1:{server.port}", *pki.server_arguments(False), hubs=hubs
        ) as proxy,
    ):
        endure(proxy, secure_echo(pki.roots), clients=CLIENTS // 2)


@HUBS
def test_https_static(hubs: int, pki: Pki, tmp_path: Path) -> None:
    page = os.urandom(50_000)
    (tmp_path / "page").write_bytes(page)
    context = ssl.create_default_context(cafile=pki.roots)

    def get(client: socket.socket) -> None:
        with context.wrap_socket(
            client.dup(), server_hostname="localhost", suppress_ragged_eofs=False
        ) as secure:
            secure.sendall(b"GET /page HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            # An end that nobody has said is an error, so what comes to an end is whole.
            head, _, body = read_all(secure).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), f"wrong: {head!r}"
        assert body == page, "wrong"

    with Example("https_static", *pki.server_arguments(False), str(tmp_path), hubs=hubs) as server:
        endure(server, get, clients=CLIENTS // 2)


def test_tls_client(pki: Pki) -> None:
    """It has all that the server said, or it fails; and what it has is right."""
    data = os.urandom(20_000)
    outcomes = set()
    with (
        Example("tls_echo", *pki.server_arguments(False)) as server,
        ChaosProxy(server.port, batch=1) as proxy,
    ):
        for _ in range(CLIENTS // 3):
            client = subprocess.run(
                [binary("tls_client"), f"127.0.0.1:{proxy.port}", "localhost", pki.roots],
                input=data, capture_output=True, timeout=LIMIT,
            )  # fmt: skip
            outcomes.add(client.returncode)
            assert data.startswith(client.stdout)
            if client.returncode == 0:
                assert client.stdout == data
            else:
                assert (client.returncode, proxy.last_fault().kind) in ((1, "cut"), (1, "reset"))
    assert outcomes == {0, 1}


@HUBS
def test_unix_chat(hubs: int) -> None:
    """A member reads nothing but whole lines of what others have said, however those end."""
    line = b"x" * 500 + b"\n"
    said = re.compile(
        rb"\* user \d+ \(process \d+\) has (joined|left)|user \d+ .*: (somebody|x{500})"
    )

    def join(client: socket.socket) -> None:
        client.sendall(b"somebody\n" + line)
        client.shutdown(socket.SHUT_WR)
        *lines, rest = read_to_end(client).split(b"\n")
        assert rest == b"" or proxy.fault_of(client).kind in ("cut", "reset"), "half a line"
        for each in lines:
            assert said.fullmatch(each), f"wrong: {each!r}"

    with tempfile.TemporaryDirectory(prefix="rl-", dir="/tmp") as folder:
        path = f"{folder}/chat"
        with Program("unix_chat", "serve", path, "--hubs", str(hubs)) as server:
            server.line()

            def files() -> int:
                links = open_files(server.process.pid)
                return sum(not link.startswith("anon_inode:") for link in links)

            before = files()
            with ChaosProxy(path) as proxy, ThreadPoolExecutor(16) as pool:

                def one_client(_: int) -> None:
                    with socket.create_connection(
                        ("127.0.0.1", proxy.port), timeout=LIMIT
                    ) as client:
                        try:
                            join(client)
                        except TimeoutError:
                            raise
                        except OSError:  # shutdown() after a reset: ENOTCONN
                            assert proxy.fault_of(client).kind in ("cut", "reset")

                list(pool.map(one_client, range(CLIENTS)))
            until(lambda: files() <= before, "closing what the chaos left")
            with Program("unix_chat", "join", path) as member:
                assert member.line().endswith("has joined")
                server.end()
                member.end(None)


class PoolServer(Pool):
    """A pool of workers, as `endure` wants a server."""

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT)

    def files(self) -> int:
        pids = (self.process.pid, *self.pids)
        return sum("socket" in link for pid in pids for link in open_files(pid))


def test_fd_passing_pool() -> None:
    lines = [f"line {i}".encode() for i in range(500)]

    def talk(client: socket.socket) -> None:
        client.sendall(b"\n".join(lines) + b"\n")
        client.shutdown(socket.SHUT_WR)
        back = read_to_end(client).split(b"\n")
        for line, answer in zip(lines, back[:-1], strict=False):
            worker, _, text = answer.partition(b": ")
            assert int(worker) in pool.pids, "wrong worker"
            assert text == line, f"wrong: {text!r}"
        if len(back) - 1 < len(lines):
            raise ConnectionError("cut")

    with PoolServer(2) as pool:
        endure(pool, talk)
        assert {each for each in pool.pids if Path(f"/proc/{each}").exists()} == pool.pids
        pool.end()


# ---- a slow link with loss ----

INSIDE = """
import sys
sys.path[:0] = sys.argv[1:2]
from example_process import Example
from test_cpp_chaos import echo
from concurrent.futures import ThreadPoolExecutor
with Example("echo_server", hubs=2) as server:
    def one_client(_):
        with server.connect() as client:
            echo(client)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one_client, range(40)))
print("all whole")
"""


def in_a_namespace(setup: str) -> None:
    """Runs the echo server and its clients where the loopback is what `setup` makes of it."""
    missing = [tool for tool in ("unshare", "ip", "tc") if shutil.which(tool) is None]
    if "nft" in setup and shutil.which("nft") is None:
        missing.append("nft")
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    made = subprocess.run(
        ["unshare", "-rn", "sh", "-ec", setup], capture_output=True, text=True, timeout=LIMIT
    )
    if made.returncode != 0:
        pytest.skip(f"no network namespace of our own: {made.stderr.strip()}")
    script = f'{setup}\nexec "$@"'
    here = str(ROOT / "tests" / "examples")
    done = subprocess.run(
        ["unshare", "-rn", "sh", "-ec", script, "sh", sys.executable, "-c", INSIDE, here],
        capture_output=True,
        text=True,
        timeout=6 * LIMIT,
    )
    assert done.stdout == "all whole\n", (done.stdout, done.stderr)


def test_behind_a_slow_link() -> None:
    assert binary("echo_server")
    in_a_namespace(
        "ip link set lo mtu 1500 up; tc qdisc add dev lo root tbf rate 8mbit burst 16k latency 50ms"
    )


def test_behind_a_link_with_loss() -> None:
    in_a_namespace(
        "ip link set lo mtu 1500 up; nft add table inet t;"
        "nft add chain inet t input '{ type filter hook input priority 0; }';"
        "nft add rule inet t input numgen random mod 100 '<' 2 drop"
    )


def test_the_proxy_passes_on_what_it_leaves_alone() -> None:
    """Byte for byte, in both directions at a time."""
    data = os.urandom(300_000)
    with Example("echo_server") as server, ChaosProxy(server.port) as proxy:
        for _ in range(30):
            with socket.create_connection(("127.0.0.1", proxy.port), timeout=LIMIT) as client:
                if proxy.fault_of(client).kind in ("cut", "reset"):
                    continue
                with ThreadPoolExecutor(1) as pool:
                    reading = pool.submit(read_all, client)
                    client.sendall(data)
                    client.shutdown(socket.SHUT_WR)
                    assert reading.result(LIMIT) == data
