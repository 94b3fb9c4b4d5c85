"""TLS of the C++ examples with OpenSSL's programs, curl, Python's ssl module and Go's crypto/tls on
the other side: each version, with and without client certificates, hashes compared."""

from __future__ import annotations

import hashlib
import http.client
import http.server
import os
import random
import shutil
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import pytest
from certificates import Pki
from example_process import Example, binary, read_all, read_exactly, until

FULL = os.environ.get("RUNLOOM_FULL") == "1"
SIZE = 100_000_000 if FULL else 1_000_000
LIMIT = 240.0 if FULL else 60.0  # seconds
pytestmark = pytest.mark.timeout(3 * LIMIT)
VERSIONS = pytest.mark.parametrize("version", ["1.2", "1.3"])
CERTIFICATES = pytest.mark.parametrize("mutual", [False, True], ids=["plain", "mutual"])
OPENSSL = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


def data(size: int = SIZE) -> bytes:
    return random.Random(1).randbytes(size)


def digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def feed(pipe: IO[bytes], text: bytes, close: bool) -> None:
    pipe.write(text)
    pipe.flush()
    if close:
        pipe.close()


def through_pipes(process: subprocess.Popen[bytes], text: bytes, close: bool) -> bytes:
    """Feeds its standard input and reads as many bytes from its output, at the same time."""
    assert process.stdin is not None and process.stdout is not None
    with ThreadPoolExecutor(1) as pool:
        fed = pool.submit(feed, process.stdin, text, close)
        back = process.stdout.read(len(text))
        fed.result(LIMIT)
    return back


def version_of(text: str) -> ssl.TLSVersion:
    return ssl.TLSVersion.TLSv1_2 if text == "1.2" else ssl.TLSVersion.TLSv1_3


