"""The HTTPS server of files, with openssl, curl and Python's ssl as clients."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import threading
from pathlib import Path

import pytest
from certificates import Pki
from example_process import LIMIT, Example, read_all, until

HUBS = pytest.mark.parametrize("hubs", [1, 2])
VERSIONS = pytest.mark.parametrize("version", ["1.2", "1.3"])
MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("site")
    for name, size in (
        ("index.html", 20), ("empty.css", 0), ("a/b/c.txt", 1000), ("a/d.bin", 70_000),
        ("large.bin", 64 * MEGABYTE + 17),
    ):  # fmt: skip
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(size))
    (root.parent / "secret.txt").write_text("secret\n")
    (root / "link.txt").symlink_to("../secret.txt")
    return root


def serve(pki: Pki, site: Path, hubs: int = 1) -> Example:
    return Example("https_static", *pki.server_arguments(False), str(site), hubs=hubs)


def curl(pki: Pki, server: Example, *arguments: str, cwd: Path | None = None) -> bytes:
    """What it writes. Paths stand for addresses of the server."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    base = f"https://localhost:{server.port}"
    return subprocess.run(
        ["curl", "-sS", "--max-time", "30", "--path-as-is", "--cacert", pki.roots,
         *(base + each if each.startswith("/") else each for each in arguments)],
        check=True, capture_output=True, timeout=4 * LIMIT, cwd=cwd,
    ).stdout  # fmt: skip


def connect(pki: Pki, server: Example) -> http.client.HTTPSConnection:
    context = ssl.create_default_context(cafile=pki.roots)
    return http.client.HTTPSConnection("localhost", server.port, timeout=LIMIT, context=context)


