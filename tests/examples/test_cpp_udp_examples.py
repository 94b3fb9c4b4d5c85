"""The C++ examples of datagrams: echo, ping and the DNS forwarder, driven by plain sockets, nc and,
where they are installed, dig and dnsmasq."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from example_process import LIMIT, binary, until

HUBS = pytest.mark.parametrize("hubs", [1, 2])


class Server:
    """A server of datagrams that runs, from its first line of output to its clean end."""

    def __init__(self, name: str, *arguments: str, hubs: int = 1) -> None:
        self.process = subprocess.Popen(
            [binary(name), "--port", "0", "--hubs", str(hubs), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], LIMIT)
        line = self.process.stdout.readline() if ready else ""
        match = re.fullmatch(r"listening on 127\.0\.0\.1:(\d+)\n", line)
        if match is None:
            self.process.kill()
            raise AssertionError(f"it said {line!r} and {self.process.communicate()[1]!r}")
        self.address = ("127.0.0.1", int(match[1]))

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.process.send_signal(signal.SIGKILL if error else signal.SIGTERM)
        try:
            stdout, stderr = self.process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"it did not end: {self.process.communicate()}") from None
        if error is None:
            assert (self.process.returncode, stdout, stderr) == (0, "stopped\n", "")

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


@contextmanager
def client(address: tuple[str, int]) -> Iterator[socket.socket]:
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.settimeout(LIMIT)
        sock.connect(address)
        yield sock


@contextmanager
def python_server(
    answer: Callable[[bytes], list[bytes]],
) -> Iterator[tuple[str, int]]:
    """Answers each datagram with those that `answer` gives, on a thread."""
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(0.05)
        over = threading.Event()

        def serve() -> None:
            while not over.is_set():
                try:
                    data, peer = sock.recvfrom(65536)
                except TimeoutError:
                    continue
                for reply in answer(data):
                    sock.sendto(reply, peer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield sock.getsockname()
        finally:
            over.set()
            thread.join(LIMIT)


def nobody() -> tuple[str, int]:
    """An address where nobody is."""
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        address: tuple[str, int] = sock.getsockname()
        return address


# ---- echo ----


@HUBS
def test_echo(hubs: int) -> None:
    with Server("udp_echo", hubs=hubs) as server, ExitStack() as stack:
        clients = [stack.enter_context(client(server.address)) for _ in range(20)]
        for round_ in range(20):
            for i, each in enumerate(clients):
                each.send(f"{round_}:{i}".encode() * (round_ + 1))
            for i, each in enumerate(clients):
                assert each.recv(65536) == f"{round_}:{i}".encode() * (round_ + 1)
        for size in (0, 1, 1472, 20_000, 65_507):
            data = os.urandom(size)
            clients[0].send(data)
            assert clients[0].recv(65536) == data


@pytest.mark.skipif(shutil.which("nc") is None, reason="nc is not installed")
def test_echo_with_nc() -> None:
    with (
        Server("udp_echo") as server,
        subprocess.Popen(
            ["nc", "-u", "127.0.0.1", str(server.address[1])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
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


def test_a_server_refuses_bad_arguments_and_a_taken_port() -> None:
    with Server("udp_echo") as server:
        argv = [str(binary("udp_echo")), "--port", str(server.address[1])]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT)
        assert done.returncode == 1
        assert "Address already in use" in done.stderr
    argv = [str(binary("udp_echo")), "--port", "x"]
    assert subprocess.run(argv, capture_output=True, timeout=LIMIT).returncode == 2


# ---- ping ----


def ping(address: tuple[str, int], *words: str) -> subprocess.CompletedProcess[str]:
    argv = [str(binary("udp_ping")), f"{address[0]}:{address[1]}", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=2 * LIMIT)


def test_ping_measures_the_echo_server() -> None:
    with Server("udp_echo") as server:
        done = ping(server.address, "50", "1")
    assert done.returncode == 0, done.stderr
    counts, times = done.stdout.splitlines()
    assert counts == "50 sent, 50 received, 0.0% lost, 0 doubled, 0 out of order"
    found = re.fullmatch(
        r"round trip min ([\d.]+), median ([\d.]+), p99 ([\d.]+), max ([\d.]+) us", times
    )
    assert found is not None
    assert [float(each) for each in found.groups()] == sorted(map(float, found.groups()))


def test_ping_tells_loss_and_doubles() -> None:
    count = 0

    def answer(data: bytes) -> list[bytes]:
        nonlocal count
        count += 1
        return [[data], [], [data, data], [data, b"strange"]][count % 4]

    with python_server(answer) as address:
        done = ping(address, "40", "1")
    assert done.returncode == 1
    assert done.stdout.startswith("40 sent, 30 received, 25.0% lost, 10 doubled, 0 out of order\n")


def test_ping_tells_what_is_out_of_order() -> None:
    held: list[bytes] = []

    def answer(data: bytes) -> list[bytes]:
        held.append(data)
        if len(held) < 2:
            return []
        late, early = held
        held.clear()
        return [early, late]

    with python_server(answer) as address:
        done = ping(address, "20", "1")
    assert "20 received, 0.0% lost, 0 doubled, 10 out of order" in done.stdout


def test_ping_of_a_closed_port_tells_so_and_ends() -> None:
    done = ping(nobody(), "5", "1")
    assert done.returncode == 1
    assert "5 sent, 0 received, 100.0% lost" in done.stdout
    assert "connection refused" in done.stdout


@pytest.mark.parametrize(
    "words",
    [[], ["nowhere"], ["127.0.0.1:1", "0"], ["127.0.0.1:1", "1", "x"], ["127.0.0.1:1", "9" * 9]],
)
def test_ping_refuses_bad_arguments(words: list[str]) -> None:
    done = subprocess.run(
        [binary("udp_ping"), *words], capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 2
    assert "usage" in done.stderr


# ---- DNS forwarder ----

ANSWER, NO_ERROR, FORMAT_ERROR, SERVER_FAILURE, REFUSED = 0x8000, 0, 1, 2, 5


def question(name: str) -> bytes:
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    return labels + b"\0" + struct.pack("!HH", 1, 1)


def query(name: str, id_: int, flags: int = 0x0100) -> bytes:
    return struct.pack("!6H", id_, flags, 1, 0, 0, 0) + question(name)


def answered(data: bytes) -> bytes:
    """The answer of a server that knows every name: 192.0.2.7."""
    head = data[:2] + struct.pack("!5H", 0x8180, 1, 1, 0, 0)
    record = struct.pack("!HHHIH", 0xC00C, 1, 1, 60, 4) + socket.inet_aton("192.0.2.7")
    return head + data[12:] + record


def code(data: bytes) -> int:
    return int(struct.unpack_from("!H", data, 2)[0]) & 0xF


@contextmanager
def forwarder(upstream: tuple[str, int], hubs: int = 1) -> Iterator[Server]:
    with Server("dns_forwarder", f"{upstream[0]}:{upstream[1]}", hubs=hubs) as server:
        yield server


@HUBS
def test_dns_forwards_and_maps_identifiers(hubs: int) -> None:
    seen: list[int] = []

    def answer(data: bytes) -> list[bytes]:
        seen.append(int.from_bytes(data[:2], "big"))
        return [answered(data)]

    with python_server(answer) as upstream, forwarder(upstream, hubs) as server:
        before = server.descriptors()
        with client(server.address) as one, client(server.address) as two:
            for i in range(50):
                # The same identifier from both, at once.
                one.send(query(f"one{i}.example", i))
                two.send(query(f"two{i}.example", i))
                assert one.recv(512) == answered(query(f"one{i}.example", i))
                assert two.recv(512) == answered(query(f"two{i}.example", i))
        until(lambda: server.descriptors() <= before + 8, "closing the queries' sockets")
    assert len(seen) == 100
    assert len(set(seen)) > 80, "the identifiers are not random"


def test_dns_takes_only_the_right_answer() -> None:
    def answer(data: bytes) -> list[bytes]:
        good = answered(data)
        wrong_id = bytes([data[0] ^ 1]) + good[1:]
        wrong_name = answered(data[:12] + question("evil.example"))
        return [b"", b"short", data, wrong_id, wrong_name, good[:14], good]

    with (
        python_server(answer) as upstream,
        forwarder(upstream) as server,
        client(server.address) as sock,
    ):
        for i in range(20):
            sock.send(query("right.example", i))
            assert sock.recv(512) == answered(query("right.example", i))


def test_dns_asks_again() -> None:
    count = 0

    def answer(data: bytes) -> list[bytes]:
        nonlocal count
        count += 1
        return [] if count == 1 else [answered(data)]

    with (
        python_server(answer) as upstream,
        forwarder(upstream) as server,
        client(server.address) as sock,
    ):
        sock.send(query("lost.example", 7))
        assert sock.recv(512) == answered(query("lost.example", 7))
    assert count == 2


def test_dns_gives_up_at_its_deadline_and_serves_others_meanwhile() -> None:
    def answer(data: bytes) -> list[bytes]:
        return [] if b"mute" in data else [answered(data)]

    with (
        python_server(answer) as upstream,
        forwarder(upstream) as server,
        client(server.address) as mute,
        client(server.address) as sock,
    ):
        begin = time.monotonic()
        mute.send(query("mute.example", 1))
        for i in range(20):
            sock.send(query("fast.example", i))
            assert code(sock.recv(512)) == NO_ERROR
        told = mute.recv(512)
        assert time.monotonic() - begin >= 2
        assert told[:2] == b"\0\1"
        assert code(told) == SERVER_FAILURE
        assert told[12:] == question("mute.example")


def test_dns_tells_at_once_when_nobody_is_upstream() -> None:
    with forwarder(nobody()) as server, client(server.address) as sock:
        sock.send(query("any.example", 3))
        assert code(sock.recv(512)) == SERVER_FAILURE


def test_dns_answers_nonsense_with_a_format_error_or_not_at_all() -> None:
    with (
        python_server(lambda data: [answered(data)]) as upstream,
        forwarder(upstream) as server,
        client(server.address) as sock,
    ):
        head = struct.pack("!6H", 9, 0x0100, 1, 0, 0, 0)
        for nonsense in (
            head,  # no question
            head + b"\x07example",  # the name does not end
            head + b"\xc0\x0c\0\1\0\1",  # a pointer
            head + 200 * b"\1a" + b"\0\0\1\0\1",  # longer than a name may be
            struct.pack("!6H", 9, 0, 2, 0, 0, 0) + 2 * question("two.example"),
            head + question("long.example") + bytes(5000),
        ):
            sock.send(nonsense)
            told = sock.recv(512)
            assert (told[:2], code(told)) == (b"\0\x09", FORMAT_ERROR)
        for ignored in (b"", b"12345678901", query("answer.example", 9, flags=ANSWER)):
            sock.send(ignored)
        sock.send(query("good.example", 10))
        assert sock.recv(512) == answered(query("good.example", 10))


def test_dns_marks_an_answer_that_is_too_large_as_truncated() -> None:
    with (
        python_server(lambda data: [answered(data) + bytes(5000)]) as upstream,
        forwarder(upstream) as server,
        client(server.address) as sock,
    ):
        sock.send(query("large.example", 4))
        told = sock.recv(8192)
        assert int.from_bytes(told[2:4], "big") & 0x8200 == 0x8200
        assert told[12:] == question("large.example")


def test_dns_refuses_what_is_beyond_its_bound() -> None:
    with (
        python_server(lambda data: [answered(data)] if b"good" in data else []) as upstream,
        forwarder(upstream) as server,
        client(server.address) as flood,
        client(server.address) as sock,
    ):
        codes: list[int] = []
        for i in range(600):
            flood.send(query("mute.example", i))
            if i % 20 == 0:
                time.sleep(0.001)  # the kernel's queue is not what is tested
        until(lambda: code(flood.recv(512)) == REFUSED, "refusing")
        # It recovers when those have timed out.

        def recovered() -> bool:
            sock.send(query("good.example", 1))
            codes.append(code(sock.recv(512)))
            return codes[-1] == NO_ERROR

        until(recovered, "answering again")


def dig(port: int, name: str) -> str:
    done = subprocess.run(
        ["dig", "-p", str(port), "@127.0.0.1", "+short", "+tries=1", "+timeout=2", name],
        capture_output=True, text=True, timeout=LIMIT,
    )  # fmt: skip
    return done.stdout


@contextmanager
def dnsmasq(name: str, address: str) -> Iterator[int]:
    """A dnsmasq that knows one name; gives its port when it answers."""
    words = ["--keep-in-foreground", "--no-resolv", "--no-hosts", "--bind-interfaces"]
    words += ["--conf-file=/dev/null", "--pid-file=", "--listen-address=127.0.0.1"]
    for _ in range(5):  # it needs a port that is free for TCP, too
        port = nobody()[1]
        server = subprocess.Popen(
            ["dnsmasq", *words, f"--port={port}", f"--address=/{name}/{address}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert server.stderr is not None
        try:
            end = time.monotonic() + LIMIT
            while server.poll() is None and dig(port, name) != f"{address}\n":
                assert time.monotonic() < end, f"dnsmasq did not answer in {LIMIT} s"
            if server.poll() is None:
                yield port
                return
            why = server.stderr.read()
        finally:
            server.kill()
            server.wait()
            server.stderr.close()
    pytest.fail(f"dnsmasq did not start: {why}")


@pytest.mark.skipif(shutil.which("dig") is None, reason="dig is not installed")
@pytest.mark.skipif(shutil.which("dnsmasq") is None, reason="dnsmasq is not installed")
def test_dns_between_dig_and_dnsmasq() -> None:
    with (
        dnsmasq("www.example.test", "192.0.2.9") as port,
        forwarder(("127.0.0.1", port)) as server,
    ):
        until(
            lambda: dig(server.address[1], "www.example.test") == "192.0.2.9\n",
            "an answer of dnsmasq through the forwarder",
        )


@pytest.mark.parametrize("words", [[], ["nowhere"], ["127.0.0.1:53", "127.0.0.1:53"]])
def test_dns_refuses_bad_arguments(words: list[str]) -> None:
    argv = [str(binary("dns_forwarder")), *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 2
    assert "usage" in done.stderr
