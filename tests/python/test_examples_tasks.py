"""The Python examples about fibers that work together: a crawler, a pool of workers, an end without
loss, a deadlock."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest
from example_support import (
    Authority,
    Example,
    authority,
    command,
    environment,
    output_of,
    running,
    until,
    upstream,
)
from socket_support import LIMIT, read_all, read_exactly

__all__ = ["authority"]

NAMES = ["crawler", "worker_pool", "graceful_shutdown", "deadlock"]


@pytest.mark.parametrize("name", NAMES)
def test_a_program_says_how_it_is_used(name: str) -> None:
    assert f"python examples/python/{name}.py" in output_of(command(name, "--help"))


def outcome(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(name, *arguments),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT * 3,
    )


# ---- crawler ----


@pytest.fixture
def site(tmp_path: Path) -> Path:
    root = tmp_path / "site"
    (root / "deep").mkdir(parents=True)
    (root / "index.html").write_text(
        '<a href="a.html">a</a> <a href="a.html#part">again</a> <img src="/picture.png">'
        '<a href="http://elsewhere.invalid/">not ours</a> <a href="http://[nonsense">no URL</a>'
        '<a href="mailto:x@example.org">no page</a> <a>nowhere</a>'
    )
    (root / "a.html").write_text('<a href="deep/"> <a href="missing.html"> <a href="/">')
    (root / "deep" / "index.html").write_text('<a href="../a.html"><a href="b.txt?x=1&amp;y=2">')
    (root / "deep" / "b.txt").write_text('<a href="/in-a-text-so-no-link.html">')
    (root / "picture.png").write_bytes(b"\x89PNG")
    return root


PAGES = {"", "a.html", "deep/", "deep/b.txt?x=1&y=2", "picture.png"}


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_crawler_finds_all_pages_and_broken_links(
    scheme: str, site: Path, authority: Authority
) -> None:
    secure = scheme == "https"
    arguments = ("--certfile", authority.server) if secure else ()
    with running("https_files", *arguments, str(site)) as server:
        url = f"{scheme}://localhost:{server.address[1]}/"
        trust = ("--cafile", authority.ca) if secure else ()
        done = outcome("crawler", url, *trust)
    *lines, summary = done.stdout.splitlines()
    assert done.stderr == ""
    assert {line for line in lines if line.startswith("200")} == {f"200 {url}{p}" for p in PAGES}
    assert len(lines) == 6
    assert f"404 {url}missing.html (from {url}a.html)" in lines
    assert (summary, done.returncode) == ("6 pages, 1 broken", 1)


def test_crawler_follows_redirects_with_few_at_once(tmp_path: Path) -> None:
    """A site of plain sockets, which sees how many come at the same time."""
    lock, together = threading.Lock(), threading.Event()
    busy: set[int] = set()
    most = 0

    def page(target: str) -> bytes:
        if target == "/old":
            return b"HTTP/1.1 301 Moved\r\nLocation: /new\r\nContent-Length: 0\r\n\r\n"
        body = "".join(f'<a href="/page{i}">' for i in range(20)) + '<a href="/old">'
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\n\r\n"
        return (head + (body if target != "/new" else "x" * len(body))).encode()

    def serve(connection: socket.socket) -> None:
        nonlocal most
        with lock:
            busy.add(connection.fileno())
            most = max(most, len(busy))
            if len(busy) > 1:
                together.set()
        request = b""
        while b"\r\n\r\n" not in request:
            request += connection.recv(65536)
        target = request.split()[1].decode()
        if target.startswith("/page"):
            together.wait(LIMIT)
        with lock:  # before the answer, after which the client goes on
            busy.discard(connection.fileno())
        connection.sendall(page(target))

    with upstream(serve) as address:
        done = outcome("crawler", f"http://{address}/", "--at-once", "3")
    assert done.stdout.splitlines()[-1] == "23 pages, 0 broken"
    assert f"301 http://{address}/old" in done.stdout
    assert f"200 http://{address}/new" in done.stdout
    assert done.returncode == 0
    assert 1 < most <= 3


def test_crawler_gives_a_silent_server_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        done = outcome("crawler", url, "--timeout", "0.2")
    assert done.stdout == f"timed out {url} (from the command line)\n1 pages, 1 broken\n"


def test_crawler_says_that_nobody_listens() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        done = outcome("crawler", f"http://localhost:{unused.getsockname()[1]}/")
    assert "Connection refused" in done.stdout
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("url", ["localhost", "ftp://localhost/", "http://"])
def test_crawler_refuses_nonsense(url: str) -> None:
    done = outcome("crawler", url)
    assert done.returncode == 2
    assert "is no http or https URL" in done.stderr


def test_crawler_ends_when_it_is_told_to() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        crawler = subprocess.Popen(
            command("crawler", url), env=environment(), stdout=subprocess.PIPE, text=True
        )
        silent.settimeout(LIMIT)
        connection, _ = silent.accept()
        with connection:
            crawler.send_signal(signal.SIGTERM)
            assert crawler.communicate(timeout=LIMIT)[0] == "stopped\n"


# ---- worker_pool ----


@pytest.mark.parametrize("workers", ["1", "3", "50"])
def test_worker_pool_computes_what_sha256sum_does(workers: str, tmp_path: Path) -> None:
    expected = set()
    for i in range(40):
        folder = tmp_path / str(i % 3)
        folder.mkdir(exist_ok=True)
        data = os.urandom(i * 1000)
        (folder / f"file {i}").write_bytes(data)
        expected.add(f"{hashlib.sha256(data).hexdigest()}  {folder / f'file {i}'}")
    single = tmp_path / "0" / "file 0"
    (tmp_path / "dangling").symlink_to("nowhere")
    done = outcome("worker_pool", "--workers", workers, str(tmp_path), str(single))
    lines = done.stdout.splitlines()
    assert set(lines) == expected
    assert len(lines) == 41
    assert (done.returncode, done.stderr) == (0, "")


def test_worker_pool_says_what_it_can_not_read(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("1")
    done = outcome("worker_pool", str(tmp_path / "missing"), str(tmp_path / "one"))
    assert done.stdout == f"{hashlib.sha256(b'1').hexdigest()}  {tmp_path / 'one'}\n"
    assert "No such file or directory" in done.stderr and "Traceback" not in done.stderr
    assert done.returncode == 1


def test_worker_pool_with_nothing_to_do(tmp_path: Path) -> None:
    done = outcome("worker_pool", str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# ---- graceful_shutdown ----


def ask(server: Example, seconds: int) -> socket.socket:
    client = server.connect()
    client.sendall(f"GET /{seconds} HTTP/1.1\r\n\r\n".encode())
    return client


def refuses(server: Example) -> bool:
    try:
        server.connect().close()
    except OSError:
        return True
    return False


def test_graceful_shutdown_finishes_what_has_begun() -> None:
    server = Example("graceful_shutdown", "--grace", "30")
    # Who comes last and is answered shows that the others were accepted.
    with server.connect() as late, ask(server, 1) as busy, ask(server, 0) as idle:
        assert read_exactly(idle, 15) == b"HTTP/1.1 200 OK"
        server.process.send_signal(signal.SIGTERM)
        assert b"done\n" in read_all(idle)
        until(lambda: refuses(server), "closing the listener")
        late.sendall(b"GET / HTTP/1.1\r\n\r\n")
        for client in (busy, late):
            answer = read_all(client)
            assert answer.startswith(b"HTTP/1.1 200 OK") and b"Connection: close" in answer
        stdout, stderr = server.process.communicate(timeout=LIMIT)
    assert (server.process.returncode, stdout) == (0, "stopped\n"), stderr
    assert stderr.endswith(" served, 0 cancelled\n")


def test_graceful_shutdown_gives_up_at_last() -> None:
    server = Example("graceful_shutdown", "--grace", "0.2")
    with ask(server, 1000) as stuck, ask(server, 0) as answered:
        assert read_exactly(answered, 15) == b"HTTP/1.1 200 OK"
        server.process.send_signal(signal.SIGTERM)
        assert read_all(stuck) == b""
        stdout, stderr = server.process.communicate(timeout=LIMIT)
    assert (server.process.returncode, stdout, stderr) == (
        0,
        "stopped\n",
        "2 served, 1 cancelled\n",
    )


def test_graceful_shutdown_ends_at_the_second_signal() -> None:
    server = Example("graceful_shutdown", "--grace", "1000")
    with ask(server, 1000) as stuck, ask(server, 0) as answered:
        assert read_exactly(answered, 15) == b"HTTP/1.1 200 OK"
        server.process.send_signal(signal.SIGTERM)
        read_all(answered)  # it was between two requests
        server.process.send_signal(signal.SIGTERM)
        assert read_all(stuck) == b""
        stdout, stderr = server.process.communicate(timeout=LIMIT)
    assert (server.process.returncode, stdout) == (0, "stopped\n"), stderr
    assert stderr.endswith(" served, 1 cancelled\n")


def test_graceful_shutdown_loses_no_request_under_load() -> None:
    """Who sees a connection end sees it between two answers."""
    server = Example("graceful_shutdown")
    answers, cut = [0] * 8, []
    begun = threading.Barrier(9)

    def load(number: int) -> None:
        begun_here = False
        while True:
            try:
                client = server.connect()
            except OSError:
                return
            with client, client.makefile("rb") as file:
                while True:
                    try:
                        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
                        head = b""
                        while (line := file.readline()) not in (b"\r\n", b""):
                            head += line
                        if not head:
                            break  # the connection had ended before it had the request
                        if not line or file.read(5) != b"done\n":
                            cut.append(head)
                    except ConnectionError:
                        break
                    answers[number] += 1
                    if not begun_here:
                        begun_here = True
                        begun.wait(LIMIT)
                    if b"Connection: close" in head:
                        break

    threads = [threading.Thread(target=load, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    begun.wait(LIMIT)
    server.process.send_signal(signal.SIGTERM)
    stdout, stderr = server.process.communicate(timeout=LIMIT)
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive()
    assert all(answers) and not cut
    assert (server.process.returncode, stdout) == (0, "stopped\n"), stderr


# ---- deadlock ----


def test_deadlock_shows_where_the_fibers_wait() -> None:
    done = outcome("deadlock")
    assert done.returncode == 1
    assert len(re.findall(r"'transfer': park in mutex", done.stderr)) == 2
    assert len(re.findall(r'deadlock\.py", line \d+, in transfer', done.stderr)) == 2
    assert "all fibers are blocked -- deadlock" in done.stderr


def test_deadlock_beside_others_is_found_by_its_age() -> None:
    done = outcome("deadlock", "--others")
    assert done.returncode == 1
    assert "2 fibers have waited for 0.2 s" in done.stderr
    assert len(re.findall(r'deadlock\.py", line \d+, in transfer', done.stderr)) == 2
