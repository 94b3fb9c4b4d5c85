"""The Python examples as their users run them, driven by real clients: curl, wrk and nc where they
are installed, plain sockets, asyncio streams."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from example_support import (
    EXAMPLES,
    MEGABYTE,
    Example,
    command,
    environment,
    output_of,
    running,
    tool,
    until,
    upstream,
)
from socket_support import LIMIT, read_all, read_exactly, reset
from tls_support import world, write

# ---- every server ----

SERVERS = [("echo",), ("http_hello",), ("chat",), ("proxy", "127.0.0.1:9")]


@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server[0])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_ends_cleanly_with_connections_open(
    server: tuple[str, ...], number: signal.Signals
) -> None:
    example = Example(*server)
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(example.connect())
        example.end(number)


@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server[0])
def test_a_server_says_how_it_is_used(server: tuple[str, ...]) -> None:
    text = output_of(command(server[0], "--help"))
    assert f"python examples/python/{server[0]}.py" in text


def test_a_server_survives_resets() -> None:
    with running("echo") as server:
        for _ in range(20):
            reset(server.connect())
        with server.connect() as client:
            client.sendall(b"alive")
            assert read_exactly(client, 5) == b"alive"


def test_a_server_survives_running_out_of_descriptors() -> None:
    code = (
        "import resource, runpy, sys\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))\n"
        f"sys.path.insert(0, {str(EXAMPLES)!r})\n"
        f"sys.argv = ['echo.py', '--port', '0']\n"
        f"runpy.run_path({str(EXAMPLES / 'echo.py')!r}, run_name='__main__')\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            port = int(process.stdout.readline().rpartition(":")[2])
            with ExitStack() as stack:
                clients = [
                    stack.enter_context(socket.create_connection(("127.0.0.1", port), LIMIT))
                    for _ in range(40)
                ]
                assert "Too many open files" in process.stderr.readline()
                clients[0].sendall(b"first")
                assert read_exactly(clients[0], 5) == b"first"
            with socket.create_connection(("127.0.0.1", port), LIMIT) as client:
                client.sendall(b"again")
                assert read_exactly(client, 5) == b"again"
        finally:
            process.terminate()


# ---- echo ----


def test_echo_serves_many_at_once() -> None:
    with running("echo") as server:
        before = server.descriptors()
        with ExitStack() as stack:
            clients = [stack.enter_context(server.connect()) for _ in range(200)]
            for i, client in enumerate(clients):
                client.sendall(b"%d;" % i * 100)
            for i, client in enumerate(clients):
                wanted = b"%d;" % i * 100
                assert read_exactly(client, len(wanted)) == wanted
        until(lambda: server.descriptors() == before, "closing what the clients closed")


def test_echo_answers_after_the_client_ended_its_side() -> None:
    data = os.urandom(MEGABYTE)
    with running("echo") as server, server.connect() as client:
        sender = threading.Thread(
            target=lambda: (client.sendall(data), client.shutdown(socket.SHUT_WR))
        )
        sender.start()
        assert read_all(client) == data
        sender.join()


def test_echo_with_asyncio_streams() -> None:
    async def talk(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for i in range(100):
            writer.write(b"line %d\n" % i)
            assert await reader.readline() == b"line %d\n" % i
        writer.close()
        await writer.wait_closed()

    async def main(port: int) -> None:
        await asyncio.gather(*(talk(port) for _ in range(20)))

    with running("echo") as server:
        asyncio.run(asyncio.wait_for(main(server.address[1]), LIMIT))


def test_echo_with_nc() -> None:
    nc = tool("nc")
    with running("echo") as server:
        port = str(server.address[1])
        assert output_of([nc, "-w", "5", "127.0.0.1", port], b"hello\n").startswith("hello\n")


# ---- udp_echo ----


@contextmanager
def datagrams(server: Example) -> Iterator[socket.socket]:
    with socket.socket(type=socket.SOCK_DGRAM) as client:
        client.settimeout(LIMIT)
        client.connect(server.address)
        yield client


def test_udp_echo_serves_many_at_once() -> None:
    with running("udp_echo") as server, ExitStack() as stack:
        clients = [stack.enter_context(datagrams(server)) for _ in range(20)]
        for size in (1, 0, 1400):  # more would not fit into its receive buffer
            for i, client in enumerate(clients):
                client.send(bytes([i]) * size)
            for i, client in enumerate(clients):
                assert client.recv(65_536) == bytes([i]) * size
        clients[0].send(b"x" * 65_507)
        assert clients[0].recv(65_536) == b"x" * 65_507


def test_udp_echo_with_nc() -> None:
    nc = tool("nc")
    with (
        running("udp_echo") as server,
        subprocess.Popen(
            [nc, "-u", "127.0.0.1", str(server.address[1])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as client,
    ):
        assert client.stdin is not None and client.stdout is not None
        killer = threading.Timer(LIMIT, client.kill)
        killer.start()
        client.stdin.write(b"hello\n")
        client.stdin.flush()
        assert client.stdout.readline() == b"hello\n"
        killer.cancel()
        client.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_udp_echo_ends_cleanly(number: signal.Signals) -> None:
    example = Example("udp_echo")
    example.end(number)


def test_udp_echo_says_how_it_is_used() -> None:
    assert "python examples/python/udp_echo.py" in output_of(command("udp_echo", "--help"))


# ---- proxy ----


def test_proxy_passes_half_closes_on() -> None:
    """The server answers only once it has read the end of the request, and the client still reads
    after it has ended its side."""
    data = os.urandom(2 * MEGABYTE)

    def reverse(connection: socket.socket) -> None:
        connection.sendall(read_all(connection)[::-1])

    with upstream(reverse) as target, running("proxy", target) as proxy:
        with ExitStack() as stack:
            clients = [stack.enter_context(proxy.connect()) for _ in range(10)]
            for client in clients:
                client.sendall(data[:50_000])
                client.shutdown(socket.SHUT_WR)
            for client in clients:
                assert read_all(client) == data[:50_000][::-1]
        with proxy.connect() as client:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            assert read_all(client) == data[::-1]


def test_proxy_makes_a_fast_sender_wait_for_a_slow_reader() -> None:
    finish = threading.Event()

    def stall(connection: socket.socket) -> None:
        finish.wait(LIMIT)
        while connection.recv(MEGABYTE):
            pass

    def resident(pid: int) -> int:
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        assert found is not None
        return int(found[1]) * 1024

    with upstream(stall) as target, running("proxy", target) as proxy, proxy.connect() as client:
        before = resident(proxy.process.pid)
        client.setblocking(False)
        sent, idle_since = 0, time.monotonic()
        while time.monotonic() - idle_since < 0.3:
            try:
                sent += client.send(bytes(MEGABYTE))
                idle_since = time.monotonic()
            except BlockingIOError:
                time.sleep(0.01)
            assert sent < 200 * MEGABYTE, "nothing made the sender wait"
        assert resident(proxy.process.pid) - before < 16 * MEGABYTE
        finish.set()
        client.setblocking(True)
        client.shutdown(socket.SHUT_WR)
        assert read_all(client) == b""


def test_proxy_to_nobody_ends_the_connection() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        target = f"127.0.0.1:{unused.getsockname()[1]}"
        with running("proxy", target) as proxy, proxy.connect() as client:
            assert read_all(client) == b""


# ---- http_hello ----

HELLO = "Hello from runloom!\n"


def test_http_with_curl() -> None:
    curl = tool("curl")
    with running("http_hello") as server:
        url = f"http://127.0.0.1:{server.address[1]}/"
        assert output_of([curl, "-sS", url]) == HELLO
        # Three requests on one connection.
        three = output_of([curl, "-sS", "-w", "%{num_connects}", url, url, url])
        assert three == f"{HELLO}1{HELLO}0{HELLO}0"
        assert output_of([curl, "-sS", "--data-binary", "@-", url], bytes(MEGABYTE)) == HELLO
        head = output_of([curl, "-sSI", url])
        assert head.startswith("HTTP/1.1 200 OK\r\n")
        assert f"Content-Length: {len(HELLO)}\r\n" in head
        assert "Connection: close" in output_of([curl, "-sS0i", url])


def test_http_with_wrk() -> None:
    wrk = tool("wrk")
    with running("http_hello") as server:
        url = f"http://127.0.0.1:{server.address[1]}/"
        text = output_of([wrk, "-t1", "-c50", "-d1s", "--latency", url])
    found = re.search(r"(\d+) requests in", text)
    assert found is not None and int(found[1]) > 100, text
    assert "Socket errors" not in text, text
    assert "Non-2xx" not in text, text


def test_http_answers_pipelined_requests_in_order() -> None:
    get = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    post = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n12345"
    last = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with running("http_hello") as server, server.connect() as client:
        stream = get + post + get + last
        for i in range(0, len(stream), 7):
            client.sendall(stream[i : i + 7])
        reply = read_all(client).decode()
    assert reply.count("HTTP/1.1 200 OK\r\n") == reply.count(HELLO) == 4


@pytest.mark.parametrize(
    "request_",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/2.0\r\n\r\n",
        b"GET / HTTP/1.1\r\nno header\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000,
    ],
)
def test_http_refuses_what_it_does_not_understand(request_: bytes) -> None:
    with running("http_hello") as server, server.connect() as client:
        client.sendall(request_)
        assert read_all(client).startswith(b"HTTP/1.1 400 Bad Request\r\n")


def test_http_hello_over_tls(tmp_path: Path) -> None:
    curl = tool("curl")
    pem = write(world().server, tmp_path / "server.pem")
    authority = tmp_path / "ca.pem"
    authority.write_text(world().ca_pem)
    with running("http_hello", "--certfile", pem) as server:
        port = server.address[1]
        url = f"https://localhost:{port}/"
        resolved = ["--resolve", f"localhost:{port}:127.0.0.1"]
        out = output_of([curl, "-sS", "--cacert", str(authority), *resolved, url, url])
        assert out == "Hello from runloom!\n" * 2
        # Who speaks no TLS, and who trusts nobody, ends only itself.
        with server.connect() as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            read_all(plain)
        done = subprocess.run([curl, "-sS", *resolved, url], capture_output=True, timeout=LIMIT)
        assert done.returncode == 60
        assert output_of([curl, "-sS", "--cacert", str(authority), *resolved, url]) != ""
    assert "HTTP_REQUEST" in server.stderr


# ---- chat ----


class Member:
    def __init__(self, server: Example, name: str) -> None:
        self.sock = server.connect()
        self.file = self.sock.makefile("rb")
        assert self.file.readline() == b"your name?\n"
        self.say(name)

    def say(self, text: str) -> None:
        self.sock.sendall(text.encode() + b"\n")

    def hear(self) -> str:
        return self.file.readline().decode().rstrip("\n")

    def close(self) -> None:
        self.file.close()
        self.sock.close()


def test_chat_tells_the_others() -> None:
    with running("chat") as server:
        ann = Member(server, "ann")
        assert ann.hear() == "* welcome, ann; here are ann"
        bob = Member(server, "bob")
        assert bob.hear() == "* welcome, bob; here are ann, bob"
        assert ann.hear() == "* bob has joined"
        ann.say("hello")
        bob.say("hi\nthere")
        assert bob.hear() == "ann: hello"
        assert [ann.hear(), ann.hear()] == ["bob: hi", "bob: there"]
        twin = Member(server, "ann")
        assert twin.hear() == "* that name is taken, or none"
        assert twin.hear() == ""
        bob.close()
        assert ann.hear() == "* bob has left"
        for member in (ann, twin):
            member.close()


def test_chat_puts_a_slow_reader_out() -> None:
    with running("chat") as server:
        ann = Member(server, "ann")
        assert ann.hear() == "* welcome, ann; here are ann"
        slow = Member(server, "slow")
        assert ann.hear() == "* slow has joined"
        line = "x" * 1000
        heard: list[str] = []
        listener = threading.Thread(target=lambda: heard.append(ann.hear()))
        listener.start()
        for _ in range(50_000):
            ann.say(line)
            if heard:
                break
        listener.join(LIMIT)
        assert heard == ["* slow has left"]
        slow.close()
        ann.close()


# ---- port_scanner ----


def test_port_scanner_finds_the_open_ones() -> None:
    with ExitStack() as stack:
        is_open = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        closed = [stack.enter_context(socket.socket()) for _ in range(3)]
        for sock in closed:
            sock.bind(("127.0.0.1", 0))
        wanted = sorted(sock.getsockname()[1] for sock in is_open)
        refusing = {f"{sock.getsockname()[1]} open" for sock in closed}
        ports = ",".join(str(sock.getsockname()[1]) for sock in (*is_open, *closed))
        done = subprocess.run(
            command("port_scanner", "127.0.0.1", "--ports", f"{ports},1-100", "--workers", "20"),
            env=environment(),
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=True,
        )
    *found, summary = done.stdout.splitlines()
    assert {f"{port} open" for port in wanted} <= set(found)
    assert not refusing & set(found)
    assert summary == f"{len(found)} of 106 ports open"


def test_port_scanner_asks_every_address_of_a_name() -> None:
    """localhost has ::1, too, where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        out = output_of(command("port_scanner", "localhost", "--ports", str(port)))
    assert out == f"{port} open\n1 of 1 ports open\n"


def test_port_scanner_says_that_a_name_is_none() -> None:
    done = subprocess.run(
        command("port_scanner", "no.such.name.invalid", "--ports", "80"),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT * 2,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("no.such.name.invalid: ") and "Traceback" not in done.stderr


def test_port_scanner_gives_silent_ports_up() -> None:
    with socket.socket() as silent, ExitStack() as stack:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        port = silent.getsockname()[1]
        # Fills the queue: from now on connects are not answered.
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        time.sleep(0.05)
        arguments = ["127.0.0.1", "--ports", str(port), "--timeout", "0.2"]
        done = subprocess.run(
            command("port_scanner", *arguments),
            env=environment(),
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=True,
        )
    assert done.stdout == "0 of 1 ports open\n"


@pytest.mark.parametrize("ports", ["", "x", "0", "5-4", "1-65536", "80,"])
def test_port_scanner_refuses_nonsense(ports: str) -> None:
    done = subprocess.run(
        command("port_scanner", "127.0.0.1", "--ports", ports),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 2
    assert "--ports" in done.stderr