def python_context(pki: Pki, version: str, server: bool, mutual: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = context.maximum_version = version_of(version)
    if server:
        context.load_cert_chain(pki.certificate, pki.key)
        if mutual:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(pki.roots)
    else:
        context.load_verify_locations(pki.roots)
        if mutual:
            context.load_cert_chain(pki.client_certificate, pki.client_key)
    return context


# ---------------------------------------------------------------- our server


@VERSIONS
@CERTIFICATES
@OPENSSL
def test_our_server_and_s_client(pki: Pki, version: str, mutual: bool) -> None:
    text = data()
    command = [
        "openssl", "s_client", "-quiet", f"-tls{version.replace('.', '_')}",
        "-verify_return_error", "-CAfile", pki.roots, "-servername", "localhost",
    ]  # fmt: skip
    if mutual:
        command += ["-cert", pki.client_certificate, "-key", pki.client_key]
    with (
        Example("tls_echo", *pki.server_arguments(mutual)) as server,
        subprocess.Popen(
            [*command, "-connect", f"127.0.0.1:{server.port}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as client,
    ):
        try:
            assert digest(through_pipes(client, text, close=False)) == digest(text)
        finally:
            client.kill()


@VERSIONS
@CERTIFICATES
def test_our_server_and_python(pki: Pki, version: str, mutual: bool) -> None:
    text = data()
    context = python_context(pki, version, server=False, mutual=mutual)
    with (
        Example("tls_echo", *pki.server_arguments(mutual), hubs=2) as server,
        server.connect() as plain,
        context.wrap_socket(plain, server_hostname="localhost") as client,
        ThreadPoolExecutor(1) as pool,
    ):
        client.settimeout(LIMIT)
        assert client.version() == f"TLSv{version}"
        # An SSLSocket may be used by one thread at a time, so it goes by pieces.
        back = []
        for at in range(0, len(text), 100_000):
            piece = text[at : at + 100_000]
            client.sendall(piece)
            back.append(read_exactly(client, len(piece)))
        assert digest(b"".join(back)) == digest(text)
        # Both agree on the end.
        ended = pool.submit(client.unwrap)
        ended.result(LIMIT).close()


def test_python_resumes_its_session_with_our_server(pki: Pki) -> None:
    for version in ("1.2", "1.3"):
        context = python_context(pki, version, server=False, mutual=False)
        session = None
        with Example("tls_echo", *pki.server_arguments(False)) as server:
            for reused in (False, True):
                with (
                    server.connect() as plain,
                    context.wrap_socket(
                        plain, server_hostname="localhost", session=session
                    ) as client,
                ):
                    client.settimeout(LIMIT)
                    client.sendall(b"x")
                    assert client.recv(1) == b"x"
                    assert client.session_reused is reused
                    session = client.session


def test_what_our_server_refuses_has_a_name(pki: Pki) -> None:
    with Example("tls_echo", *pki.server_arguments(True)) as server:
        context = python_context(pki, "1.3", server=False, mutual=False)
        with (
            server.connect() as plain,
            context.wrap_socket(plain, server_hostname="localhost") as client,
            pytest.raises(ssl.SSLError, match=r"(?i)certificate.required"),
        ):
            client.settimeout(LIMIT)
            client.recv(1)
        # Plain text to the TLS port, and half a hello.
        with server.connect() as plain:
            plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
            while plain.recv(100):
                pass
        with server.connect() as plain:
            plain.sendall(b"\x16\x03\x01")
            plain.shutdown(socket.SHUT_WR)
            while plain.recv(100):
                pass
    for part in ("did not return a certificate", "http request", "unexpected eof"):
        assert part in server.stderr


# ---------------------------------------------------------------- our client


class Client:
    """example_tls_client, which sends its input and writes what comes back."""

    def __init__(self, port: int, pki: Pki, mutual: bool, host: str = "localhost") -> None:
        self.process = subprocess.Popen(
            [
                binary("tls_client"),
                f"127.0.0.1:{port}",
                host,
                *pki.client_arguments(mutual),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def talk(self, text: bytes) -> bytes:
        """Sends all of it and ends, and returns what came until the server's end."""
        back, self.stderr = self.process.communicate(text, timeout=LIMIT)
        return back


@VERSIONS
@CERTIFICATES
@OPENSSL
def test_our_client_and_s_server(pki: Pki, version: str, mutual: bool) -> None:
    text, answer = data(), data()[::-1]
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [
        "openssl", "s_server", "-quiet", "-accept", f"127.0.0.1:{port}", "-naccept", "1",
        f"-tls{version.replace('.', '_')}", "-cert", pki.certificate, "-key", pki.key,
    ]  # fmt: skip
    if mutual:
        command += ["-Verify", "1", "-verify_return_error", "-CAfile", pki.roots]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as server:
        try:

            def listens() -> bool:
                # Connecting would use the one connection up.
                wanted = f"0100007F:{port:04X} 00000000:0000 0A"
                return wanted in Path("/proc/net/tcp").read_text()

            until(listens, "listening")
            client = Client(port, pki, mutual)
            with ThreadPoolExecutor(1) as pool:
                assert server.stdin is not None and server.stdout is not None
                assert client.process.stdin is not None and client.process.stdout is not None
                sent = pool.submit(feed, client.process.stdin, text, close=False)
                assert digest(server.stdout.read(len(text))) == digest(text)
                sent.result(LIMIT)
                back = pool.submit(feed, server.stdin, answer, close=False)
                assert digest(client.process.stdout.read(len(answer))) == digest(answer)
                back.result(LIMIT)
            client.process.kill()
            client.process.communicate()
        finally:
            server.kill()


@VERSIONS
@CERTIFICATES
def test_our_client_and_python(pki: Pki, version: str, mutual: bool) -> None:
    text = data()
    context = python_context(pki, version, server=True, mutual=mutual)

    def serve(listener: socket.socket) -> None:
        plain, _ = listener.accept()
        with plain, context.wrap_socket(plain, server_side=True) as connection:
            connection.settimeout(LIMIT)
            assert connection.version() == f"TLSv{version}"
            assert (connection.getpeercert() is not None) == mutual
            while piece := connection.recv(65536):
                connection.sendall(piece)
            connection.unwrap()

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        served = pool.submit(serve, listener)
        client = Client(listener.getsockname()[1], pki, mutual)
        assert digest(client.talk(text)) == digest(text)
        assert client.process.returncode == 0, client.stderr
        served.result(LIMIT)


def test_our_client_tells_a_cut_connection_from_an_end(pki: Pki) -> None:
    context = python_context(pki, "1.3", server=True, mutual=False)

    def serve(listener: socket.socket) -> None:
        plain, _ = listener.accept()
        with context.wrap_socket(plain, server_side=True) as connection:
            connection.sendall(b"half a rep")
            connection.shutdown(socket.SHUT_RDWR)

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        served = pool.submit(serve, listener)
        client = Client(listener.getsockname()[1], pki, mutual=False)
        assert client.process.stdout is not None
        assert client.process.stdout.read() == b"half a rep"
        assert b"unexpected eof" in client.talk(b"") + client.stderr
        assert client.process.returncode == 1
        served.result(LIMIT)


def test_our_client_names_the_wrong_host(pki: Pki) -> None:
    with Example("tls_echo", *pki.server_arguments(False)) as server:
        client = Client(server.port, pki, mutual=False, host="other.test")
        client.talk(b"")
        assert b"hostname mismatch, certificate is not valid for 'other.test'" in client.stderr
        assert client.process.returncode == 1


# ---------------------------------------------------------------- Go


@pytest.fixture(scope="module")
def go_peer(tmp_path_factory: pytest.TempPathFactory) -> str:
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        pytest.skip("Go is not installed")
    program = tmp_path_factory.mktemp("go") / "tls_peer"
    built = subprocess.run(
        [go, "build", "-o", program, Path(__file__).with_name("tls_peer.go")],
        env={"GOCACHE": str(program.parent / "cache"), **os.environ, "GOFLAGS": "-mod=mod",
             "GO111MODULE": "off", "GOPROXY": "off", "GOTOOLCHAIN": "local"},
        capture_output=True, text=True, timeout=2 * LIMIT,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    return str(program)


@VERSIONS
@CERTIFICATES
def test_our_server_and_go(pki: Pki, go_peer: str, version: str, mutual: bool) -> None:
    with Example("tls_echo", *pki.server_arguments(mutual)) as server:
        extra = [pki.client_certificate, pki.client_key] if mutual else []
        done = subprocess.run(
            [go_peer, "client", f"127.0.0.1:{server.port}", pki.roots, version, str(SIZE), *extra],
            capture_output=True, text=True, timeout=LIMIT,
        )  # fmt: skip
        assert done.stdout == "the same\n", done.stderr


@VERSIONS
@CERTIFICATES
def test_our_client_and_go(pki: Pki, go_peer: str, version: str, mutual: bool) -> None:
    text = data()
    roots = pki.roots if mutual else ""
    with subprocess.Popen(
        [go_peer, "server", pki.certificate, pki.key, roots, version],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline().rsplit(":", 1)[1])
            client = Client(port, pki, mutual)
            assert digest(client.talk(text)) == digest(text)
            assert client.process.returncode == 0, client.stderr
            assert server.wait(LIMIT) == 0
        finally:
            server.kill()


# ---------------------------------------------------------------- curl


class Files(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def plain_http() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@VERSIONS
@CERTIFICATES
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_our_proxy_and_curl(
    pki: Pki, plain_http: int, tmp_path: Path, version: str, mutual: bool
) -> None:
    (tmp_path / "there").write_bytes(data())
    extra = ["--cert", pki.client_certificate, "--key", pki.client_key] if mutual else []
    target = f"127.0.0.1:{plain_http}"
    with Example("tls_proxy", target, *pki.server_arguments(mutual)) as server:
        subprocess.run(
            ["curl", "--silent", "--show-error", "--fail", "--cacert", pki.roots, *extra,
             f"--tlsv{version}", "--tls-max", version, "--upload-file", "there",
             "--output", "back", f"https://localhost:{server.port}/x"],
            cwd=tmp_path, check=True, timeout=LIMIT,
        )  # fmt: skip
    assert digest((tmp_path / "back").read_bytes()) == digest(data())


@pytest.mark.parametrize("flag", ["--proxy", "--proxy-v1"])
def test_our_proxy_tells_the_server_who_the_client_is(pki: Pki, tmp_path: Path, flag: str) -> None:
    (tmp_path / "page").write_bytes(b"hello")
    context = ssl.create_default_context(cafile=pki.roots)

    def read_to_end(plain: socket.socket) -> bytes:
        try:
            return read_all(plain)
        except ConnectionResetError:  # what it sent was not read
            return b""

    with (
        Example("http_static", "--behind-proxy", str(tmp_path)) as web,
        Example(
            "tls_proxy", flag, f"127.0.0.1:{web.port}", *pki.server_arguments(False), hubs=2
        ) as proxy,
    ):
        ports = []
        for _ in range(5):
            client = http.client.HTTPSConnection("localhost", proxy.port, context=context)
            client.request("GET", "/page")
            answer = client.getresponse()
            assert answer.read() == b"hello"
            assert client.sock is not None
            ports.append(client.sock.getsockname()[1])
            assert answer.headers["X-Client"] == f"127.0.0.1:{ports[-1]}"
            client.close()
        # Who comes without a header is no client.
        with web.connect() as plain:
            plain.sendall(b"GET /page HTTP/1.1\r\n\r\n")
            assert read_to_end(plain) == b""
    assert len(set(ports)) == 5
    assert "proxied 5" in web.stdout
    assert "header" in web.stderr


def test_our_proxy_tells_the_name_and_the_protocol(pki: Pki) -> None:
    """Byte for byte, as the PROXY protocol has it."""
    context = ssl.create_default_context(cafile=pki.roots)
    context.set_alpn_protocols(["http/1.1"])
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        Example(
            "tls_proxy", "--proxy", f"127.0.0.1:{listener.getsockname()[1]}",
            *pki.server_arguments(False),
        ) as proxy,
        proxy.connect() as plain,
        context.wrap_socket(plain, server_hostname="localhost") as client,
    ):  # fmt: skip
        client.sendall(b"x")
        listener.settimeout(LIMIT)
        behind, _ = listener.accept()
        with behind:
            behind.settimeout(LIMIT)
            host = socket.inet_aton("127.0.0.1")
            ports = struct.pack(">HH", client.getsockname()[1], proxy.port)
            told = b"\x01\x00\x08http/1.1" + b"\x02\x00\x09localhost"
            expected = b"\r\n\r\n\0\r\nQUIT\n\x21\x11" + struct.pack(">H", 12 + len(told))
            expected += host + host + ports + told + b"x"
            assert read_exactly(behind, len(expected)) == expected
