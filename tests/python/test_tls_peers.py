"""TLS with peers that are not ours: other implementations, broken ones, hostile ones."""

from __future__ import annotations

import hashlib
import os
import socket
import ssl
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from socket_support import LIMIT, failure, go, join, own_pair, pair, read_all, read_exactly, run
from tls_support import (
    BOTH,
    NATIVE,
    STOCK,
    bare_pair,
    client_context,
    plain_server,
    port_of,
    server_context,
    tls_listener,
    tls_pair,
    world,
)

import runloom
import runloom.sync as sync
import runloom_c
from runloom.tls import create_default_context

MEGABYTE = 1 << 20

each_kind = pytest.mark.parametrize("kind", BOTH)
versions = pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])


# ---------------------------------------------------------------- other implementations


@versions
@each_kind
def test_a_client_of_the_standard_library(
    kind: str, version: ssl.TLSVersion, tmp_path: Path
) -> None:
    data = os.urandom(2 * MEGABYTE)
    context = client_context(STOCK)
    context.maximum_version = version
    answers: list[bytes] = []

    def ask(port: int) -> None:
        plain = socket.create_connection(("127.0.0.1", port), timeout=LIMIT)
        with context.wrap_socket(plain, server_hostname="localhost") as tls:
            answer = b""
            for at in range(0, len(data), 100_000):  # one of its threads at a time
                tls.sendall(data[at : at + 100_000])
                answer += read_exactly(tls, len(data[at : at + 100_000]))
            answers.append(answer)
            tls.unwrap()

    def main() -> None:
        with tls_listener(server_context(kind, tmp_path)) as listener:
            client = threading.Thread(target=ask, args=(port_of(listener),))
            client.start()
            conn, _ = listener.accept()
            with conn:
                while piece := conn.recv(65536):
                    conn.sendall(piece)
            client.join(LIMIT)
        assert hashlib.sha256(answers[0]).digest() == hashlib.sha256(data).digest()

    run(main)


