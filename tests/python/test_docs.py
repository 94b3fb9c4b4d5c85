"""The Python programs of the README and of docs/, run as they stand; and the links of all pages."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from socket_support import LIMIT, read_all

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
# A program, and what the page says that it prints.
PROGRAM = re.compile(r"^```python\n(.*?)^```\n(?:\nprints\n\n```text\n(.*?)^```\n)?", re.M | re.S)


def programs(page: str) -> list[tuple[str, str]]:
    return PROGRAM.findall((ROOT / page).read_text())


DEPLOYMENT = "docs/guides/deployment.md"
GUIDES = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs" / "guides").glob("*.md"))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def connect(port: int, server: subprocess.Popen[str]) -> socket.socket:
    end = time.monotonic() + LIMIT
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=LIMIT)
        except ConnectionRefusedError:
            assert server.poll() is None, server.communicate()[1]
            assert time.monotonic() < end, "it does not listen"
            time.sleep(0.02)


def test_no_page_has_programs_that_are_not_run() -> None:
    found = {str(page.relative_to(ROOT)): len(programs(str(page))) for page in PAGES}
    others = {name for name, count in found.items() if count} - set(GUIDES)
    assert others == {"README.md"}
    assert (found["README.md"], found[DEPLOYMENT]) == (1, 3)


def test_the_index_names_every_guide() -> None:
    index = (ROOT / "docs" / "python.md").read_text()
    assert [guide for guide in GUIDES if f"]({guide.removeprefix('docs/')})" not in index] == []


def test_the_quickstart_names_every_example() -> None:
    quickstart = (ROOT / "docs" / "guides" / "quickstart.md").read_text()
    examples = {path.name for path in (ROOT / "examples" / "python").glob("*.py")}
    shared = {"example.py", "http_requests.py"}
    assert {name for name in examples - shared if f"`{name}`" not in quickstart} == set()


def test_the_server_of_the_readme_echoes_until_ctrl_c() -> None:
    [(program, _)] = programs("README.md")
    port = free_port()
    assert program.count("7000") == 1
    # A background job of a shell ignores the interrupt, and so do those that it starts.
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    server = subprocess.Popen(
        [sys.executable, "-c", heard + program.replace("7000", str(port))],
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
    )
    with server:
        try:
            first = connect(port, server)
            with first, connect(port, server) as second:
                second.sendall(b"second")
                second.shutdown(socket.SHUT_WR)
                assert read_all(second) == b"second"
                first.sendall(b"x" * 100_000)
                first.shutdown(socket.SHUT_WR)
                assert read_all(first) == b"x" * 100_000
            server.send_signal(signal.SIGINT)
            _, stderr = server.communicate(timeout=LIMIT)
        finally:
            server.kill()
    assert stderr.rstrip().endswith("KeyboardInterrupt")


@contextmanager
def server_of(marker: str, port: int, *command: str) -> Iterator[subprocess.Popen[str]]:
    """A server of the page on deployment, which has the marker in its text, on another port."""
    [program] = [each for each, _ in programs(DEPLOYMENT) if marker in each]
    assert program.count("7000") == 1
    with subprocess.Popen(
        [*command, sys.executable, "-c", program.replace("7000", str(port))],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            yield server
        finally:
            server.kill()


def echoed(client: socket.socket) -> None:
    client.sendall(b"hello")
    client.shutdown(socket.SHUT_WR)
    assert read_all(client) == b"hello"


def test_the_service_listens_by_itself_or_where_it_is_told_to() -> None:
    port = free_port()
    with server_of("LISTEN_FDS", port) as server, connect(port, server) as client:
        echoed(client)


def test_the_service_takes_listeners_that_are_passed_to_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        # As systemd does it: descriptor 3, and the number of the process that is to have it.
        shell = f'exec 3<&{listener.fileno()}; LISTEN_FDS=1 LISTEN_PID=$$ exec "$@"'
        os.set_inheritable(listener.fileno(), True)
        [program] = [each for each, _ in programs(DEPLOYMENT) if "LISTEN_FDS" in each]
        with subprocess.Popen(
            ["bash", "-c", shell, "bash", sys.executable, "-c", program],
            env=ENVIRONMENT,
            close_fds=False,
        ) as server:
            try:
                for _ in range(2):
                    with socket.create_connection(listener.getsockname(), LIMIT) as client:
                        echoed(client)
            finally:
                server.kill()


def test_the_service_is_started_by_systemd_socket_activate() -> None:
    program = shutil.which("systemd-socket-activate")
    if program is None:
        pytest.skip("systemd-socket-activate is not installed")
    port = free_port()
    names = [f"--setenv={name}" for name in ENVIRONMENT]
    activate = (program, "-l", f"127.0.0.1:{port}", *names)
    with (
        server_of("LISTEN_FDS", free_port(), *activate) as server,
        connect(port, server) as client,
    ):
        echoed(client)


def test_workers_are_replaced_and_end_together() -> None:
    port = free_port()
    with server_of("os.fork", port) as server:
        assert server.stdout is not None

        def children() -> set[int]:
            path = Path(f"/proc/{server.pid}/task/{server.pid}/children")
            return {int(number) for number in path.read_text().split()}

        with connect(port, server) as client:
            echoed(client)
        first = children()
        assert len(first) == 2
        victim = first.pop()
        os.kill(victim, signal.SIGKILL)
        assert server.stdout.readline() == f"worker {victim} ended with -9\n"
        end = time.monotonic() + LIMIT
        while len(children()) < 2:
            assert time.monotonic() < end, "it is not replaced"
            time.sleep(0.01)
        for _ in range(20):
            with connect(port, server) as client:
                echoed(client)
        server.send_signal(signal.SIGTERM)
        _, stderr = server.communicate(timeout=LIMIT)
        assert (server.returncode, stderr) == (0, "")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), LIMIT)


def test_units_are_what_systemd_takes(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    text = (ROOT / DEPLOYMENT).read_text()
    service, listener = re.findall(r"^```ini\n(.*?)^```", text, re.M | re.S)
    service = re.sub(r"^ExecStart=.*$", "ExecStart=/bin/true", service, flags=re.M)
    (tmp_path / "example.service").write_text(service)
    (tmp_path / "example.socket").write_text(listener)
    done = subprocess.run(
        [program, "verify", "--man=no", tmp_path / "example.service", tmp_path / "example.socket"],
        capture_output=True,
        text=True,
        timeout=LIMIT * 3,
    )
    ours = [line for line in (done.stdout + done.stderr).splitlines() if "example." in line]
    assert ours == [], done


@pytest.mark.parametrize(
    ("page", "number"),
    [
        (page, number)
        for page in GUIDES
        for number, (program, _) in enumerate(programs(page))
        if page != DEPLOYMENT or "7000" not in program  # its servers have tests of their own
    ],
    ids=lambda value: str(value).removeprefix("docs/guides/"),
)
def test_a_program_prints_what_its_page_says(page: str, number: int) -> None:
    program, output = programs(page)[number]
    assert output, "the page does not say what it prints"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=LIMIT * 3,
    )
    assert (done.stdout, done.stderr, done.returncode) == (output, "", 0)


def sections(page: Path) -> set[str]:
    """What links name its headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, section in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text()):
        if not target.startswith("http"):
            other = page.parent / target if target else page
            assert other.exists(), f"{page.name} links to {target}"
            if section and other.suffix == ".md":
                assert section in sections(other), f"{page.name} links to {target}#{section}"
