"""The Python examples that speak TLS, driven by openssl, curl and Python's own ssl."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from example_support import (
    MEGABYTE,
    Authority,
    Example,
    authority,
    command,
    output_of,
    running,
    tool,
    until,
)
from socket_support import LIMIT, read_all, read_exactly
from tls_support import world, write

__all__ = ["authority"]


def client_context(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authority.ca)


def connect(server: Example, context: ssl.SSLContext) -> ssl.SSLSocket:
    return context.wrap_socket(server.connect(), server_hostname="localhost")


@contextmanager
def s_client(
    server: Example, authority: Authority, *arguments: str
) -> Iterator[subprocess.Popen[str]]:
    """openssl's client, which reads and writes lines."""
    client = subprocess.Popen(
        [tool("openssl"), "s_client", "-quiet", "-verify_return_error", "-CAfile", authority.ca,
         "-servername", "localhost", "-connect", f"127.0.0.1:{server.address[1]}", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        bufsize=1,
    )  # fmt: skip
    killer = threading.Timer(LIMIT, client.kill)
    killer.start()
    try:
        yield client
    finally:
        killer.cancel()
        client.kill()
        client.communicate()


def say(client: subprocess.Popen[str], text: str) -> None:
    assert client.stdin is not None
    client.stdin.write(f"{text}\n")


def hear(client: subprocess.Popen[str]) -> str:
    assert client.stdout is not None
    return client.stdout.readline().rstrip("\r\n")


# ---- every server ----


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("name", ["tls_echo", "https_files", "chat"])
def test_a_tls_server_ends_cleanly_with_connections_open(
    name: str, number: signal.Signals, authority: Authority
) -> None:
    server = Example(name, "--certfile", authority.server)
    with connect(server, client_context(authority)), server.connect():
        server.end(number)


@pytest.mark.parametrize("name", ["tls_echo", "https_files"])
def test_a_tls_server_says_how_it_is_used(name: str) -> None:
    assert f"python examples/python/{name}.py" in output_of(command(name, "--help"))


# ---- tls_echo ----


def test_tls_echo_with_openssl(authority: Authority) -> None:
    with (
        running("tls_echo", "--certfile", authority.server) as server,
        s_client(server, authority) as one,
        s_client(server, authority, "-tls1_2") as two,
    ):
        for text in ("hello", "again"):
            for client in (one, two):
                say(client, text)
                assert hear(client) == text
    assert "TLSv1.3, a stranger" in server.stderr
    assert "TLSv1.2, a stranger" in server.stderr


def test_tls_echo_of_more_than_its_buffers(authority: Authority) -> None:
    data = os.urandom(MEGABYTE)
    with (
        running("tls_echo", "--certfile", authority.server) as server,
        connect(server, client_context(authority)) as client,
    ):
        client.settimeout(LIMIT)
        got = b""
        for start in range(0, len(data), 65536):
            piece = data[start : start + 65536]
            client.sendall(piece)
            got += read_exactly(client, len(piece))
    assert got == data


def test_tls_echo_gets_a_new_certificate_while_it_runs(
    authority: Authority, tmp_path: Path
) -> None:
    path = tmp_path / "now.pem"
    path.write_bytes(Path(authority.server).read_bytes())
    context = client_context(authority)
    with running("tls_echo", "--certfile", str(path)) as server:
        assert server.process.stderr is not None
        with connect(server, context) as old:
            first = old.getpeercert(binary_form=True)
            assert "TLSv1.3" in server.process.stderr.readline()
            write(world().ca.issue_cert("localhost"), path)
            server.process.send_signal(signal.SIGHUP)
            assert server.process.stderr.readline() == "the certificate was read again\n"
            with connect(server, context) as new:
                assert new.getpeercert(binary_form=True) != first
                assert "TLSv1.3" in server.process.stderr.readline()
            path.write_text("nonsense")
            server.process.send_signal(signal.SIGHUP)
            assert "can't read" in server.process.stderr.readline()
            with connect(server, context) as still:
                still.sendall(b"still here")
                assert read_exactly(still, 10) == b"still here"
            old.sendall(b"so am I")
            assert read_exactly(old, 7) == b"so am I"


def test_tls_echo_wants_certificates_of_clients(authority: Authority) -> None:
    arguments = ("--certfile", authority.server, "--client-ca", authority.ca)
    known = client_context(authority)
    known.load_cert_chain(authority.client)
    with running("tls_echo", *arguments) as server:
        with connect(server, known) as client:
            client.sendall(b"it's me")
            assert read_exactly(client, 7) == b"it's me"
        with connect(server, client_context(authority)) as stranger:
            stranger.settimeout(LIMIT)
            with pytest.raises(ssl.SSLError, match=r"(?i)certificate.required"):
                stranger.recv(1)  # with TLS 1.3 the refusal comes after the handshake
    assert "client@example.test" in server.stderr


# ---- https_files ----


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "www" / "sub").mkdir(parents=True)
    (tmp_path / "secret").write_text("not for you\n")
    root = tmp_path / "www"
    (root / "index.html").write_text("<p>home\n")
    (root / "big").write_bytes(os.urandom(3 * MEGABYTE + 17))
    (root / "empty").write_bytes(b"")
    (root / "sub" / "a file.txt").write_text("text\n")
    (root / "inside").symlink_to("sub/a file.txt")
    (root / "outside").symlink_to("../secret")
    return root


def url_of(server: Example, scheme: str) -> str:
    return f"{scheme}://localhost:{server.address[1]}"