@versions
@each_kind
def test_a_server_of_openssl(kind: str, version: ssl.TLSVersion, tmp_path: Path) -> None:
    server_context(kind, tmp_path)  # writes server.pem
    lines = [os.urandom(500).hex().encode() for _ in range(300)]

    def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        process = subprocess.Popen(
            ["openssl", "s_server", "-accept", str(port), "-cert", tmp_path / "server.pem",
             "-quiet", "-rev", "-naccept", "1"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            client = client_context(kind)
            client.maximum_version = version
            conn = _connect_when_ready(port, client)
            with conn:
                for line in lines:
                    conn.sendall(line + b"\n")
                    # It turns each line around.
                    assert read_exactly(conn, len(line) + 1) == line[::-1] + b"\n"
        finally:
            process.kill()
            process.wait()

    run(main)


def _connect_when_ready(port: int, context: Any) -> Any:
    for _ in range(2000):
        try:
            return sync.tls_connect("localhost", port, context=context)
        except ConnectionRefusedError:
            sync.sleep(0.005)
    raise AssertionError("nobody listens")


@versions
def test_a_client_of_openssl(version: ssl.TLSVersion, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text(world().ca_pem)
    flag = "-tls1_2" if version == ssl.TLSVersion.TLSv1_2 else "-tls1_3"

    def main() -> None:
        with tls_listener(server_context(NATIVE, tmp_path)) as listener:
            process = subprocess.Popen(
                ["openssl", "s_client", "-connect", f"127.0.0.1:{port_of(listener)}", flag,
                 "-CAfile", tmp_path / "ca.pem", "-verify_return_error",
                 "-verify_hostname", "localhost", "-servername", "localhost", "-quiet"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            assert process.stdin and process.stdout
            process.stdin.write(b"question\n")
            process.stdin.flush()
            conn, _ = listener.accept()
            with conn:
                assert conn.recv(100) == b"question\n"
                conn.sendall(b"answer")
            out, _ = process.communicate(timeout=LIMIT)
            assert out == b"answer"
            assert process.returncode == 0

    run(main)


def test_curl(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text(world().ca_pem)
    body = os.urandom(500_000)

    def main() -> None:
        context = server_context(NATIVE, tmp_path)
        context.set_alpn_protocols(["http/1.1"])
        with tls_listener(context) as listener:
            port = port_of(listener)
            process = subprocess.Popen(
                ["curl", "-sS", "--cacert", tmp_path / "ca.pem", "--resolve",
                 f"localhost:{port}:127.0.0.1", f"https://localhost:{port}/",
                 "-o", tmp_path / "out"],
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
            conn, _ = listener.accept()
            with conn:
                request = b""
                while not request.endswith(b"\r\n\r\n"):
                    request += conn.recv(1000)
                # Without a length: only TLS says where the end is.
                conn.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + body)
            assert process.wait(LIMIT) == 0
            assert (tmp_path / "out").read_bytes() == body

    run(main)


# ---------------------------------------------------------------- what is no TLS


@each_kind
def test_L24_plain_text_at_a_port_of_tls(kind: str, tmp_path: Path) -> None:
    def main() -> None:
        with pair() as (ours, peer):
            conn = ours.start_tls(
                server_context(kind, tmp_path), server_side=True, do_handshake=False
            )
            peer.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            with conn, pytest.raises(ssl.SSLError) as caught:
                conn.recv(1)
            assert caught.value.reason == "HTTP_REQUEST"
        with pair() as (ours, peer):
            conn = ours.start_tls(
                client_context(kind), server_hostname="localhost", do_handshake=False
            )
            peer.sendall(b"220 mail.example.test ESMTP\r\n")
            with conn, pytest.raises(ssl.SSLError) as caught:
                conn.sendall(b"x")
            assert caught.value.reason == "WRONG_VERSION_NUMBER"

    run(main)


@each_kind
def test_L24_L28_a_peer_that_leaves_in_the_handshake(kind: str, tmp_path: Path) -> None:
    def main() -> None:
        for said in (b"", b"\x16\x03\x01\x00", b"\x16\x03\x01\x40\x00" + bytes(100)):
            with pair() as (ours, peer):
                conn = ours.start_tls(
                    server_context(kind, tmp_path), server_side=True, do_handshake=False
                )
                peer.sendall(said)
                peer.shutdown(socket.SHUT_WR)
                with conn:
                    error = failure(conn.recv, 1)
                    assert isinstance(error, ssl.SSLError | ConnectionResetError), error
                    if not said:
                        assert isinstance(error, ssl.SSLEOFError)

    run(main)


def test_L24_tls_at_a_plain_port(tmp_path: Path) -> None:
    def main() -> None:
        with plain_server(lambda conn: conn.recv(1000) and conn.sendall(b"HTTP/1.1 400 ")) as port:
            with pytest.raises(ssl.SSLError) as caught:
                sync.tls_connect("localhost", port, context=client_context(NATIVE))
            assert caught.value.reason == "WRONG_VERSION_NUMBER"

    run(main)


# ---------------------------------------------------------------- hostile peers


class Memory:
    """The standard library's TLS in memory, whose bytes a test moves as it likes."""

    def __init__(self, context: ssl.SSLContext, **options: Any) -> None:
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, **options)

    def step(self, call: Any) -> bool:
        try:
            call()
        except ssl.SSLWantReadError:
            return False
        return True


@each_kind
def test_L18_everything_in_single_bytes(kind: str, tmp_path: Path) -> None:
    def main() -> None:
        with own_pair() as (left, right):
            peer = Memory(client_context(STOCK), server_hostname="localhost")
            server = go(lambda: right.start_tls(server_context(kind, tmp_path), server_side=True))

            def trickle() -> None:
                for each in peer.outgoing.read():
                    left.sendall(bytes([each]))
                    runloom_c.sched_yield()

            while not peer.step(peer.tls.do_handshake):
                trickle()
                peer.incoming.write(left.recv(1))
            trickle()
            with join(server)[0] as conn:
                for size in (1, 100, 16384):
                    peer.tls.write(bytes(size))
                    reader = go(read_exactly, conn, size)
                    trickle()
                    assert join(reader) == [bytes(size)]

    run(main)


@each_kind
def test_L14_a_client_that_sends_and_leaves(kind: str, tmp_path: Path) -> None:
    """It never reads the tickets that a TLS 1.3 server sends after the handshake."""

    def main() -> None:
        for _ in range(20):
            with tls_listener(server_context(kind, tmp_path)) as listener:
                client = go(
                    lambda listener=listener: sync.tls_connect(
                        "localhost", port_of(listener), context=client_context(NATIVE)
                    )
                )
                conn, _ = listener.accept()
                with conn:
                    conn.do_handshake()
                    ours = join(client)[0]
                    ours.sendall(b"all that I have to say")
                    ours.close()
                    assert read_all(conn) == b"all that I have to say"

    run(main)


@each_kind
def test_L08_errors_of_one_connection_are_not_those_of_another(kind: str, tmp_path: Path) -> None:
    def main() -> None:
        stranger = (create_default_context if kind == NATIVE else ssl.create_default_context)(
            cadata=world().stranger.cert_pem.bytes().decode()
        )
        good = client_context(kind)
        at_server = server_context(kind, tmp_path)

        def refuse(count: int) -> int:
            refused = 0
            for _ in range(count):
                left, right = bare_pair(stranger, at_server)
                with left, right:
                    accepted = go(failure, right.do_handshake)
                    try:
                        left.do_handshake()
                    except ssl.SSLCertVerificationError:
                        refused += 1
                    right.close()
                    left.close()
                    join(accepted)
            return refused  # all of them: nobody knows the server's authority

        def talk(count: int) -> int:
            with tls_pair(good, at_server) as (ours, theirs):
                for each in range(count):
                    ours.sendall(b"%d" % each)
                    assert theirs.recv(100) == b"%d" % each
            return count

        results = join(go(refuse, 20), *[go(talk, 300) for _ in range(4)])
        assert results == [20, *[300] * 4]

    run(main)


def test_the_ends_of_a_flood(tmp_path: Path) -> None:
    """Random bytes at every stage are an error of that connection, never more."""

    def main() -> None:
        at_server = server_context(NATIVE, tmp_path)
        client = client_context(NATIVE)
        for seed in range(60):
            noise = hashlib.shake_128(struct.pack("i", seed)).digest(200 + seed * 10)
            with own_pair() as (left, right):
                if seed % 3 == 0:
                    conn = right.start_tls(at_server, server_side=True, do_handshake=False)
                else:
                    conn = right.start_tls(client, server_hostname="localhost", do_handshake=False)
                left.sendall((b"\x16\x03\x03\x00\x50" if seed % 2 else b"") + noise)
                left.shutdown(socket.SHUT_WR)
                with conn:
                    assert isinstance(failure(conn.recv, 1), OSError)
                    assert isinstance(failure(conn.sendall, b"x"), OSError)

    run(main)


# ---------------------------------------------------------------- hostile programs


def test_where_a_call_may_not_park(tmp_path: Path) -> None:
    def main() -> None:
        with tls_pair(client_context(NATIVE), server_context(NATIVE, tmp_path)) as (ours, theirs):
            errors: list[BaseException | None] = []

            def trace(frame: Any, event: str, arg: Any) -> None:
                sys.settrace(None)
                errors.append(failure(ours.recv, 1))

            sys.settrace(trace)
            len([])
            (lambda: None)()
            sys.settrace(None)
            assert isinstance(errors[0], RuntimeError)
            theirs.sendall(b"x")
            assert ours.recv(1) == b"x"

    run(main)


def test_a_stock_callback_may_not_park(tmp_path: Path) -> None:
    """It runs inside of OpenSSL, which is never left by a switch."""

    def main() -> None:
        errors: list[BaseException | None] = []
        at_server = server_context(STOCK, tmp_path)
        at_server.sni_callback = lambda *_: errors.append(failure(sync.sleep, 0.001))
        with tls_pair(client_context(NATIVE), at_server) as (ours, theirs):
            theirs.sendall(b"x")
            assert ours.recv(1) == b"x"
        assert isinstance(errors[0], RuntimeError)

    run(main)


def test_a_callback_that_closes_its_connection(tmp_path: Path) -> None:
    def main() -> None:
        at_server = server_context(NATIVE, tmp_path)
        at_server.sni_callback = lambda conn, *_: conn.close()
        left, right = bare_pair(client_context(NATIVE), at_server)
        with left, right:
            accepted = go(failure, right.do_handshake)
            assert isinstance(failure(left.do_handshake), OSError)
            assert isinstance(join(accepted)[0], OSError)

    run(main)


def test_a_cancel_in_a_callback(tmp_path: Path) -> None:
    def main() -> None:
        waits = []

        def callback(*_: object) -> None:
            waits.append(1)
            sync.sleep(60)

        at_server = server_context(NATIVE, tmp_path)
        at_server.sni_callback = callback
        left, right = bare_pair(client_context(NATIVE), at_server)
        with left, right:
            accepted = go(failure, right.do_handshake)
            client = go(failure, left.do_handshake)
            while not waits:
                sync.yield_now()
            accepted.cancel()
            assert isinstance(join(accepted)[0], runloom.Cancelled)
            assert isinstance(join(client)[0], ssl.SSLError)

    run(main)


def test_buffers_stay_as_they_are_while_a_call_waits(tmp_path: Path) -> None:
    def main() -> None:
        with tls_pair(client_context(NATIVE), server_context(NATIVE, tmp_path)) as (ours, theirs):
            buffer = bytearray(10)
            reader = go(ours.recv_into, buffer)
            while not any(f["state"] == "io-wait" for f in runloom_c.fibers()):
                sync.yield_now()
            with pytest.raises(BufferError):
                buffer.extend(b"more")
            theirs.sendall(b"0123")
            assert join(reader) == [4]
            data = bytearray(8 * MEGABYTE)
            writer = go(ours.sendall, data)
            sync.yield_now()
            with pytest.raises(BufferError):
                data.clear()
            assert len(read_exactly(theirs, len(data))) == len(data)
            join(writer)

    run(main)


@each_kind
def test_many_connections_at_once(kind: str, tmp_path: Path) -> None:
    count = 60

    def main() -> None:
        with tls_listener(server_context(kind, tmp_path), backlog=count) as listener:

            def echo(conn: Any) -> None:
                with conn:
                    while data := conn.recv(65536):
                        conn.sendall(data)

            def serve() -> None:
                for _ in range(count):
                    go(echo, listener.accept()[0])

            def ask(seed: int) -> None:
                data = hashlib.shake_128(struct.pack("i", seed)).digest(50_000)
                with sync.tls_connect("localhost", port_of(listener), context=context) as conn:
                    sender = go(conn.sendall, data)
                    assert read_exactly(conn, len(data)) == data
                    join(sender)

            context = client_context(kind)
            server = go(serve)
            join(*[go(ask, seed) for seed in range(count)])
            join(server)

    run(main)
