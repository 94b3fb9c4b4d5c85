"""The C++ examples, driven by real clients: Python sockets, curl, nc and wrk where installed."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from example_process import LIMIT, Example, binary, read_all, read_exactly, reset, until

HUBS = pytest.mark.parametrize("hubs", [1, 2])
MEGABYTE = 1 << 20


@contextmanager
def python_server(handler: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server of one connection on a thread; what the handler raises is raised at the end."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        listener.settimeout(LIMIT)

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(LIMIT)
                handler(connection)

        ended = pool.submit(serve)
        yield listener.getsockname()[1]
        ended.result(LIMIT)


def echo_through(port: int, connections: int) -> None:
    """Opens all connections first, then sends different bytes on each and reads them back."""
    with ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=LIMIT))
            for _ in range(connections)
        ]
        for round_ in range(3):
            messages = [f"{round_}:{i};".encode() * 200 for i in range(connections)]
            for client, message in zip(clients, messages, strict=True):
                client.sendall(message)
            for client, message in zip(clients, messages, strict=True):
                assert read_exactly(client, len(message)) == message
        for client in clients:
            client.shutdown(socket.SHUT_WR)
        for client in clients:
            assert read_all(client) == b""


# ---- echo ----


@HUBS
def test_echo_serves_200_connections_at_once(hubs: int) -> None:
    with Example("echo_server", hubs=hubs) as server:
        before = server.descriptors()
        echo_through(server.port, 200)
        # Each hub takes a few for itself when it first waits.
        until(lambda: server.descriptors() < before + 20, "closing what the clients closed")
    assert "accepted 200, active 0" in server.stdout


def test_echo_answers_after_the_client_ended_its_side() -> None:
    data = os.urandom(MEGABYTE)
    with Example("echo_server") as server, server.connect() as client:

        def send() -> None:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        assert read_all(client) == data
        sender.join()


@pytest.mark.skipif(shutil.which("nc") is None, reason="nc is not installed")
def test_echo_with_nc() -> None:
    with (
        Example("echo_server") as server,
        subprocess.Popen(
            ["nc", "127.0.0.1", str(server.port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as nc,
    ):
        assert nc.stdin is not None and nc.stdout is not None
        try:
            nc.stdin.write(b"hello\n")
            nc.stdin.flush()
            ready, _, _ = select.select([nc.stdout], [], [], LIMIT)
            assert ready and nc.stdout.readline() == b"hello\n"
        finally:
            nc.kill()


def test_echo_survives_resets() -> None:
    with Example("echo_server") as server:
        for _ in range(50):
            client = server.connect()
            client.sendall(b"x" * 1000)
            reset(client)
        echo_through(server.port, 5)
    assert "accepted 55" in server.stdout


@pytest.mark.slow
def test_t01_without_descriptors_it_waits_quietly() -> None:
    with Example("echo_server") as server, ExitStack() as stack:
        opened = stack.enter_context(server.connect())
        opened.sendall(b"before")
        assert read_exactly(opened, 6) == b"before"
        pid = server.process.pid
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (server.descriptors() + 2, limits[1]))
        clients = [stack.enter_context(server.connect()) for _ in range(20)]
        for client in clients:
            client.sendall(b"waits")
        spent = server.cpu_seconds()
        time.sleep(3)  # the time that is watched
        assert server.cpu_seconds() - spent < 0.05 * 3
        opened.sendall(b"meanwhile")
        assert read_exactly(opened, 9) == b"meanwhile"
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        for client in clients:
            assert read_exactly(client, 5) == b"waits"
    reports = server.stderr.count("Too many open files")
    assert 1 <= reports <= 5, server.stderr
    tries = re.search(r"accept failed, will try again: (\d+)", server.stdout)
    assert tries is not None and int(tries[1]) < 20


def may_trace() -> bool:
    if shutil.which("strace") is None:
        return False
    return subprocess.run(["strace", "-qq", "-o", os.devnull, "true"], check=False).returncode == 0


@pytest.mark.skipif(not may_trace(), reason="strace is not installed or may not trace")
@pytest.mark.parametrize("error", ["ENFILE", "ENOBUFS", "ENOMEM"])
def test_t02_accept_that_fails_for_a_while(error: str) -> None:
    # -D: the example stays our child.
    inject = f"inject=accept4:error={error}:when=1..3"
    strace = ["strace", "-D", "-f", "-qq", "-o", os.devnull, "-e", inject]
    with Example("echo_server", under=strace) as server:
        echo_through(server.port, 5)
    assert "accepted 5, active 0" in server.stdout
    assert "accept failed, will try again: 3" in server.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@HUBS
def test_stop_serves_open_connections_to_their_end(hubs: int, number: signal.Signals) -> None:
    with Example("echo_server", hubs=hubs) as server, server.connect() as client:
        client.sendall(b"before")
        assert read_exactly(client, 6) == b"before"
        server.signal(number)

        def refused() -> bool:
            try:
                server.connect().close()
            except ConnectionRefusedError:
                return True
            except ConnectionResetError:  # it stood in the backlog when the listener was closed
                return False
            return False

        until(refused, "closing the listener")
        client.sendall(b"after")
        assert read_exactly(client, 5) == b"after"
        client.close()
        server.wait()
    assert "cancelled 0" in server.stdout


def test_stop_does_not_wait_for_ever_for_idle_clients() -> None:
    with Example("echo_server") as server, server.connect() as client:
        client.sendall(b"x")
        assert read_exactly(client, 1) == b"x"
        server.signal(signal.SIGTERM)
        server.wait()
        assert client.recv(1) == b""
    assert "cancelled 1" in server.stdout


def test_a_second_signal_ends_it_at_once() -> None:
    with Example("echo_server") as server, server.connect() as client:
        client.sendall(b"x")
        assert read_exactly(client, 1) == b"x"
        server.signal(signal.SIGTERM)
        server.signal(signal.SIGINT)
        assert client.recv(1) == b""
        server.wait()
    assert "cancelled 1" in server.stdout


def test_two_servers_can_not_share_a_port_by_accident() -> None:
    with Example("echo_server", hubs=2) as server:
        second = subprocess.run(
            [binary("echo_server"), "--port", str(server.port), "--hubs", "2"],
            capture_output=True, text=True, timeout=LIMIT, check=False,
        )  # fmt: skip
        assert second.returncode == 1
        assert "Address already in use" in second.stderr


def test_options_that_are_not_understood() -> None:
    program = binary("echo_server")
    for arguments in (["--port", "70000"], ["--hubs", "0"], ["--what"], ["--port"]):
        run = subprocess.run(
            [program, *arguments], capture_output=True, text=True, timeout=LIMIT, check=False
        )
        assert run.returncode == 2
        assert arguments[-1] in run.stderr
        assert "usage:" in run.stderr


# ---- proxy ----


@HUBS
def test_proxy_carries_200_connections_at_once(hubs: int) -> None:
    with (
        Example("echo_server", hubs=hubs) as echo,
        Example("tcp_proxy", f"127.0.0.1:{echo.port}", hubs=hubs) as proxy,
    ):
        echo_through(proxy.port, 200)
    assert "accepted 200, active 0" in proxy.stdout
    assert "accepted 200, active 0" in echo.stdout


def test_proxy_passes_the_end_of_the_client_on() -> None:
    data = os.urandom(300_000)

    def answer_at_the_end(connection: socket.socket) -> None:
        connection.sendall(hashlib.sha256(read_all(connection)).digest())

    with (
        python_server(answer_at_the_end) as port,
        Example("tcp_proxy", f"127.0.0.1:{port}") as proxy,
        proxy.connect() as client,
    ):
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        assert read_all(client) == hashlib.sha256(data).digest()


def test_proxy_passes_the_end_of_the_server_on() -> None:
    received = []

    def speak_first(connection: socket.socket) -> None:
        connection.sendall(b"goodbye")
        connection.shutdown(socket.SHUT_WR)
        received.append(read_all(connection))

    with (
        python_server(speak_first) as port,
        Example("tcp_proxy", f"127.0.0.1:{port}") as proxy,
        proxy.connect() as client,
    ):
        assert read_all(client) == b"goodbye"
        client.sendall(b"still here")
        client.shutdown(socket.SHUT_WR)
        until(lambda: received, "the other direction")
    assert received == [b"still here"]


def test_proxy_slows_the_sender_down_to_the_receiver() -> None:
    """64 MB to a receiver that does not read at first: the proxy holds next to nothing of it."""
    chunk = os.urandom(MEGABYTE)
    may_read = threading.Event()
    digest = hashlib.sha256()

    def read_late(connection: socket.socket) -> None:
        assert may_read.wait(LIMIT)
        while piece := connection.recv(MEGABYTE):
            digest.update(piece)

    with (
        python_server(read_late) as port,
        Example("tcp_proxy", f"127.0.0.1:{port}") as proxy,
        proxy.connect() as client,
    ):
        before = proxy.resident()
        sent = 0
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):  # until nothing goes any more
            while sent < 64 * MEGABYTE:
                sent += client.send(chunk[sent % MEGABYTE :])
        assert 0 < sent < 64 * MEGABYTE
        assert proxy.resident() - before < 16 * MEGABYTE
        may_read.set()
        client.settimeout(LIMIT)
        while sent < 64 * MEGABYTE:
            sent += client.send(chunk[sent % MEGABYTE :])
        client.shutdown(socket.SHUT_WR)
        assert read_all(client) == b""
    assert digest.digest() == hashlib.sha256(chunk * 64).digest()


def test_proxy_ends_a_connection_that_it_can_not_make() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound and not listening: refuses
        port = nobody.getsockname()[1]
        with Example("tcp_proxy", f"127.0.0.1:{port}") as proxy:
            for _ in range(3):
                with proxy.connect() as client:
                    assert read_all(client) == b""
    assert proxy.stderr.count("Connection refused") == 3


def test_proxy_passes_a_broken_connection_on() -> None:
    with (
        Example("echo_server") as echo,
        Example("tcp_proxy", f"127.0.0.1:{echo.port}") as proxy,
    ):
        client = proxy.connect()
        client.sendall(b"x")
        assert read_exactly(client, 1) == b"x"
        busy = proxy.descriptors(), echo.descriptors()
        reset(client)
        ended = busy[0] - 2, busy[1] - 1
        until(lambda: (proxy.descriptors(), echo.descriptors()) == ended, "ending both sides")


# ---- chat ----


class Chatter:
    def __init__(self, server: Example, name: str) -> None:
        self.socket = server.connect()
        self.file = self.socket.makefile("rw", encoding="utf-8", newline="\n")
        assert self.read() == "Who are you?"
        self.say(name)
        assert self.read() == f"* {name} has joined"

    def read(self) -> str:
        return self.file.readline().rstrip("\n")

    def say(self, text: str) -> None:
        self.file.write(text + "\n")
        self.file.flush()

    def close(self) -> None:
        self.file.close()
        self.socket.close()


@HUBS
def test_chat_passes_lines_to_everybody_else(hubs: int) -> None:
    with Example("chat_server", hubs=hubs) as server:
        ann = Chatter(server, "ann")
        bob = Chatter(server, "bob")
        assert ann.read() == "* bob has joined"
        cyd = Chatter(server, "cyd")
        assert ann.read() == "* cyd has joined"
        assert bob.read() == "* cyd has joined"
        for i in range(100):
            ann.say(f"line {i}")
        for i in range(100):
            assert bob.read() == f"ann: line {i}"
            assert cyd.read() == f"ann: line {i}"
        bob.say("/quit")
        assert bob.read() == ""
        assert ann.read() == "* bob has left"
        cyd.close()
        assert ann.read() == "* cyd has left"
        ann.close()


def test_chat_ends_a_member_whose_line_is_too_long() -> None:
    with Example("chat_server") as server:
        ann = Chatter(server, "ann")
        bob = Chatter(server, "bob")
        assert ann.read() == "* bob has joined"
        bob.say("x" * 5000)
        assert ann.read() == "* bob has left"
        ann.close()
        bob.close()


def test_chat_does_not_wait_for_a_member_who_does_not_read() -> None:
    with Example("chat_server") as server:
        slow = Chatter(server, "slow")
        ann = Chatter(server, "ann")
        bob = Chatter(server, "bob")
        assert ann.read() == "* bob has joined"
        line = "y" * 1000
        left = False
        for _ in range(60_000):
            ann.say(line)
            heard = bob.read()
            if heard == "* slow has left":
                left = True
                break
            assert heard == f"ann: {line}"
        assert left
        for chatter in (slow, ann, bob):
            chatter.close()


# ---- http ----


@pytest.fixture
def site(tmp_path: Path) -> Path:
    root = tmp_path / "site"
    (root / "sub dir").mkdir(parents=True)
    (root / "index.html").write_text("<h1>home</h1>\n")
    (root / "sub dir" / "ä.txt").write_text("umlaut\n")
    (root / "empty.css").write_bytes(b"")
    (root / "big.bin").write_bytes(os.urandom(5 * MEGABYTE + 17))
    (tmp_path / "secret.txt").write_text("secret\n")
    (root / "link.txt").symlink_to("../secret.txt")
    (root / "up").symlink_to("..")
    os.mkfifo(root / "fifo")
    return root


def curl(server: Example, path: str, *options: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["curl", "-sS", "--max-time", "10", "--path-as-is", *options,
         f"http://127.0.0.1:{server.port}{path}"],
        capture_output=True, timeout=2 * LIMIT, check=False,
    )  # fmt: skip


needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


@needs_curl
@HUBS
def test_http_serves_files_to_curl(site: Path, hubs: int) -> None:
    with Example("http_static", str(site), hubs=hubs) as server:
        home = curl(server, "/", "-i")
        head, _, body = home.stdout.partition(b"\r\n\r\n")
        assert body == b"<h1>home</h1>\n"
        lines = head.decode().split("\r\n")
        assert lines[0] == "HTTP/1.1 200 OK"
        assert "Content-Type: text/html; charset=utf-8" in lines
        assert f"Content-Length: {len(body)}" in lines
        assert curl(server, "/index.html?a=1").stdout == body
        assert curl(server, "/sub%20dir/%C3%A4.txt").stdout == b"umlaut\n"
        assert curl(server, "/empty.css").stdout == b""
        big = (site / "big.bin").read_bytes()
        assert curl(server, "/big.bin").stdout == big
        # Two files over one connection.
        two = curl(server, "/", f"http://127.0.0.1:{server.port}/big.bin")
        assert two.stdout in (body + big, big + body)
    assert server.stderr == ""


@needs_curl
def test_http_head_has_the_length_and_no_body(site: Path) -> None:
    with Example("http_static", str(site)) as server:
        answer = curl(server, "/big.bin", "-I")
        assert answer.returncode == 0
        assert f"Content-Length: {5 * MEGABYTE + 17}\r\n".encode() in answer.stdout
        assert answer.stdout.endswith(b"\r\n\r\n")
        assert curl(server, "/none", "-I").stdout.startswith(b"HTTP/1.1 404 Not Found\r\n")


@needs_curl
@pytest.mark.parametrize(
    "path",
    [
        "/none", "/index.html/", "/sub%20dir", "/sub%20dir/", "/../secret.txt",
        "/sub%20dir/../../secret.txt", "/%2e%2e/secret.txt", "/%2e%2e%2fsecret.txt",
        "//secret.txt", "/link.txt", "/up/secret.txt", "/./index.html", "/fifo", "/dev/null",
    ],
)  # fmt: skip
def test_http_serves_nothing_else(site: Path, path: str) -> None:
    with Example("http_static", str(site)) as server:
        answer = curl(server, path, "-w", "%{http_code}")
        assert answer.stdout == b"404 Not Found\n404"


def test_http_keeps_a_connection_alive(site: Path) -> None:
    with Example("http_static", str(site)) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LIMIT)
        for path, status in [("/", 200), ("/none", 404), ("/big.bin", 200), ("/%zz", 400)] * 3:
            connection.request("GET", path)
            response = connection.getresponse()
            body = response.read()
            assert response.status == status
            assert int(response.headers["Content-Length"]) == len(body)
        connection.close()
    assert "accepted 1, active 0" in server.stdout


def exchange(server: Example, request: bytes) -> bytes:
    """Sends a request and reads to the end of the connection."""
    with server.connect() as client:
        client.sendall(request)
        return read_all(client)


def test_http_answers_pipelined_requests_in_order(site: Path) -> None:
    get = b"GET /%s HTTP/1.1\r\nHost: x\r\n%s\r\n"
    last = get % (b"empty.css", b"Connection: close\r\n")
    with Example("http_static", str(site)) as server, server.connect() as client:
        # In pieces that respect no border.
        data = get % (b"", b"") + get % (b"none", b"") + last
        for at in range(0, len(data), 13):
            client.sendall(data[at : at + 13])
        answer = read_all(client)
    assert re.findall(rb"HTTP/1\.1 (\d+)", answer) == [b"200", b"404", b"200"]


def test_http_1_0_closes_unless_asked_not_to(site: Path) -> None:
    with Example("http_static", str(site)) as server:
        answer = exchange(server, b"GET / HTTP/1.0\r\n\r\n")
        assert b"\r\nConnection: close\r\n" in answer
        assert answer.endswith(b"<h1>home</h1>\n")
        with server.connect() as client:
            for _ in range(2):
                client.sendall(b"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n")
                answer = b""
                while not answer.endswith(b"<h1>home</h1>\n"):
                    answer += read_exactly(client, 1)
                assert b"\r\nConnection: keep-alive\r\n" in answer


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"nonsense\r\n\r\n", b"400 Bad Request"),
        (b"GET / HTTP/2.0\r\n\r\n", b"400 Bad Request"),
        (b"GET relative HTTP/1.1\r\n\r\n", b"400 Bad Request"),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"400 Bad Request"),
        (b"DELETE / HTTP/1.1\r\nHost: x\r\n\r\n", b"405 Method Not Allowed"),
        (b"GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", b"413 Content Too Large"),
        (b"GET / HTTP/1.1\r\nX: " + b"y" * 70_000, b"431 Request Header Fields Too Large"),
    ],
)
def test_http_refuses_and_closes(site: Path, request_: bytes, status: bytes) -> None:
    with Example("http_static", str(site)) as server:
        answer = exchange(server, request_)
        assert answer.startswith(b"HTTP/1.1 " + status + b"\r\n")
        assert b"\r\nConnection: close\r\n" in answer


def test_t46_http_client_reads_the_early_answer_to_a_big_post(site: Path) -> None:
    head = b"POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 8388608\r\n\r\n"
    with Example("http_static", str(site)) as server, server.connect() as client:
        client.sendall(head + b"z" * 8 * MEGABYTE)
        client.shutdown(socket.SHUT_WR)
        assert read_all(client).startswith(b"HTTP/1.1 405 Method Not Allowed\r\n")


@pytest.mark.slow
def test_r02_http_gives_a_slow_head_its_time_and_no_more(site: Path) -> None:
    with Example("http_static", str(site)) as server, server.connect() as client:
        client.settimeout(0.5)
        answer = b""
        for byte in b"GET / HTTP/1.1\r\nX: " + b"y" * 60:
            client.sendall(bytes([byte]))
            try:
                answer = client.recv(4096)
                break
            except TimeoutError:
                assert exchange(server, b"GET / HTTP/1.0\r\n\r\n").endswith(b"<h1>home</h1>\n")
        assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")


@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")
@HUBS
def test_http_serves_wrk(site: Path, hubs: int) -> None:
    with Example("http_static", str(site), hubs=hubs) as server:
        run = subprocess.run(
            ["wrk", "-t1", "-c64", "-d1s", f"http://127.0.0.1:{server.port}/index.html"],
            capture_output=True, text=True, timeout=3 * LIMIT, check=False,
        )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "Requests/sec:" in run.stdout
    assert "requests in" in run.stdout and " 0 requests in" not in run.stdout
    assert "Socket errors" not in run.stdout, run.stdout
    assert "Non-2xx" not in run.stdout, run.stdout


def test_http_static_sends_a_cold_file(site: Path) -> None:
    data = os.urandom(3 * MEGABYTE)
    path = site / "large.bin"
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    with Example("http_static", str(site)) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LIMIT)
        connection.request("GET", "/large.bin")
        assert connection.getresponse().read() == data
        connection.request("GET", "/fifo")  # nobody waits for its other end
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (404, b"404 Not Found\n")
        connection.close()


# ---- tail_follow ----


@contextmanager
def tail(*arguments: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [binary("tail_follow"), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            yield process
            process.send_signal(signal.SIGTERM)
            assert process.wait(LIMIT) == 0
        finally:
            process.kill()


def read_until(process: subprocess.Popen[bytes], expected: bytes) -> None:
    """Reads its output, which must be exactly that."""
    assert process.stdout is not None
    text = b""
    while len(text) < len(expected):
        ready, _, _ = select.select([process.stdout], [], [], LIMIT)
        assert ready, f"it only wrote {text!r}"
        piece = os.read(process.stdout.fileno(), 65536)
        assert piece, f"it ended after {text!r}"
        text += piece
    assert text == expected


def test_tail_follows_a_file_that_grows_is_cut_and_rotated(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"".join(b"line %d\n" % i for i in range(1000)))
    with tail("--lines", "2", log) as process:
        read_until(process, b"line 998\nline 999\n")
        with log.open("ab") as file:
            file.write(b"more\n")
        read_until(process, b"more\n")
        log.write_bytes(b"cut\n")
        read_until(process, b"cut\n")
        log.rename(tmp_path / "log.1")
        with (tmp_path / "log.1").open("ab") as file:
            file.write(b"late\n")
        read_until(process, b"late\n")
        log.write_bytes(b"new\n")
        read_until(process, b"new\n")
        log.unlink()
        log.write_bytes(b"again\n")
        read_until(process, b"again\n")
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        assert f"{log} was truncated\n" in process.stderr.read().decode()


def test_tail_waits_for_a_file_and_names_several(tmp_path: Path) -> None:
    with tail(tmp_path / "a", tmp_path / "b") as process:
        (tmp_path / "a").write_bytes(b"one\n")
        read_until(process, b"==> %s <==\none\n" % bytes(tmp_path / "a"))
        (tmp_path / "b").write_bytes(b"two\n")
        read_until(process, b"\n==> %s <==\ntwo\n" % bytes(tmp_path / "b"))


@pytest.mark.parametrize("lines", [1, 3, 5000])
def test_tail_begins_where_tail_does(tmp_path: Path, lines: int) -> None:
    for text in (b"", b"one", b"one\n", b"one\ntwo", b"\n\n\n\n", b"x" * 9000 + b"\ny\n" * 4000):
        log = tmp_path / "log"
        log.write_bytes(text)
        expected = subprocess.run(
            ["tail", "-n", str(lines), log], stdout=subprocess.PIPE, check=True
        ).stdout
        with tail("--lines", str(lines), log) as process:
            read_until(process, expected)
            # That nothing came before this is what read_until checks next.
            with log.open("ab") as file:
                file.write(b"end\n")
            read_until(process, b"end\n")


# ---- parallel_copy ----


def copy_tree(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [binary("parallel_copy"), *arguments],
        capture_output=True,
        text=True,
        timeout=3 * LIMIT,
        check=False,
    )


def test_parallel_copy_copies_a_tree(tmp_path: Path) -> None:
    source = tmp_path / "from"
    for i in range(60):
        file = source / f"d{i % 7}" / f"e{i % 3}" / f"{i}.bin"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(os.urandom(i * 1000))
        file.chmod(0o600 + i % 8)
    (source / "large").write_bytes(os.urandom(20 * MEGABYTE))
    (source / "empty").mkdir()
    (source / "link").symlink_to("large")
    (source / "nowhere").symlink_to("nothing")
    os.mkfifo(source / "fifo")
    done = copy_tree("--jobs", "4", source, tmp_path / "to")
    assert done.returncode == 0, done.stderr
    bytes_ = sum(i * 1000 for i in range(60)) + 20 * MEGABYTE
    assert done.stdout == f"copied 61 files, {bytes_} bytes\n"
    assert "fifo: is no file, left out" in done.stderr
    (source / "fifo").unlink()
    subprocess.run(["diff", "-r", "--no-dereference", source, tmp_path / "to"], check=True)
    for file in source.rglob("*.bin"):
        assert (tmp_path / "to" / file.relative_to(source)).stat().st_mode == file.stat().st_mode


def test_parallel_copy_leaves_nothing_unfinished(tmp_path: Path) -> None:
    source = tmp_path / "from"
    source.mkdir()
    for i in range(20):
        (source / str(i)).write_bytes(b"x" * 1000)
    target = tmp_path / "to"
    (target / "7").mkdir(parents=True)  # no file can take this name
    done = copy_tree(source, target)
    assert done.returncode == 1
    assert f"{source / '7'}: Is a directory" in done.stderr
    assert not list(target.glob("*.unfinished"))
    assert copy_tree(tmp_path / "none", target).returncode == 1
    assert copy_tree(source).returncode == 2