@VERSIONS
def test_openssl_verifies_it(pki: Pki, site: Path, version: str) -> None:
    with serve(pki, site) as server:
        done = subprocess.run(
            ["openssl", "s_client", "-connect", f"127.0.0.1:{server.port}",
             "-servername", "localhost", "-verify_hostname", "localhost", "-verify_return_error",
             "-CAfile", pki.roots, "-alpn", "h2,http/1.1", f"-tls{version.replace('.', '_')}",
             "-ign_eof"],
            input="GET /index.html HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
            capture_output=True, encoding="latin-1", timeout=LIMIT,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Verify return code: 0 (ok)" in done.stdout
    assert "Verification error" not in done.stdout + done.stderr
    assert "ALPN protocol: http/1.1" in done.stdout
    assert f"TLSv{version}" in done.stdout
    assert "HTTP/1.1 200 OK" in done.stdout


def test_openssl_refuses_another_name(pki: Pki, site: Path) -> None:
    with serve(pki, site) as server:
        done = subprocess.run(
            ["openssl", "s_client", "-connect", f"127.0.0.1:{server.port}",
             "-verify_hostname", "other.test", "-verify_return_error", "-CAfile", pki.roots],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT,
        )  # fmt: skip
    assert done.returncode != 0
    assert "hostname mismatch" in done.stdout + done.stderr


@VERSIONS
@HUBS
def test_curl_fetches_a_tree(pki: Pki, site: Path, tmp_path: Path, hubs: int, version: str) -> None:
    names = [str(each.relative_to(site)) for each in site.rglob("*") if each.is_file()]
    names.remove("link.txt")
    assert len(names) == 5
    arguments = [f"--tlsv{version}", "--tls-max", version, "--http1.1", "--create-dirs"]
    for name in names:
        arguments += ["-o", name, f"/{name}"]
    with serve(pki, site, hubs) as server:
        curl(pki, server, *arguments, cwd=tmp_path)
    for name in names:
        assert (tmp_path / name).read_bytes() == (site / name).read_bytes()
    # One connection was enough.
    assert "accepted 1, active 0" in server.stdout
    assert "handshakes 1" in server.stdout


def test_curl_fetches_in_parallel(pki: Pki, site: Path, tmp_path: Path) -> None:
    arguments = ["--parallel", "--parallel-immediate", "--http1.1"]
    for i in range(8):
        arguments += ["-o", str(i), "/large.bin" if i % 2 else "/a/d.bin"]
    with serve(pki, site, hubs=2) as server:
        curl(pki, server, *arguments, cwd=tmp_path)
    for i in range(8):
        fetched = tmp_path / str(i)
        original = site / ("large.bin" if i % 2 else "a/d.bin")
        assert fetched.stat().st_size == original.stat().st_size
        assert digest(fetched) == digest(original)


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def test_ranges(pki: Pki, site: Path) -> None:
    whole = (site / "a/d.bin").read_bytes()
    size = len(whole)
    parts = {
        "bytes=0-0": whole[:1],
        "bytes=10-19": whole[10:20],
        "bytes=69990-": whole[69990:],
        "bytes=-10": whole[-10:],
        f"bytes=-{size + 5}": whole,
        f"bytes=5-{size * 10}": whole[5:],
        "bytes=100-65635": whole[100:65636],
    }
    with serve(pki, site) as server:
        connection = connect(pki, server)

        def get(path: str, **headers: str) -> tuple[int, bytes, str | None]:
            connection.request(
                "GET", path, headers={k.replace("_", "-"): headers[k] for k in headers}
            )
            response = connection.getresponse()
            return response.status, response.read(), response.headers["Content-Range"]

        for wanted, expected in parts.items():
            begin = whole.index(expected)
            told = f"bytes {begin}-{begin + len(expected) - 1}/{size}"
            assert get("/a/d.bin", Range=wanted) == (206, expected, told), wanted
        for wanted in (f"bytes={size}-", f"bytes={size}-{size + 1}", "bytes=-0"):
            status, _, where = get("/a/d.bin", Range=wanted)
            assert (status, where) == (416, f"bytes */{size}"), wanted
        # What is no range, several of them, and one for another state of the file: all of it.
        for wanted in (
            "bytes=", "bytes=-", "bytes=9-5", "bytes=x-5", "bytes=1-2,4-5", "lines=1-2", "5-9",
            "bytes=99999999999999999999-", "bytes=+1-5",
        ):  # fmt: skip
            assert get("/a/d.bin", Range=wanted) == (200, whole, None), wanted
        assert get("/a/d.bin", Range="bytes=0-0", If_Range='"x"') == (200, whole, None)
        assert get("/empty.css", Range="bytes=0-")[0] == 416
        connection.request("HEAD", "/a/d.bin", headers={"Range": "bytes=0-0"})
        response = connection.getresponse()
        assert response.status == 200
        assert response.headers["Content-Length"] == str(size)
        assert response.headers["Accept-Ranges"] == "bytes"
        response.read()
        connection.close()
    assert "accepted 1," in server.stdout


def test_curl_goes_on_where_it_stopped(pki: Pki, site: Path, tmp_path: Path) -> None:
    large = site / "large.bin"
    with large.open("rb") as file:
        (tmp_path / "part").write_bytes(file.read(10 * MEGABYTE + 1))
    with serve(pki, site) as server:
        curl(pki, server, "-C", "-", "-o", "part", "/large.bin", cwd=tmp_path)
    assert digest(tmp_path / "part") == digest(large)


def test_what_is_not_served(pki: Pki, site: Path) -> None:
    with serve(pki, site) as server:
        for path in ("/none", "/../secret.txt", "/a/../../secret.txt", "/link.txt", "/%2e%2e/x"):
            text = curl(pki, server, "-w", "%{http_code}", path)
            assert text == b"404 Not Found\n404"
        # No protocol in common, plain HTTP, and an end in the middle of a hello.
        context = ssl.create_default_context(cafile=pki.roots)
        context.set_alpn_protocols(["h2"])
        with (
            server.connect() as plain,
            pytest.raises(ssl.SSLError, match=r"(?i)no.application.protocol"),
        ):
            context.wrap_socket(plain, server_hostname="localhost")
        with server.connect() as plain:
            plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert b"HTTP" not in read_all(plain)
        with server.connect() as plain:
            plain.sendall(b"\x16\x03\x01")
            plain.shutdown(socket.SHUT_WR)
            read_all(plain)
    assert "a handshake failed, the connection was closed: 3" in server.stdout


def test_the_end_is_said(pki: Pki, site: Path) -> None:
    """A client can tell the end of an answer without a length from a cut: close_notify comes."""
    context = ssl.create_default_context(cafile=pki.roots)
    with (
        serve(pki, site) as server,
        server.connect() as plain,
        context.wrap_socket(
            plain, server_hostname="localhost", suppress_ragged_eofs=False
        ) as client,
    ):
        client.sendall(b"GET /a/b/c.txt HTTP/1.0\r\n\r\n")
        assert read_all(client).endswith((site / "a/b/c.txt").read_bytes())


@pytest.mark.parametrize("secure", [True, False], ids=["https", "http"])
@HUBS
def test_sigterm_under_load_cuts_no_request(pki: Pki, site: Path, hubs: int, secure: bool) -> None:
    """Clients that ask all the time, each over a connection that it keeps. Until the server has
    told it that an answer is the last, or is gone between two answers, all of them are whole."""
    expected = (site / "a/d.bin").read_bytes()
    server = serve(pki, site, hubs) if secure else Example("http_static", str(site), hubs=hubs)
    answers = [0] * 8
    failures: list[BaseException] = []
    context = ssl.create_default_context(cafile=pki.roots)

    def client(index: int) -> None:
        kind = http.client.HTTPConnection
        connection = (
            http.client.HTTPSConnection("localhost", server.port, timeout=LIMIT, context=context)
            if secure
            else kind("127.0.0.1", server.port, timeout=LIMIT)
        )
        try:
            while True:
                try:
                    connection.request("GET", "/a/d.bin")
                    response = connection.getresponse()
                except (http.client.RemoteDisconnected, ConnectionError, ssl.SSLError):
                    # Not a byte of an answer: between two of them, which a client repeats.
                    assert stopped.is_set()
                    return
                assert response.status == 200
                assert response.read() == expected  # IncompleteRead when it is cut
                answers[index] += 1
                if response.headers["Connection"] == "close":
                    assert stopped.is_set()
                    return
                if index >= 6:  # says nothing more until the server ends it
                    sock = connection.sock
                    assert sock is not None
                    assert sock.recv(1) == b""
                    assert stopped.is_set()
                    return
        except BaseException as error:
            failures.append(error)
        finally:
            connection.close()

    stopped = threading.Event()
    with server:
        threads = [threading.Thread(target=client, args=(i,)) for i in range(8)]
        # And one that takes its time with a large answer.
        slow = connect(pki, server) if secure else None
        if slow is not None:
            slow.request("GET", "/large.bin")
            large = slow.getresponse()
            first = large.read(1000)
        for thread in threads:
            thread.start()
        until(lambda: all(count >= 1 for count in answers) and sum(answers) > 50, "answers")
        stopped.set()
        server.signal(signal.SIGTERM)
        for thread in threads:
            thread.join(LIMIT)
            assert not thread.is_alive()
        if slow is not None:
            rest = large.read()
            assert hashlib.sha256(first + rest).hexdigest() == digest(site / "large.bin")
            slow.close()
        server.wait()
    assert failures == []
    assert "cancelled 0" in server.stdout, server.stdout
    assert re.search(r"accepted \d+, active 0", server.stdout)
