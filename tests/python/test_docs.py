"""The Python programs of the README and of docs/, run as they stand; and the links of all pages."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
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
    assert {name for name, count in found.items() if count} == {"README.md", "docs/python.md"}
    assert found["README.md"] == 1


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


@pytest.mark.parametrize("number", range(len(programs("docs/python.md"))))
def test_a_program_prints_what_its_page_says(number: int) -> None:
    program, output = programs("docs/python.md")[number]
    assert output, "the page does not say what it prints"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=LIMIT * 3,
    )
    assert (done.stdout, done.stderr, done.returncode) == (output, "", 0)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