def curl_of(server: Example, authority: Authority) -> list[str]:
    port = server.address[1]
    return [
        tool("curl"), "-sS", "--path-as-is", "--max-time", str(LIMIT), "--cacert", authority.ca,
        "--resolve", f"localhost:{port}:127.0.0.1",
    ]  # fmt: skip


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_files_with_curl(scheme: str, folder: Path, authority: Authority) -> None:
    tls = ("--certfile", authority.server) if scheme == "https" else ()
    with running("https_files", *tls, str(folder)) as server:
        curl, url = curl_of(server, authority), url_of(server, scheme)
        assert output_of([*curl, f"{url}/", f"{url}/index.html"]) == "<p>home\n" * 2
        assert output_of([*curl, f"{url}/sub/a%20file.txt?x=1", f"{url}/inside"]) == "text\n" * 2
        got = subprocess.run([*curl, f"{url}/big"], capture_output=True, timeout=LIMIT, check=True)
        assert got.stdout == (folder / "big").read_bytes()
        # What is empty, and what has no body, keep the connection.
        format_ = "%{http_code} %{num_connects} %{content_type}\\n"
        shown = output_of([*curl, "-I", "-o", "/dev/null", "-o", "/dev/null", "-w", format_,
                           f"{url}/big", f"{url}/empty"])  # fmt: skip
        assert shown == "200 1 application/octet-stream\n200 0 application/octet-stream\n"
        shown = output_of([*curl, "-w", format_, f"{url}/empty", f"{url}/index.html"])
        assert shown == (
            "200 1 application/octet-stream\n<p>home\n200 0 text/html\n"
        )  # fmt: skip


@pytest.mark.parametrize(
    "target",
    [
        "/../secret",
        "/sub/../../secret",
        "/%2e%2e/secret",
        "/sub/%2e%2e%2f%2e%2e%2fsecret",
        "/outside",
        "//../secret",
        "/%00",
        "/%ff",
        "/sub",
        "/missing",
        "/index.html/more",
        "secret",
        "http://[/",
    ],
)
def test_files_refuses_what_is_not_below(target: str, folder: Path) -> None:
    with running("https_files", str(folder)) as server, server.connect() as client:
        client.sendall(f"GET {target} HTTP/1.1\r\n\r\n".encode())
        client.sendall(b"GET /empty HTTP/1.1\r\nConnection: close\r\n\r\n")
        answer = read_all(client).decode()
    assert answer.startswith("HTTP/1.1 404 Not Found\r\n")
    assert "not for you" not in answer
    assert "HTTP/1.1 200 OK\r\n" in answer  # the connection goes on


def test_files_refuses_other_methods(folder: Path, authority: Authority) -> None:
    with running("https_files", str(folder)) as server:
        curl, url = curl_of(server, authority), url_of(server, "http")
        code = output_of([*curl, "-d", "data", "-w", "%{http_code}", f"{url}/index.html"])
        assert code == "only GET and HEAD\n405"


def test_files_says_when_one_can_not_be_read(folder: Path, authority: Authority) -> None:
    (folder / "locked").write_text("x")
    (folder / "locked").chmod(0)
    with running("https_files", str(folder)) as server:
        curl, url = curl_of(server, authority), url_of(server, "http")
        code = output_of([*curl, "-o", "/dev/null", "-w", "%{http_code}", f"{url}/locked"])
    assert code == ("200" if os.geteuid() == 0 else "404")


def test_files_serves_others_while_one_does_not_read(folder: Path) -> None:
    with running("https_files", str(folder)) as server:
        before = server.descriptors()
        with socket.create_connection(server.address, LIMIT) as stuck:
            stuck.sendall(b"GET /big HTTP/1.1\r\n\r\n" * 8)
            with server.connect() as client:
                client.sendall(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
                assert read_all(client).endswith(b"<p>home\n")
        until(lambda: server.descriptors() == before, "closing the file and the connection")


# ---- chat over TLS ----


def test_chat_over_tls(authority: Authority) -> None:
    with (
        running("chat", "--certfile", authority.server) as server,
        s_client(server, authority) as ann,
    ):
        say(ann, "ann")
        assert [hear(ann), hear(ann)] == ["your name?", "* welcome, ann; here are ann"]
        with s_client(server, authority) as bob:
            say(bob, "bob")
            assert [hear(bob), hear(bob)] == ["your name?", "* welcome, bob; here are ann, bob"]
            assert hear(ann) == "* bob has joined"
            say(ann, "hello")
            assert hear(bob) == "ann: hello"
            say(bob, "hi")
            assert hear(ann) == "bob: hi"
        assert hear(ann) == "* bob has left"


def test_chat_over_tls_puts_a_slow_reader_out(authority: Authority) -> None:
    context = client_context(authority)
    with (
        running("chat", "--certfile", authority.server) as server,
        connect(server, context) as ann,
        connect(server, context) as slow,
    ):
        ann.settimeout(LIMIT)
        spoken = ann.makefile("r")
        ann.sendall(b"ann\n")
        assert [next(spoken), next(spoken)] == ["your name?\n", "* welcome, ann; here are ann\n"]
        slow.sendall(b"slow\n")
        assert next(spoken) == "* slow has joined\n"
        heard: list[str] = []
        line = b"x" * 1000 + b"\n"
        listener = threading.Thread(target=lambda: heard.append(next(spoken)))
        listener.start()
        for _ in range(50_000):
            ann.sendall(line)
            if heard:
                break
        listener.join(LIMIT)
        assert heard == ["* slow has left\n"]
